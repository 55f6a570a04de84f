from pathlib import Path

import pytest

from dpft.errors import InputError, StateError
from dpft.privacy.accounting import Accountants, SampledGaussian, account
from dpft.privacy.accounting.mechanism import AccountantError
from dpft.privacy.ledger import read_ledger
from dpft.reports.accounting.epsilon import NOT_PRIVATE_SEED
from dpft.runs.spending.bounds import (
    UNNAMED,
    account_for_spent,
    account_together,
    check_head,
    check_same_unit,
)
from dpft.runs.spending.spent_run import SpentRun, read_spent
from dpft.runs.spending.tables import SAME_DATA, run_record, run_table, together_table
from tests.privacy.test_ledger import as_before
from tests.runs.spending.run_folders import BATCH, NOISE, SIZE, edit, make_run, mechanism, tear

DELTA = 1 / (2 * SIZE)


def spent(folder: Path, *args: dict, **given: object) -> SpentRun:
    return read_spent(str(make_run(folder, *args, **given)))


def bound(accountants: Accountants, steps: int, name: str, delta: float = DELTA) -> float:
    one = SampledGaussian(
        noise_multiplier=NOISE, sample_rate=BATCH / SIZE, steps=steps, delta=delta
    )
    return account(one, accountant=name, accountants=accountants).epsilon


def test_a_run_costs_what_its_steps_do_by_the_accountant_that_led_it(
    tmp_path: Path, accountants: Accountants
) -> None:
    run = spent(tmp_path / "a", *[mechanism()] * 3, ended=False)
    spending = account_for_spent(run, accountants=accountants)
    assert (spending.accountant, spending.delta) == ("rdp", DELTA)
    assert spending.epsilon == bound(accountants, 3, "rdp")
    assert "the run has not ended: 3 steps are counted, of 5 planned." in spending.warnings
    other = account_for_spent(run, accountant="pld", delta=1e-3, accountants=accountants)
    assert other.epsilon == bound(accountants, 3, "pld", 1e-3)


def test_a_torn_step_is_counted_and_said(tmp_path: Path, accountants: Accountants) -> None:
    folder = make_run(tmp_path / "a", *[mechanism()] * 3, ended=False)
    tear(folder)
    spending = account_for_spent(read_spent(str(folder)), accountants=accountants)
    assert spending.epsilon == bound(accountants, 4, "rdp")
    assert any("torn" in warning for warning in spending.warnings)


def stated(accountant: str, epsilon: float) -> dict:
    """What privacy.json has of a run whose noise was calibrated to an epsilon."""
    calibration = {"accountant": accountant, "epsilon": epsilon, "grid": "g"}
    answers = {accountant: epsilon}
    return calibration | {"calibration": calibration, "epsilons": answers} | {"grid": None}


def test_epsilon_is_computed_of_the_ledger_by_the_accountant_that_led(
    tmp_path: Path, accountants: Accountants
) -> None:
    found = bound(accountants, 5, "pld")
    # what another machine found: the same but for its rounding
    run = spent(tmp_path / "a", known=stated("pld", found + 1e-5))
    spending = account_for_spent(run, accountants=accountants)
    assert (spending.accountant, spending.epsilon) == ("pld", found)
    assert not any("states" in warning for warning in spending.warnings)
    own = account_for_spent(run, accountant="rdp", accountants=accountants)
    assert own.epsilon == bound(accountants, 5, "rdp")


@pytest.mark.parametrize("times", [0.95, 1.5])
def test_a_stated_epsilon_that_is_not_found_again_is_not_shown(
    tmp_path: Path, accountants: Accountants, times: float
) -> None:
    found = bound(accountants, 5, "pld")
    run = spent(tmp_path / "a", known=stated("pld", times * found))
    spending = account_for_spent(run, accountants=accountants)
    assert spending.epsilon == found
    assert any("states another epsilon than pld finds" in text for text in spending.warnings)
    assert str(round(times * found, 3)) not in run_table(run, spending, head_checked=True)


class NoPrv:
    """Accountants of which prv gives no answer, as where it runs into its limits."""

    def __init__(self, accountants: Accountants) -> None:
        self._accountants = accountants

    def prefetch(self, name: str, mechanism: SampledGaussian) -> None:
        """Begins nothing."""

    def evaluate(self, name: str, mechanism: object, **options: float) -> object:
        if name == "prv":
            raise AccountantError("It took too long.")
        return self._accountants.evaluate(name, mechanism, **options)


