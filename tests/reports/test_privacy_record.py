import pytest

from dpft.methods.base import ParameterCounts
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.accounting.summary import AccountingReport, Interval, NoAnswer
from dpft.privacy.ledger import LedgerRecord
from dpft.privacy.mechanisms.banded import Banded
from dpft.privacy.plan import ClippingPlan, Phase, PrivacyPlan, StepsPlan, default_delta
from dpft.reports.privacy_json import OpenRun, Origin, PrivateRun
from dpft.reports.privacy_record import (
    delta_warnings,
    no_promise,
    private_run,
    promise_of,
)
from dpft.strict_model import as_json, merge_models, parse
from tests.reports.plain import ORIGIN

COUNTS = ParameterCounts(trainable=5, new=0, total=9)
CALIBRATION = Calibration(accountant="prv", epsilon=2.99, grid="eps_error 0.01")
SIZES = {"num_examples": 100, "expected_batch_size": 10, "steps": 4}


def plan(**changes: object) -> PrivacyPlan:
    phase = Phase(method="full", steps=4, max_grad_norm=0.1, sensitivity=0.1)
    values = {
        **SIZES,
        "noise_multiplier": 1.0,
        "sample_rate": 0.1,
        "delta": 1e-3,
        "clipping": "flat",
        "phases": (phase,),
        "calibration": CALIBRATION,
    }
    return PrivacyPlan(**{**values, **changes})


STEP = plan().entry_at(0)
LEDGER = LedgerRecord(steps=4, mechanisms=(STEP,) * 4, closed=True, lines=5, head="ab" * 32)


def clipping_plan(**changes: object) -> ClippingPlan:
    """The plan without its noise."""
    given = plan(**changes)
    return ClippingPlan(**{name: getattr(given, name) for name in ClippingPlan.model_fields})


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


def record(**changes: object) -> dict:
    """The content of privacy.json."""
    source = "privacy.num_examples"
    origin = Origin(**ORIGIN)
    return as_json(
        private_run(
            plan(**changes), accounting(), LEDGER, COUNTS, origin=origin, size_source=source
        )
    )


def without_privacy(plan: StepsPlan) -> dict:
    """The content of privacy.json of a run with privacy=none."""
    return as_json(merge_models(OpenRun, no_promise(plan), Origin(**ORIGIN), parameters=COUNTS))


def test_a_private_run_has_every_promised_key() -> None:
    """The keys that docs/dev/design.md, the run's folder, lists."""
    assert set(record()) == {
        "schema_version",
        "private",
        "epsilon",
        "delta",
        "accountant",
        "epsilons",
        "plan",
        "steps_taken",
        "parameters",
        "ledger",
        "warnings",
        "noise_source",
        "dropout_source",
        "rounding_headroom",
        "num_examples_source",
        *ORIGIN,
    }


def test_privacy_json_has_the_plan_of_the_ledger_and_what_was_taken() -> None:
    content = record()
    assert content["private"] is True
    assert content["plan"] == as_json(plan())
    assert (content["plan"]["steps"], content["steps_taken"]) == (4, 4)
    assert content["ledger"] == {"lines": 5, "head": "ab" * 32}
    assert content["epsilons"]["pld"] == {"error": "It timed out."}
    assert as_json(parse(content, PrivateRun)) == content


TWO_PHASES = (
    Phase(method="full", steps=1, max_grad_norm=0.1, sensitivity=0.1),
    Phase(method="bitfit", steps=3, max_grad_norm=0.5, sensitivity=0.5),
)


def test_each_phase_has_its_own_sensitivity() -> None:
    assert record(phases=TWO_PHASES)["plan"]["phases"] == [
        {"method": "full", "steps": 1, "max_grad_norm": 0.1, "sensitivity": 0.1},
        {"method": "bitfit", "steps": 3, "max_grad_norm": 0.5, "sensitivity": 0.5},
    ]


def test_what_does_not_apply_is_absent() -> None:
    assert "calibration" not in record(calibration=None)["plan"]
    promised = as_json(promise_of(plan(), accounting()))
    assert not {"ledger", "steps_taken", "noise_source"} & set(promised)


def test_a_seeded_run_is_not_private_and_says_why() -> None:
    content = record(reproducible=True)
    assert (content["private"], content["plan"]["reproducible"]) == (False, True)
    assert "noise_seed" in content["warnings"][0]


def test_a_run_without_privacy_has_no_epsilon() -> None:
    assert without_privacy(StepsPlan(**SIZES)) == {
        **ORIGIN,
        "schema_version": 2,
        "private": False,
        "plan": SIZES,
        "warnings": [],
        "parameters": {"trainable": 5, "new": 0, "total": 9},
    }


def test_a_run_that_clips_without_noise_says_how_and_has_no_epsilon() -> None:
    content = without_privacy(clipping_plan())
    assert content["private"] is False
    assert not {"epsilon", "delta"} & set(content)
    assert content["plan"] == as_json(clipping_plan())
    assert content["rounding_headroom"] > 0
    assert parse(content, OpenRun).plan == clipping_plan()


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
    assert record(**given, delta_source=source)["plan"]["delta_source"] == source
    chosen = record(**given)["warnings"]
    assert len(chosen) == (source == "published"), "the same delta, chosen by hand"


def test_few_units_are_warned_of_whoever_chose_delta() -> None:
    delta = default_delta(20, "own_data")
    (warning,) = record(delta=delta, num_examples=20, delta_source="own_data")["warnings"]
    assert "is above 0.001" in warning


def test_steps_that_a_unit_is_in_are_those_of_the_ledgers_streams() -> None:
    """Of seven steps in two streams of two bands, 2 + 2; the plan alone would have 3 of five."""
    banded = Banded(bands=2, coefficients=(0.8, 0.6))
    rate = banded.rate(SIZES["expected_batch_size"] / SIZES["num_examples"])
    phase = Phase(method="full", steps=5, max_grad_norm=0.1, sensitivity=0.1)
    own = plan(mechanism=banded, steps=5, sample_rate=rate, phases=(phase,))
    taken = accounting().replace(mechanism=own.event((4, 3)))
    made = private_run(
        own, taken, LEDGER, COUNTS, origin=Origin(**ORIGIN), size_source="privacy.num_examples"
    )
    assert (made.participations, made.plan.steps) == (4, 5)
    assert own.mechanism.compositions((5,)) == 3
