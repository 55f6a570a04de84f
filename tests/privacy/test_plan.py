from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import dp_accounting
import pytest
import torch
from torch import nn

from dpft.commands.guarantee import private_guarantee
from dpft.commands.ledger_account import SpentRun
from dpft.commands.plan import account_for_plan
from dpft.commands.run_plan import RunPlan
from dpft.methods.base import ParameterCounts
from dpft.privacy.accounting.curve import EpsilonCurve, EpsilonSoFar
from dpft.privacy.accounting.mechanism import RATE_MARGIN
from dpft.privacy.accounting.summary import account
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.ledger import Ledger, LedgerRecord, StepLine, as_mechanisms, steps_taken
from dpft.privacy.plan import (
    Phase,
    PrivacyPlan,
    check_delta,
    default_delta,
    planned_steps,
)
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.privacy.randomness import make_randomness
from dpft.reports.privacy_json import Origin
from dpft.reports.privacy_record import (
    promise_of,
)
from dpft.run_folder import LEDGER
from dpft.strict_model import parse_text
from tests.rejections import rejects
from tests.self_checks import checked_rows


def plan(**changes) -> PrivacyPlan:
    steps = changes.pop("steps", 3)
    phase = Phase(method="full", steps=steps, max_grad_norm=0.1, sensitivity=0.1)
    values = {
        "noise_multiplier": 1.5,
        "sample_rate": 0.25,
        "steps": steps,
        "delta": 1e-3,
        "num_examples": 40,
        "expected_batch_size": 10,
        "clipping": "flat",
        "phases": (phase,),
    }
    return PrivacyPlan(**{**values, **changes})


class Altered(PrivacyPlan):
    """A plan whose event is not that of its fields, so that who reads those is seen."""

    def event(self, streams=None):
        return replace(super().event(streams), noise_multiplier=4.0, sample_rate=0.75)


def altered(**changes) -> Altered:
    return Altered(**dict(plan(**changes)))


@pytest.fixture(params=[plan, altered])
def followed(request) -> PrivacyPlan:
    """A plan of three steps that all must follow, and one with another mechanism."""
    return request.param()


def test_the_mechanism_is_of_the_plans_own_numbers_and_its_event_poisson_sampled():
    gaussian = dp_accounting.GaussianDpEvent(1.5)
    sampled = dp_accounting.PoissonSampledDpEvent(0.25 * (1 + RATE_MARGIN), gaussian)
    assert plan().event().event() == dp_accounting.SelfComposedDpEvent(sampled, 3)
    assert plan().event((2,)).event() == dp_accounting.SelfComposedDpEvent(sampled, 2)
    assert plan().event().delta == 1e-3


def test_trust_rule_1_draws_noise_and_ledger_follow_the_plans_mechanism(followed, tmp_path):
    """Units without a gradient: what is left of a step's is the noise."""
    model = nn.Linear(5000, 1, bias=False)

    def losses_of(model, rows):
        return model(rows)[:, 0]

    randomness = make_randomness(torch.device("cpu"), noise_seed=1)
    expected = followed.event()
    with (
        Ledger(tmp_path / LEDGER, plan=followed) as ledger,
        PrivacyEngine(
            model,
            losses_of,
            plan=followed,
            ledger=ledger,
            randomness=randomness,
            choices=[checked_rows(model, losses_of, 5000)],
        ) as engine,
    ):
        drawn = engine.draw(10_000)
        engine.accumulate(torch.zeros(3, 5000))
        engine.finish_step()
    assert len(drawn) / 10_000 == pytest.approx(expected.sample_rate, abs=0.03)
    noise = model.weight.grad * followed.expected_batch_size / followed.phases[0].sensitivity
    assert noise.std().item() == pytest.approx(expected.noise_multiplier, rel=0.05)
    line = parse_text((tmp_path / LEDGER).read_text().splitlines()[1], StepLine)
    record = LedgerRecord(steps=1, mechanisms=(line.mechanism,), closed=False, lines=2, head="")
    spent = as_mechanisms(steps_taken(record, tmp_path / LEDGER), followed.delta)
    assert spent == (replace(expected, steps=1),)


