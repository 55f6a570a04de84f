import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dpft.methods.base import ParameterCounts
from dpft.parallel.described import described, sharding
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.accounting.summary import AccountingReport
from dpft.privacy.ledger import LedgerRecord
from dpft.privacy.mechanisms.banded import Banded
from dpft.privacy.plan import Phase, PrivacyPlan, default_delta
from dpft.records.audits import GuessesInShort
from dpft.records.costs import Interval, NoAnswer
from dpft.records.form import as_json, joined, parse
from dpft.records.ledger import Calibration, HandedCounts, HandedFile
from dpft.records.promises import OpenRun, Origin, PrivateRun, Process
from dpft.reports.privacy_record import (
    delta_warnings,
    is_another_mechanism,
    network_sentences,
    no_promise,
    one_run_rows,
    parameters_of,
    private_run,
    process_rows,
    processes_of,
    promise_of,
    with_witness,
    witness_rows,
)
from dpft.reports.report import render_card
from dpft.reports.run_record import read_run
from dpft.schemas import schema
from tests.reports.folders import write_run
from tests.reports.plain import ORIGIN, privacy_of, render
from tests.reports.test_report import BOTH, CONFIG, non_private, private

COUNTS = ParameterCounts(trainable=5, new=0, total=9)
CALIBRATION = Calibration(accountant="prv", epsilon=2.99, grid="eps_error 0.01")
LEDGER = LedgerRecord(steps=4, mechanisms=({},) * 4, closed=True, lines=5, head="ab" * 32)


def plan(**changes: object) -> PrivacyPlan:
    phase = Phase(method="full", steps=4, max_grad_norm=0.1, sensitivity=0.1)
    values = {
        "noise_multiplier": 1.0,
        "sample_rate": 0.1,
        "steps": 4,
        "delta": 1e-3,
        "num_examples": 100,
        "expected_batch_size": 10,
        "clipping": "flat",
        "phases": (phase,),
        "calibration": CALIBRATION,
    }
    return PrivacyPlan(**{**values, **changes})


def accounting(steps: int = 4, **changes: object) -> AccountingReport:
    mechanism = SampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=steps, delta=1e-3)
    epsilons = {
        "rdp": 3.4,
        "gdp": 2.5,
        "pld": NoAnswer(error="It timed out."),
        "prv": Interval(lower=2.97, estimate=2.98, upper=2.989),
    }
    values = {
        "mechanism": mechanism,
        "epsilon": 2.989,
        "delta": mechanism.delta,
        "accountant": "prv",
        "epsilons": epsilons,
    }
    return AccountingReport(**{**values, **changes})


def promised(plan: PrivacyPlan, accounting: AccountingReport) -> dict:
    return as_json(promise_of(plan, accounting))


def record(*, reproducible: bool = False, **changes: object) -> dict:
    """The content of privacy.json."""
    return as_json(
        private_run(
            plan(**changes),
            accounting(),
            LEDGER,
            COUNTS,
            origin=Origin(**ORIGIN),
            reproducible=reproducible,
            size_source="privacy.num_examples",
        )
    )


def without_privacy(**values: object) -> dict:
    """The content of privacy.json of a run with privacy=none."""
    parts = no_promise(**values), Origin(**ORIGIN), parameters_of(COUNTS)
    return as_json(joined(OpenRun, *parts))


def test_a_private_run_has_every_promised_key() -> None:
    """The keys that docs/design.md, the run's folder, lists."""
    assert set(json.loads(json.dumps(record()))) == {
        "schema_version",
        "private",
        "epsilon",
        "delta",
        "delta_source",
        "accountant",
        "epsilons",
        "noise_multiplier",
        "max_grad_norm",
        "sensitivity",
        "clipping",
        "sample_rate",
        "expected_batch_size",
        "num_examples",
        "steps",
        "steps_taken",
        "unit",
        "unit_definition",
        "neighboring_relation",
        "sampler",
        "trainable_parameters",
        "new_parameters",
        "total_parameters",
        "phases",
        "ledger",
        "warnings",
        "calibration",
        "noise_source",
        "dropout_source",
        "rounding_headroom",
        "num_examples_source",
        *ORIGIN,
    }


