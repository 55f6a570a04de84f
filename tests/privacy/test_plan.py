import dp_accounting
import pytest

from dpft.errors import InputError
from dpft.privacy.plan import Phase, PrivacyPlan, check_delta, default_delta, planned_steps


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


def test_the_event_is_the_poisson_sampled_gaussian_of_the_plans_own_numbers():
    gaussian = dp_accounting.GaussianDpEvent(1.5)
    sampled = dp_accounting.PoissonSampledDpEvent(0.25, gaussian)
    assert plan().event() == dp_accounting.SelfComposedDpEvent(sampled, 3)
    assert plan().event(2) == dp_accounting.SelfComposedDpEvent(sampled, 2)


def test_phases_follow_each_other_and_must_add_up():
    first = Phase(method="full", steps=1, max_grad_norm=0.1, sensitivity=0.1)
    second = Phase(method="bitfit", steps=2, max_grad_norm=0.2, sensitivity=0.2)
    both = plan(phases=(first, second))
    assert [both.phase_at(step) for step in range(3)] == [first, second, second]
    assert [both.phase_number_at(step) for step in range(3)] == [0, 1, 1]
    assert both.phase_starts() == (0, 1)
    sensitivities = [both.mechanism_at(step)["sensitivity"] for step in range(3)]
    assert sensitivities == [0.1, 0.2, 0.2]
    with pytest.raises(IndexError):
        both.phase_at(3)
    with pytest.raises(ValueError, match="add up to steps=3"):
        plan(phases=(first,))


@pytest.mark.parametrize("changes", [{"sample_rate": 0.0}, {"sample_rate": 1.1}])
def test_a_sample_rate_outside_its_range_is_refused(changes):
    with pytest.raises(ValueError, match="sample_rate"):
        plan(**changes)


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, float("nan")])
def test_noise_must_be_positive(noise_multiplier):
    with pytest.raises(ValueError, match="noise_multiplier"):
        plan(noise_multiplier=noise_multiplier)


@pytest.mark.parametrize(
    ("epochs", "size", "batch", "steps"),
    # Li et al. 2022's E2E: floor(10 * 42061 / 1024) = floor(410.75...).
    [(10, 42061, 1024, 410), (0.01, 100, 50, 1), (3, 100, 50, 6)],
)
def test_steps_are_epochs_times_examples_over_batch_rounded_down(epochs, size, batch, steps):
    got = planned_steps(epochs=epochs, num_examples=size, expected_batch_size=batch)
    assert got == steps


def test_the_default_delta_is_half_of_one_over_n():
    assert default_delta(42061) == 1 / 84122


def test_delta_above_one_over_n_is_refused_unless_allowed():
    check_delta(0.01, num_examples=100, allow_large=False)
    with pytest.raises(InputError, match=r"privacy\.delta must be at most 1/num_examples = 0\.01"):
        check_delta(0.011, num_examples=100, allow_large=False)
    check_delta(0.011, num_examples=100, allow_large=True)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, float("nan")])
def test_delta_outside_the_unit_interval_is_refused(delta):
    with pytest.raises(InputError, match=r"in \(0, 1\)"):
        check_delta(delta, num_examples=10, allow_large=True)
