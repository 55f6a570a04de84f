from dataclasses import replace
from pathlib import Path

import pytest

from dpft.commands.account_runs import SAME_DATA, run_table, runs_table
from dpft.commands.composition import (
    account_for_spent,
    account_together,
    check_head,
    check_same_unit,
    spent_beside,
)
from dpft.commands.ledger_account import SpentRun, histogram_steps, read_spent
from dpft.errors import StateError
from dpft.privacy.accounting import SampledGaussian, account, evaluate, summary
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.accounting.mechanism import AccountantError, Epsilon, Mechanism
from dpft.privacy.accounting.summary import eps_text
from dpft.privacy.ledger import Noise, sum_steps
from dpft.privacy.mechanisms.base import GaussianStep
from dpft.privacy.mechanisms.histogram import GaussianHistogram
from dpft.privacy.plan import SpentBefore
from dpft.reports.epsilon import NOT_PRIVATE_SEED
from tests.commands.run_folders import (
    BATCH,
    NOISE,
    SIZE,
    edit,
    make_plan,
    make_run,
    mechanism,
    tear,
)
from tests.rejections import rejects

DELTA = 1 / (2 * SIZE)


def spent(folder: Path, *args: GaussianStep, **given: object) -> SpentRun:
    return read_spent(str(make_run(folder, *args, **given)))


def bound(steps: int, name: str, delta: float = DELTA) -> float:
    one = SampledGaussian(
        noise_multiplier=NOISE, sample_rate=BATCH / SIZE, steps=steps, delta=delta
    )
    return account(one, accountant=name).epsilon


def test_a_run_costs_what_its_steps_do_by_the_accountant_that_led_it(tmp_path: Path) -> None:
    run = spent(tmp_path / "a", *[mechanism()] * 3, ended=False)
    spending = account_for_spent(run)
    assert (spending.accountant, spending.delta) == ("rdp", DELTA)
    assert spending.epsilon == bound(3, "rdp")
    assert "the run has not ended: 3 steps are counted, of 5 planned." in spending.warnings
    other = account_for_spent(run, accountant="pld", delta=1e-3)
    assert other.epsilon == bound(3, "pld", 1e-3)