def test_the_values_stand_as_they_were_planned_and_taken() -> None:
    content = record()
    assert content["private"] is True
    assert (content["steps"], content["steps_taken"]) == (4, 4)
    assert content["ledger"] == {"lines": 5, "head": "ab" * 32}
    assert content["phases"] == [
        {"method": "full", "steps": 4, "max_grad_norm": 0.1, "sensitivity": 0.1}
    ]
    assert content["epsilons"]["pld"] == {"error": "It timed out."}


TWO_PHASES = (
    Phase(method="full", steps=1, max_grad_norm=0.1, sensitivity=0.1),
    Phase(method="bitfit", steps=3, max_grad_norm=0.5, sensitivity=0.5),
)


def test_each_phase_stands_with_its_own_sensitivity_and_the_first_in_the_headline() -> None:
    content = record(phases=TWO_PHASES)
    assert (content["max_grad_norm"], content["sensitivity"]) == (0.1, 0.1)
    assert content["phases"] == [
        {"method": "full", "steps": 1, "max_grad_norm": 0.1, "sensitivity": 0.1},
        {"method": "bitfit", "steps": 3, "max_grad_norm": 0.5, "sensitivity": 0.5},
    ]


def test_the_headline_is_the_calibrated_bound_on_every_machine() -> None:
    slow = accounting(epsilon=3.4, accountant="rdp")
    assert promised(plan(), slow)["epsilon"] == 2.99
    assert promised(plan(), slow)["accountant"] == "prv"


def test_other_steps_than_planned_are_accounted_anew() -> None:
    assert promised(plan(), accounting(steps=5, epsilon=3.1))["epsilon"] == 3.1


def test_what_does_not_apply_is_absent() -> None:
    assert not {"calibration", "reproducible"} & set(record(calibration=None))
    assert not {"ledger", "steps_taken", "noise_source"} & set(promised(plan(), accounting()))


def test_a_seeded_run_is_not_private_and_says_why() -> None:
    content = record(reproducible=True)
    assert (content["private"], content["reproducible"]) == (False, True)
    assert "noise_seed" in content["warnings"][0]


def test_a_run_without_privacy_has_no_epsilon() -> None:
    content = without_privacy(num_examples=100, expected_batch_size=10, steps=4)
    assert content == {
        **ORIGIN,
        "schema_version": 1,
        "private": False,
        "num_examples": 100,
        "expected_batch_size": 10,
        "steps": 4,
        "warnings": [],
        "trainable_parameters": 5,
        "new_parameters": 0,
        "total_parameters": 9,
    }


def test_a_run_that_clips_without_noise_says_how_and_has_no_epsilon() -> None:
    own = plan()
    content = without_privacy(num_examples=100, expected_batch_size=10, steps=4, clipping=own)
    assert content["private"] is False
    assert not {"epsilon", "delta", "noise_multiplier"} & set(content)
    assert content["max_grad_norm"] == own.phases[0].max_grad_norm
    assert (content["clipping"], content["sampler"]) == ("flat", "poisson")
    assert content["sample_rate"] == own.sample_rate
    Draft202012Validator(schema("privacy")).validate(content)


@pytest.mark.parametrize(
    ("delta", "num_examples", "said"),
    [
        (0.001, 100, None),
        (0.00101, 100, "above 1/(10*num_examples) = 0.001: "),
        (1 / 730, 365, "at random with probability 0.5 would satisfy it"),
        (0.01, 100, "is equal to 1/num_examples"),
        (0.02, 100, "is above 1/num_examples"),
        (0.0011, 20, "is above 0.001: "),
        (0.0009, 20, None),
    ],
)
def test_a_delta_that_promises_little_is_warned_of(
    delta: float, num_examples: int, said: str | None
) -> None:
    warnings = delta_warnings(delta, num_examples, source="given")
    assert [said in warning for warning in warnings] == [True] * (said is not None)
    assert record(delta=delta, num_examples=num_examples)["warnings"] == warnings


