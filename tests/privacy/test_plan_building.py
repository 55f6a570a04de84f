import pytest
from scipy.stats import norm

from dpft.methods.base import MethodPhase
from dpft.privacy import plan_building as planning
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.plan_building import make_plan
from dpft.privacy.privacy_config import DifferentialPrivacy
from tests.rejections import rejects

GIVEN = DifferentialPrivacy(name="dp", noise_multiplier=1.5, max_grad_norm=0.25)


def plan(config: DifferentialPrivacy, *, size: int = 400):
    phase = MethodPhase(method="full", steps=7)
    return make_plan(config, num_examples=size, expected_batch_size=20, phases=[phase])


def test_a_plan_is_the_configuration_and_nothing_else() -> None:
    made = plan(GIVEN)
    assert (made.sample_rate, made.steps, made.delta) == (20 / 400, 7, 2e-4)
    assert (made.noise_multiplier, made.calibration) == (1.5, None)
    (phase,) = made.phases
    assert (phase.method, phase.steps, phase.max_grad_norm) == ("full", 7, 0.25)
    assert phase.sensitivity == 0.25
    assert (made.sampler, made.neighboring_relation) == ("poisson", "add_or_remove_one")


@pytest.mark.parametrize(
    ("given", "rule", "delta", "source"),
    [
        (None, "own_data", 2e-4, "own_data"),
        (None, "published", 1 / 800, "published"),
        (1 / 800, "published", 1 / 800, "given"),
        (2e-4, "own_data", 2e-4, "given"),
    ],
)
def test_a_plan_knows_who_chose_its_delta(
    given: float | None, rule: str, delta: float, source: str
) -> None:
    made = make_plan(
        GIVEN.replace(delta=given),
        num_examples=400,
        expected_batch_size=20,
        phases=[MethodPhase(method="full", steps=7)],
        delta_rule=rule,
    )
    assert (made.delta, made.delta_source) == (delta, source)


@pytest.mark.usefixtures("shared_accounting")
def test_the_noise_is_calibrated_to_epsilon_by_the_accountant_asked_for() -> None:
    target = GIVEN.replace(eps=3.0, noise_multiplier=None, accountant="rdp", delta=1e-4)
    made = plan(target)
    assert made.delta == 1e-4
    assert made.calibration is not None
    assert made.calibration.accountant == "rdp"
    assert 2.98 <= made.calibration.epsilon <= 3.0


def test_a_delta_above_one_over_the_examples_needs_permission() -> None:
    large = GIVEN.replace(delta=0.01)
    with rejects("privacy.delta", 0.01):
        plan(large)
    assert plan(large.replace(allow_large_delta=True)).delta == 0.01
    assert plan(GIVEN.replace(delta=1 / 400)).delta == 1 / 400


def test_phases_share_noise_and_sample_rate_and_cost_what_one_run_of_their_steps_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def calibrate(**settings: object) -> tuple[float, Calibration]:
        asked.append(settings)
        return 2.5, Calibration(accountant="rdp", epsilon=2.99, grid="")

    monkeypatch.setattr(planning, "calibrate_noise_multiplier", calibrate)
    config = GIVEN.replace(eps=3.0, noise_multiplier=None, clipping="automatic")
    phases = [
        MethodPhase(method="full", steps=3),
        MethodPhase(method="bitfit", steps=4, max_grad_norm=0.5),
    ]
    numbers = {"num_examples": 400, "expected_batch_size": 20}
    made = make_plan(config, phases=phases, **numbers)
    whole = [MethodPhase(method="full", steps=7)]
    one = make_plan(config, phases=whole, **numbers)
    assert (made.steps, made.noise_multiplier) == (7, 2.5)
    assert made.event() == one.event() and asked[0] == asked[1]
    assert [(p.method, p.steps, p.max_grad_norm, p.sensitivity) for p in made.phases] == [
        ("full", 3, 0.25, 0.25),
        ("bitfit", 4, 0.5, 0.5),
    ]


@pytest.mark.parametrize(
    ("noise_multiplier", "refused"),
    [(0.0533, True), (0.0690, True), (0.0733, False), (0.30, False)],
)
def test_trust_rule_6_noise_so_small_that_its_missing_tails_take_part_of_delta_is_refused(
    noise_multiplier, refused
) -> None:
    """Q T Phi(1/sigma - 18.8) > delta / 1000, with q T = 0.35 and delta = 1/800.

    Phi(1/0.0690 - 18.8) = Phi(-4.31) = 8.3e-6; Phi(1/0.0733 - 18.8) = Phi(-5.16) = 1.3e-7.
    """
    config = GIVEN.replace(noise_multiplier=noise_multiplier)
    missing = 0.35 * norm.cdf(1 / noise_multiplier - 18.8)
    assert (missing > 1 / 800 / 1000) == refused
    if not refused:
        assert plan(config).noise_multiplier == noise_multiplier
        return
    with rejects("privacy.noise_multiplier", noise_multiplier):
        plan(config)
