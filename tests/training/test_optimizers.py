import math

import pytest
import torch
from torch import nn

from dpft.methods.base import MethodPhase
from dpft.training.adafactor import T5Adafactor
from dpft.training.optimizers import (
    OPTIMIZERS,
    SGD,
    Adafactor,
    Adam,
    AdamW,
    OptimizerConfig,
    SchedulerConfig,
    learning_rate_factor,
    learning_rate_of,
    make_scheduler,
    schedule_factors,
)
from tests.rejections import rejects
from tests.training.toy import take_steps, tiny_model, training_state

KINDS = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "adafactor": T5Adafactor,
}
GRADIENTS = ([3.0, -0.5], [1.0, 2.0])


def optimizer_of(
    parameter: nn.Parameter, config: OptimizerConfig | None = None, *, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    return (config or AdamW()).make([parameter], learning_rate=0.1, weight_decay=weight_decay)


def trained(config: OptimizerConfig, start: list[float], *, weight_decay: float = 0.0) -> list:
    """The parameter after a step on each of the gradients."""
    parameter = nn.Parameter(torch.tensor(start))
    optimizer = optimizer_of(parameter, config, weight_decay=weight_decay)
    for gradient in GRADIENTS:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    return parameter.tolist()


@pytest.mark.parametrize("config", [AdamW(), Adam()])
def test_a_step_is_that_of_adam_on_the_gradient_it_is_given(config: OptimizerConfig) -> None:
    """Kingma and Ba 2015: the first step has size lr in the direction of the gradient's sign."""
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, -0.5])
    optimizer_of(parameter, config).step()
    assert parameter.tolist() == pytest.approx([-0.1, 0.1], rel=1e-5)


def test_weight_decay_of_adamw_is_decoupled_from_the_gradient() -> None:
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.zeros(1)
    optimizer_of(parameter, weight_decay=0.5).step()
    assert parameter.item() == pytest.approx(1 - 0.1 * 0.5)


def test_weight_decay_of_adam_is_a_part_of_the_gradient() -> None:
    """The gradient becomes 0.5 times the weight; the first step has size lr whatever its size."""
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.zeros(1)
    optimizer_of(parameter, Adam(), weight_decay=0.5).step()
    assert parameter.item() == pytest.approx(1 - 0.1)


def test_sgd_subtracts_the_gradient_times_the_learning_rate() -> None:
    """Abadi et al. 2016, Algorithm 1."""
    assert trained(SGD(), [1.0, 1.0]) == pytest.approx([1 - 0.1 * 4.0, 1 - 0.1 * 1.5])


@pytest.mark.parametrize(
    ("nesterov", "share"),
    # updates g1 and g2 + m g1; Nesterov (1 + m) g1 and g2 + m (g2 + m g1), with m = 0.9
    [(False, (1.9, 1.0)), (True, (1.9 + 0.81, 1.9))],
)
def test_momentum_keeps_a_share_of_the_last_update(
    nesterov: bool, share: tuple[float, float]
) -> None:
    expected = [-0.1 * (share[0] * g1 + share[1] * g2) for g1, g2 in zip(*GRADIENTS, strict=True)]
    assert trained(SGD(momentum=0.9, nesterov=nesterov), [0.0, 0.0]) == pytest.approx(expected)


def test_weight_decay_of_sgd_is_a_part_of_the_gradient() -> None:
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.tensor([2.0])
    optimizer_of(parameter, SGD(), weight_decay=0.5).step()
    assert parameter.item() == pytest.approx(1 - 0.1 * (2.0 + 0.5))


def test_adafactor_moves_a_vector_by_the_learning_rate_times_its_own_size() -> None:
    """Shazeer and Stern 2018, Algorithm 5: the first second moment is g^2, so the update is 1."""
    parameter = nn.Parameter(torch.tensor([3.0, 4.0]))
    parameter.grad = torch.tensor([2.0, -0.5])
    optimizer_of(parameter, Adafactor()).step()
    size = math.sqrt((9 + 16) / 2)
    assert parameter.tolist() == pytest.approx([3 - 0.1 * size, 4 + 0.1 * size])


def test_adafactor_is_given_its_own_settings() -> None:
    config = Adafactor(
        beta2_decay=-0.5, eps1=1e-6, eps2=0.01, clip_threshold=2.0, min_dim_size_to_factor=4
    )
    group = optimizer_of(nn.Parameter(torch.zeros(1)), config).param_groups[0]
    assert (group["decay_rate"], group["eps"]) == (-0.5, (1e-6, 0.01))
    assert (group["clip_threshold"], group["scale_parameter"]) == (2.0, True)
    assert (group["min_dim_size_to_factor"], group["beta1"]) == (4, None)


@pytest.mark.parametrize("name", OPTIMIZERS.entries())
def test_an_optimizer_is_chosen_by_its_name(name: str) -> None:
    config = OPTIMIZERS.named(name)()
    assert config.name == name
    made = optimizer_of(nn.Parameter(torch.zeros(1, 1)), config, weight_decay=0.25)
    assert type(made) is KINDS[name]
    assert (made.param_groups[0]["lr"], made.param_groups[0]["weight_decay"]) == (0.1, 0.25)


