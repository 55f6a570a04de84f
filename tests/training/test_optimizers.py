import pytest
import torch
from torch import nn

from dpft.errors import InputError
from dpft.training.optimizers import (
    OptimizerConfig,
    SchedulerConfig,
    make_optimizer,
    make_scheduler,
)


def optimizer_of(parameter: nn.Parameter, *, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    return make_optimizer(
        [parameter], OptimizerConfig(), learning_rate=0.1, weight_decay=weight_decay
    )


def test_a_step_is_that_of_adam_on_the_gradient_it_is_given() -> None:
    """Kingma and Ba 2015: the first step has size lr in the direction of the gradient's sign."""
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, -0.5])
    optimizer_of(parameter).step()
    assert parameter.tolist() == pytest.approx([-0.1, 0.1], rel=1e-5)


def test_weight_decay_is_decoupled_from_the_gradient() -> None:
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.zeros(1)
    optimizer_of(parameter, weight_decay=0.5).step()
    assert parameter.item() == pytest.approx(1 - 0.1 * 0.5)


def rates(config: SchedulerConfig, steps: int) -> list[float]:
    optimizer = optimizer_of(nn.Parameter(torch.zeros(1)))
    scheduler = make_scheduler(optimizer, config, steps=steps)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_the_constant_schedule_stays() -> None:
    assert rates(SchedulerConfig(), 4) == [0.1] * 4


def test_the_linear_schedule_warms_up_and_falls_towards_zero() -> None:
    found = rates(SchedulerConfig(name="linear", warmup_steps=2), 6)
    assert found == pytest.approx([0.0, 0.05, 0.1, 0.075, 0.05, 0.025])


@pytest.mark.parametrize(
    ("make", "given", "sentence"),
    [
        (OptimizerConfig, {"name": "sgd"}, "optimizer.name must be one of adamw, got 'sgd'"),
        (OptimizerConfig, {"beta1": 1.0}, r"optimizer.beta1 must be in \[0, 1\), got 1.0"),
        (OptimizerConfig, {"beta2": -0.1}, r"optimizer.beta2 must be in \[0, 1\), got -0.1"),
        (OptimizerConfig, {"eps": 0.0}, "optimizer.eps must be positive, got 0.0"),
        (SchedulerConfig, {"name": "x"}, "scheduler.name must be one of constant, linear"),
        (SchedulerConfig, {"warmup_steps": -1}, "scheduler.warmup_steps must not be negative"),
    ],
)
def test_a_bad_setting_is_refused_by_name(make: type, given: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make(**given)