def test_trust_rule_1_every_reported_epsilon_follows_the_plans_mechanism(
    followed, shared_accounting
):
    followed = followed.replace(accountant="rdp")
    expected = account(followed.event(), accountant="rdp")
    entries = tuple(followed.entry_at(step) for step in range(3))
    ledger = LedgerRecord(
        steps=3, mechanisms=entries, closed=True, lines=4, head="ab" * 32, plan=followed
    )
    spent = SpentRun(
        folder="",
        ledger=ledger,
        plan=followed,
        taken=steps_taken(ledger, Path(LEDGER)),
        end=None,
    )
    run = RunPlan(size=None, steps=3, phases=(), privacy=followed)
    privacy = DifferentialPrivacy(name="dp", noise_multiplier=1.0, accountant="rdp")
    assert account_for_plan(SimpleNamespace(privacy=privacy), run) == expected
    no_points = EpsilonCurve(steps=(), epsilons=(), accountants=())
    assert EpsilonSoFar(followed, no_points)(3).epsilon == pytest.approx(expected.epsilons["rdp"])
    promise = promise_of(followed, expected)
    assert (promise.epsilon, promise.delta) == (expected.epsilon, followed.event().delta)
    assert promise.plan == followed
    counts = ParameterCounts(trainable=1, new=0, total=1)
    origin = Origin(model="tiny", data="e2e")
    run = private_guarantee(spent, counts, origin=origin, size_source="given")
    assert run.epsilon == expected.epsilon


def test_phases_follow_each_other_and_must_add_up():
    first = Phase(method="full", steps=1, max_grad_norm=0.1, sensitivity=0.1)
    second = Phase(method="bitfit", steps=2, max_grad_norm=0.2, sensitivity=0.2)
    both = plan(phases=(first, second))
    assert [both.phase_at(step) for step in range(3)] == [first, second, second]
    assert [both.phase_number_at(step) for step in range(3)] == [0, 1, 1]
    assert both.phase_starts() == (0, 1)
    sensitivities = [both.entry_at(step).sensitivity for step in range(3)]
    assert sensitivities == [0.1, 0.2, 0.2]
    with pytest.raises(IndexError):
        both.phase_at(3)
    with pytest.raises(ValueError, match="steps=3"):
        plan(phases=(first,))


@pytest.mark.parametrize(
    ("epochs", "size", "batch", "steps"),
    # Li et al. 2022's E2E: floor(10 * 42061 / 1024) = floor(410.75...).
    [(10, 42061, 1024, 410), (0.01, 100, 50, 1), (3, 100, 50, 6)],
)
def test_steps_are_epochs_times_examples_over_batch_rounded_down(epochs, size, batch, steps):
    got = planned_steps(epochs=epochs, num_examples=size, expected_batch_size=batch)
    assert got == steps


def test_the_papers_delta_is_half_of_one_over_n():
    assert default_delta(42061, "published") == 1 / 84122


def test_no_digit_of_the_delta_of_own_data_is_lost_or_rounded_up():
    for size in [*range(1, 2000), *(10**k + d for k in range(3, 12) for d in (-1, 0, 1))]:
        delta = default_delta(size, "own_data")
        assert not delta > 1 / (10 * size) and not delta > 0.1 / size, size
        ((digit,), exponent) = Decimal(repr(delta)).normalize().as_tuple()[1:]
        step = Fraction(10) ** exponent
        above = (digit + 1) * step if digit < 9 else 10 * step
        assert digit * step <= Fraction(1, 10 * size) < above, size


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, float("nan")])
def test_delta_outside_the_unit_interval_is_refused(delta):
    with rejects("privacy.delta"):
        check_delta(delta, num_examples=10, allow_large=True)


@pytest.mark.parametrize(
    "changes", [{"sample_rate": 0.0}, {"sample_rate": 1.1}, {"noise_multiplier": 0.0}]
)
def test_a_plan_outside_of_its_ranges_is_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        plan(**changes)