def rates(config: SchedulerConfig, steps: int, **settings) -> list[float]:
    optimizer = optimizer_of(nn.Parameter(torch.zeros(1)))
    scheduler = make_scheduler(optimizer, config, steps=steps, **settings)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def warmed_up(step: int, warmup_steps: int, after: float) -> float:
    return 0.1 * (step / warmup_steps if step < warmup_steps else after)


def test_t5s_schedule_is_constant_and_then_falls_without_a_ramp() -> None:
    found = rates(SchedulerConfig(name="rsqrt", warmup_steps=2), 8)
    assert found[:2] == [0.1, 0.1]
    assert found == pytest.approx([0.1 * min(1, math.sqrt(2 / step)) for step in range(1, 9)])
    assert found[7] == pytest.approx(0.05), "at four times the warm-up"


@pytest.mark.parametrize("warmup_steps", [0, 4])
@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("constant", lambda step, warmup: 1.0),
        ("linear", lambda step, warmup: (20 - step) / (20 - warmup)),
        # Loshchilov and Hutter 2017, equation 5, without restarts
        (
            "cosine",
            lambda step, warmup: (1 + math.cos(math.pi * (step - warmup) / (20 - warmup))) / 2,
        ),
        # Vaswani et al. 2017, equation 3; 10,000 is the time scale of T5 (Raffel et al. 2020)
        (
            "inverse_sqrt",
            lambda step, warmup: math.sqrt(warmup / step if warmup else 1e4 / (1e4 + step)),
        ),
    ],
)
def test_a_schedule_follows_its_formula(name: str, after, warmup_steps: int) -> None:
    found = rates(SchedulerConfig(name=name, warmup_steps=warmup_steps), 20)
    expected = [
        warmed_up(step, warmup_steps, after(max(step, warmup_steps), warmup_steps))
        for step in range(20)
    ]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("warmup_steps", [0, 3])
def test_the_time_scale_says_how_fast_the_inverse_square_root_falls(warmup_steps: int) -> None:
    config = SchedulerConfig(name="inverse_sqrt", warmup_steps=warmup_steps, timescale=5)
    found = rates(config, 16 + warmup_steps)
    # 15 steps after the warm-up: 1 / sqrt(1 + 15 / 5)
    assert found[warmup_steps + 15] == pytest.approx(0.1 / 2)


def test_a_factor_multiplies_the_schedule_at_every_step() -> None:
    config = SchedulerConfig(name="linear", warmup_steps=2)
    found = rates(config, 6, factor=lambda step: 10.0 if step < 3 else 0.5)
    assert found == pytest.approx([0.0, 0.5, 1.0, 0.0375, 0.025, 0.0125])


@pytest.mark.parametrize(
    ("make", "given", "key"),
    [
        (OPTIMIZERS.named, {"name": "lion"}, "name"),
        (AdamW, {"beta1": 1.0}, "beta1"),
        (SGD, {"nesterov": True}, "optimizer.momentum"),
        (Adafactor, {"beta2_decay": 0.8}, "beta2_decay"),
        (SchedulerConfig, {"name": "x"}, "name"),
        (SchedulerConfig, {"timescale": 5}, "timescale"),
        (SchedulerConfig, {"name": "rsqrt"}, "warmup_steps"),
    ],
)
def test_a_bad_setting_is_rejected_by_its_key(make, given: dict, key: str) -> None:
    with pytest.raises(ValueError, match=key):
        make(**given)


@pytest.mark.parametrize(
    ("name", "settings", "stays"),
    [
        *[(name, {"beta1": 0.7}, 0.7) for name in ("adam", "adamw")],
        *[("sgd", {"momentum": 0.8}, 0.8), ("sgd", {}, 0.0), ("adafactor", {}, 0.0)],
    ],
)
def test_each_says_how_much_of_a_gradient_stays(name: str, settings: dict, stays: float) -> None:
    assert OPTIMIZERS.named(name)(name=name, **settings).decay_of_mean == stays


def test_the_factors_of_a_schedule_are_those_of_its_steps() -> None:
    assert schedule_factors(SchedulerConfig(name="linear"), 4) == [1.0, 0.75, 0.5, 0.25]
    warm = SchedulerConfig(name="constant", warmup_steps=2)
    assert schedule_factors(warm, 4) == [0.0, 0.5, 1.0, 1.0]


TWO_PHASES = (
    MethodPhase(method="full", steps=2),
    MethodPhase(method="bitfit", steps=2, learning_rate=1.0),
)


def test_each_phase_has_its_learning_rate_times_the_schedules_factor():
    state = training_state(tiny_model(), steps=4, factor=learning_rate_factor(TWO_PHASES, 0.1))
    rates = []
    for _ in range(4):
        rates.append(state.optimizer.param_groups[0]["lr"])
        take_steps(state, 1)
    assert rates == pytest.approx([0.1 * 1, 0.1 * 0.75, 1.0 * 0.5, 1.0 * 0.25])
    assert [learning_rate_of(state, step) for step in (1, 2, 3, 4)] == pytest.approx(rates)


def test_without_a_rate_of_its_own_no_phase_changes_the_schedule():
    assert learning_rate_factor(TWO_PHASES[:1], 0.0) is None


def test_a_rate_of_a_phase_beside_a_rate_of_zero_is_rejected():
    with rejects("train.learning_rate", 0.0):
        learning_rate_factor(TWO_PHASES, 0.0)