def test_a_calibration_of_an_accountant_without_an_answer_is_no_headline(
    tmp_path: Path, accountants: Accountants
) -> None:
    """An epsilon of 147.8 was told as "epsilon = 0.5000 (upper bound by prv)"."""
    run = spent(tmp_path / "a", known=stated("prv", 0.5555))
    check_head(run, run.ledger.head)
    for accountant in (None, "prv"):
        spending = account_for_spent(run, accountant=accountant, accountants=NoPrv(accountants))
        assert (spending.accountant, spending.epsilon) == ("pld", bound(accountants, 5, "pld"))
        record, table = run_record(run, spending), run_table(run, spending, head_checked=True)
        assert "0.5555" not in table and "calibration" not in record
    spending = account_for_spent(run, accountants=NoPrv(accountants))
    (text,) = (text for text in spending.warnings if "states" in text)
    assert text.startswith("privacy.json states an epsilon by prv, which has no answer here")


def test_a_ledger_of_an_earlier_version_is_accounted_for_and_its_head_is_said_to_prove_less(
    tmp_path: Path, accountants: Accountants
) -> None:
    folder = make_run(tmp_path / "a")
    as_before(folder / "ledger.jsonl")
    record = read_ledger(folder / "ledger.jsonl")
    edit(folder, ledger={"lines": record.lines, "head": record.head})
    run = read_spent(str(folder))
    spending = account_for_spent(run, accountants=accountants)
    assert spending.epsilon == bound(accountants, 5, "rdp")
    assert UNNAMED in spending.warnings
    assert "run_id" not in run_record(run, spending)["ledger"]
    assert "run id" not in run_table(run, spending, head_checked=True)
    named = account_for_spent(spent(tmp_path / "b"), accountants=accountants)
    assert UNNAMED not in named.warnings


def test_differing_mechanisms_in_one_ledger_are_composed(
    tmp_path: Path, accountants: Accountants
) -> None:
    run = spent(tmp_path / "a", mechanism(), mechanism(3.0), ended=False, num_examples=SIZE)
    spending = account_for_spent(run, accountant="pld", accountants=accountants)
    assert set(spending.epsilons) == {"rdp", "pld"}
    assert bound(accountants, 1, "pld") < spending.epsilon < bound(accountants, 2, "pld")
    assert "1 of noise multiplier 3 at sample rate 0.2" in run_table(
        run, spending, head_checked=True
    )


def test_runs_on_the_same_data_are_composed_at_the_smallest_delta(
    tmp_path: Path, accountants: Accountants
) -> None:
    runs = [
        spent(tmp_path / "a"),
        spent(tmp_path / "b", *[mechanism()] * 2, ended=False, delta=1e-3),
    ]
    together = account_together(runs, accountants=accountants)
    assert (together.accountant, together.delta) == ("pld", 1e-3)
    assert together.epsilon == pytest.approx(bound(accountants, 7, "pld", 1e-3), abs=1e-6)
    at = account_together(runs, delta=1e-2, accountant="rdp", accountants=accountants)
    assert at.epsilon == pytest.approx(bound(accountants, 7, "rdp", 1e-2), abs=1e-9)
    own = [account_for_spent(run, accountants=accountants) for run in runs]
    table = together_table(list(zip(runs, own, strict=True)), together)
    assert SAME_DATA in table.replace("\n      ", " ")
    assert str(tmp_path / "b") in table


@pytest.mark.parametrize(
    ("privacy", "known", "key"),
    [
        ({"unit": "customer_id"}, {}, "unit"),
        ({}, {"neighboring_relation": "replace_one"}, "neighboring_relation"),
        ({}, {"unit_definition": "one dialogue"}, "unit_definition"),
    ],
)
def test_runs_that_protect_different_things_are_refused(
    tmp_path: Path, privacy: dict, known: dict, key: str
) -> None:
    runs = [spent(tmp_path / "a"), spent(tmp_path / "b", known=known, **privacy)]
    with pytest.raises(InputError, match=f"runs must all have the same {key}, got"):
        check_same_unit(runs)


def test_a_run_of_no_step_has_spent_nothing(tmp_path: Path, accountants: Accountants) -> None:
    folder = make_run(tmp_path / "a", ended=False, num_examples=SIZE)
    (folder / "ledger.jsonl").write_text("")
    spending = account_for_spent(read_spent(str(folder)), accountants=accountants)
    assert spending.epsilon == 0
    assert "no noisy step" in spending.warnings[0]


def test_a_reproducible_run_is_said_not_to_be_private(
    tmp_path: Path, accountants: Accountants
) -> None:
    spending = account_for_spent(spent(tmp_path / "a", noise_seed=1), accountants=accountants)
    assert NOT_PRIVATE_SEED in spending.warnings


def test_the_head_lodged_elsewhere_is_compared(tmp_path: Path) -> None:
    run = spent(tmp_path / "a")
    check_head(run, run.ledger.head)
    with pytest.raises(StateError, match="was its head after line 3"):
        check_head(run, run.ledger.heads[3])
    with pytest.raises(StateError, match="replaced or written anew"):
        check_head(run, "f" * 64)
