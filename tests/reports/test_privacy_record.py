import json
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from dpft.methods.base import ParameterCounts
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.accounting.summary import AccountingReport
from dpft.privacy.ledger import LedgerRecord
from dpft.privacy.mechanisms.banded import Banded
from dpft.privacy.plan import Phase, PrivacyPlan, default_delta
from dpft.records.costs import Interval, NoAnswer
from dpft.records.form import as_json, joined
from dpft.records.ledger import Calibration
from dpft.records.promises import OpenRun, Origin
from dpft.reports.privacy_record import (
    delta_warnings,
    no_promise,
    parameters_of,
    private_run,
    promise_of,
)
from dpft.schemas import schema
from tests.reports.plain import ORIGIN

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
        "prv": Interval(lower=2.97, estimate=2.98, upper=2.99),
    }
    values = {
        "mechanism": mechanism,
        "epsilon": 2.99,
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