@pytest.mark.parametrize("source", ["published", "own_data"])
def test_a_delta_that_nobody_chose_is_not_warned_of(source: str) -> None:
    given = {"num_examples": 8000, "delta": default_delta(8000, source)}
    assert record(**given, delta_source=source)["warnings"] == []
    assert record(**given, delta_source=source)["delta_source"] == source
    chosen = record(**given)["warnings"]
    assert len(chosen) == (source == "published"), "the same delta, chosen by hand"


def test_few_units_are_warned_of_whoever_chose_delta() -> None:
    delta = default_delta(20, "own_data")
    (warning,) = record(delta=delta, num_examples=20, delta_source="own_data")["warnings"]
    assert "is above 0.001" in warning


def test_a_run_whose_clipper_was_not_checked_says_so() -> None:
    unchecked = private_run(
        plan(),
        accounting(),
        LEDGER,
        COUNTS,
        origin=Origin(**ORIGIN),
        reproducible=False,
        size_source="privacy.num_examples",
        self_check=False,
    )
    assert unchecked.warnings[-1].startswith("privacy.self_check=false: ")
    assert not any("self_check" in warning for warning in record()["warnings"])


def test_steps_that_a_unit_is_in_are_those_of_the_ledgers_streams() -> None:
    """Of seven steps in two streams of two bands, 2 + 2; the plan alone would have 3 of five."""
    banded = Banded(bands=2, coefficients=(0.8, 0.6))
    given = plan()
    phase = replace(given.phases[0], steps=5)
    rate = banded.rate(given.expected_batch_size / given.num_examples)
    own = replace(given, mechanism=banded, steps=5, sample_rate=rate, phases=(phase,))
    mechanism = own.event((4, 3))
    made = private_run(
        own, replace(accounting(), mechanism=mechanism), LEDGER, COUNTS, origin=Origin(**ORIGIN),
        reproducible=False, size_source="privacy.num_examples",
    )  # fmt: skip
    assert (made.participations, made.steps) == (4, 5)
    assert own.mechanism.facts(5)["participations"] == 3


ALONE = Process(**described(1, on_one_node=True))
HERE, ACROSS = (Process(**described(2, on_one_node=here)) for here in (True, False))


def run(*sessions: Process) -> PrivateRun:
    return replace(privacy_of(record()), processes=processes_of(sessions))


def test_a_run_of_one_process_says_nothing_of_processes() -> None:
    assert processes_of([ALONE, ALONE]) is None
    assert process_rows(run()) == network_sentences(run()) == []


def test_each_group_of_processes_that_took_steps_is_named_once() -> None:
    assert processes_of([ALONE, HERE, HERE]) == (ALONE, HERE)
    assert [name for name, _ in process_rows(run(ALONE, HERE, HERE))] == ["processes", "processes"]


def test_what_epsilon_assumes_of_a_network_is_said_where_there_was_one() -> None:
    assert network_sentences(run(ALONE, HERE)) == []
    (sentence,) = network_sentences(run(HERE, ACROSS))
    assert "trusted or encrypted network" in sentence
    assert "loopback" in str(process_rows(run(HERE)))


def test_what_each_process_held_is_said() -> None:
    in_shards = replace(HERE, sharding=sharding(2, 1, accumulates_shards=True))
    (_, whole), (_, cut) = process_rows(run(HERE, in_shards))
    assert whole.startswith("2, each with the whole model (sharding: none);")
    assert "2, each with a shard of the model (sharding: fsdp, 2 shards, sums" in cut


NAME = "0" * 32


def privacy(lines: int, *warnings: str) -> PrivateRun:
    ledger = {"lines": lines, "head": "ab" * 32}
    return privacy_of({**record(), "warnings": list(warnings), "ledger": ledger})


def witnessed(lines: int = 21, **count: int) -> PrivateRun:
    counts = HandedCounts(**{"heads": 2, "lines": 21} | count)
    handed = HandedFile(run=NAME, witnesses={"file heads": counts})
    return with_witness(privacy(lines, "first"), handed)


def test_a_witness_of_the_whole_ledger_is_named_and_warns_of_nothing() -> None:
    found = witnessed()
    assert found.witness and found.witness.run == NAME and found.warnings == ("first",)
    ((name, words),) = witness_rows(found)
    assert name == "witness of the ledger"
    assert words.startswith("file heads: 2 heads, the last after line 21 of 21, 0 not taken;")
    assert NAME in words