def test_a_torn_step_is_counted_and_said(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", *[mechanism()] * 3, ended=False)
    tear(folder)
    spending = account_for_spent(read_spent(str(folder)))
    assert spending.epsilon == bound(4, "rdp")
    assert any("is incomplete" in warning for warning in spending.warnings)


def test_no_file_beside_the_ledger_is_ever_a_headline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epsilon of 147.8 was told as "epsilon = 0.5000 (upper bound by prv)"."""
    stated = 0.5555
    calibration = Calibration(accountant="prv", epsilon=1.5, grid="g", target=1.5)
    folder = make_run(tmp_path / "a", plan=make_plan(calibration=calibration), eps=1.5)
    forged = {"accountant": "prv", "epsilon": stated, "grid": "g", "target": stated}
    edit(folder, epsilon=stated, epsilons={"prv": stated}, delta=0.3)
    edit(folder, plan={"calibration": forged, "delta": 0.3})
    run = read_spent(str(folder))

    def without_prv(name: str, mechanism: Mechanism, **options: float) -> Epsilon:
        if name == "prv":
            raise AccountantError("It needs a mesh of 8.3e+06 points.")
        return evaluate(name, mechanism, **options)

    monkeypatch.setattr(summary, "evaluate", without_prv)
    for accountant in (None, "prv"):
        spending = account_for_spent(run, accountant=accountant)
        assert (spending.accountant, spending.epsilon) == ("pld", bound(5, "pld"))
        headline = run_table(run, spending, head_checked=True).partition("epsilon = ")[2]
        assert str(stated) not in headline.partition("warning")[0]


HISTOGRAM = GaussianHistogram(
    noise_std=4.0, l2_cap=4.0, linf_cap=1.0, words_per_record=64, delta=1e-6,
    num_examples=80, num_examples_source="given",
)  # fmt: skip
"""The one step of a tokenizer's ledger."""


def test_a_tokenizers_cost_is_known_from_the_plan_alone(tmp_path: Path) -> None:
    before = SpentBefore(run_id="a" * 32, lines=3, head="b" * 64, delta=1e-6, mechanism=HISTOGRAM)
    run = spent(tmp_path / "a", plan=make_plan(tokenizer=before))
    own = account_for_spent(run)
    (text,) = (text for text in own.warnings if "with the tokenizer" in text)
    together = account_together([run])
    assert together.epsilon > own.epsilon and together.delta == DELTA + 1e-6
    assert f"epsilon = {eps_text(together.epsilon)}" in text
    again = spent(tmp_path / "b", plan=make_plan(tokenizer=before))
    both = account_together([run, again])
    assert sum(noise.threshold_delta > 0 for noise in histogram_steps(before)) == 1
    assert spent_beside([run, again]) == [(run, before)], "one tokenizer is paid for once"
    assert both.delta == DELTA + 1e-6


def test_a_tokenizers_ledger_that_was_cut_hides_nothing(tmp_path: Path) -> None:
    made = spent(tmp_path / "tokenizer", mechanism(), ended=False)
    ledger = made.ledger
    before = SpentBefore(
        run_id=str(ledger.run_id), lines=2, head=ledger.head, delta=1e-6, mechanism=HISTOGRAM
    )
    run = spent(tmp_path / "a", plan=make_plan(tokenizer=before))
    assert spent_beside([run, made]) == []
    for record in (replace(ledger, heads=ledger.heads[:2]), replace(ledger, heads=("", "", "x"))):
        with pytest.raises(StateError, match=f"{before.head} after line 2"):
            spent_beside([run, replace(made, ledger=record)])
    own = replace(run, ledger=replace(run.ledger, run_id=before.run_id))
    with pytest.raises(StateError, match=before.head):
        spent_beside([own])


def test_steps_of_equal_noise_add_up() -> None:
    """A tokenizer's of the training's noise took the place of its steps."""
    noise = Noise(noise_multiplier=1.0, sample_rate=0.5)
    other = Noise(noise_multiplier=2.0, sample_rate=1.0)
    assert sum_steps({noise: 5}, {noise: 1, other: 1}) == {noise: 6, other: 1}


def test_runs_on_the_same_data_are_composed_at_the_smallest_delta(tmp_path: Path) -> None:
    runs = [
        spent(tmp_path / "a"),
        spent(tmp_path / "b", *[mechanism()] * 2, ended=False, delta=1e-3),
    ]
    together = account_together(runs)
    assert (together.accountant, together.delta) == ("pld", 1e-3)
    assert together.epsilon == pytest.approx(bound(7, "pld", 1e-3), abs=1e-6)
    at = account_together(runs, delta=1e-2, accountant="rdp")
    assert at.epsilon == pytest.approx(bound(7, "rdp", 1e-2), abs=1e-9)
    own = [account_for_spent(run) for run in runs]
    table = runs_table(list(zip(runs, own, strict=True)), together)
    assert SAME_DATA in table.replace("\n      ", " ")
    assert str(tmp_path / "b") in table


@pytest.mark.parametrize("changes", [{"unit": "customer_id"}, {"unit_definition": "one dialogue"}])
def test_runs_that_protect_different_things_are_refused(tmp_path: Path, changes: dict) -> None:
    runs = [spent(tmp_path / "a"), spent(tmp_path / "b", plan=make_plan(**changes))]
    with rejects("runs", *changes.values()):
        check_same_unit(runs)


def test_a_run_of_no_step_has_spent_nothing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", ended=False)
    path = folder / "ledger.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    spending = account_for_spent(read_spent(str(folder)))
    assert spending.epsilon == 0
    assert "no noisy step" in spending.warnings[0]


def test_a_reproducible_run_is_said_not_to_be_private(tmp_path: Path) -> None:
    spending = account_for_spent(spent(tmp_path / "a", noise_seed=1))
    assert NOT_PRIVATE_SEED in spending.warnings


def test_the_head_lodged_elsewhere_is_compared(tmp_path: Path) -> None:
    run = spent(tmp_path / "a")
    check_head(run, run.ledger.head)
    with pytest.raises(StateError, match="line 3"):
        check_head(run, run.ledger.heads[3])
    with pytest.raises(StateError, match=f"{'f' * 64}, got {run.ledger.head}"):
        check_head(run, "f" * 64)