def test_a_witness_that_lacks_the_end_or_missed_a_head_is_warned_of() -> None:
    behind, failed = witnessed(lines=25).warnings, witnessed(failed=1).warnings
    assert "file heads, has a head of 21 of the ledger's 25 lines; lodge" in behind[1]
    assert "21 of the ledger's 21 lines and 1 head was not taken; lodge" in failed[1]


def test_a_run_without_a_witness_says_nothing_of_one() -> None:
    assert with_witness(privacy(3), None) == privacy(3)
    assert witness_rows(privacy(3)) == []


WATCHED = {**CONFIG, "audit": {"canaries": 20, "exposure_canaries": 0, "white_box": True}}
UNWATCHED = {**CONFIG, "audit": {**WATCHED["audit"], "white_box": False}}  # type: ignore[dict-item]
FOUND = {
    "view": "black box",
    "threat_model": "black box",
    "epsilon_lower": 3.5,
    "epsilon": 2.99,
    "delta": 0.001,
    "canaries": 100,
    "guesses": 100,
    "correct": 100,
    "confidence": 0.95,
    "largest_epsilon_lower": 3.5,
    "epsilon_lower_if_gaussian": 3.0,
    "other_mechanism": False,
    "p_value_of_plan": 0.5,
    "mechanism_confidence": 0.995,
    "choices": 1,
    "assumes_no_mixing": False,
    "views": [],
}


def audited(**changes: Any) -> dict[str, Any]:
    return {**private(), "audited": {"one_run": {**FOUND, **changes}}}


def test_steps_held_against_canaries_are_marked_whether_or_not_it_was_audited() -> None:
    said = "White box: each step's noisy gradient was held against every canary's own"
    assert said in render(WATCHED, private(), BOTH)
    assert said not in render(UNWATCHED, private(), BOTH)
    assert said not in render(CONFIG, private(), BOTH)


def test_canaries_in_a_run_without_privacy_are_marked() -> None:
    said = "Warning: canaries of audits are among the records of this run, which is not private"
    assert said in render(UNWATCHED, non_private(), BOTH)
    assert said not in render(CONFIG, non_private(), BOTH)
    assert said not in render(UNWATCHED, private(), BOTH)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "**THE GUARANTEE IS CONTRADICTED: an audit found"),
        ({"epsilon_lower": 1.0, "other_mechanism": True}, "**NOT THIS MECHANISM: an audit found"),
    ],
)
def test_what_contradicts_the_guarantee_leads_the_report_and_travels_with_the_model(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    privacy = audited(**changes)
    assert render(CONFIG, privacy, BOTH).startswith(says)
    run = write_run(tmp_path / "run", privacy=privacy)
    card = render_card(read_run(run), run)
    assert card.index(says) < card.index("-differentially private")


def test_an_audit_below_epsilon_alarms_nobody(tmp_path: Path) -> None:
    privacy = audited(epsilon_lower=2.99)
    run = write_run(tmp_path / "run", privacy=privacy)
    for text in (render(CONFIG, privacy, BOTH), render_card(read_run(run), run)):
        assert "CONTRADICTED" not in text and "NOT THIS MECHANISM" not in text


@pytest.mark.parametrize("others", [False, True])
def test_what_a_verdict_on_the_mechanism_assumes_is_said_where_it_rests_on_that(
    others: bool,
) -> None:
    """White-box scores are tested as if canaries' signals did not mix; other views need not."""
    short = {"view": "a", "epsilon_lower": 1.0}
    views = [
        {**short, "other_mechanism": True, "assumes_no_mixing": True},
        {**short, "other_mechanism": others, "assumes_no_mixing": False},
    ]
    said = "by chance, if what is seen of one canary tells nothing of another's coin"
    alarm = is_another_mechanism(
        parse({**FOUND, "other_mechanism": True, "views": views}, GuessesInShort)
    )
    assert alarm is not None and (said in alarm) is not others
    row = one_run_rows(parse({**FOUND, "assumes_no_mixing": True}, GuessesInShort))[-1]
    assert row[1] == "yes (p = 0.5, if what is seen of one canary tells nothing of another's coin)"
