"""DP-AdamBC against a loop by hand, closed forms, and the noise that a run really draws."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpft.config.schema import check_noise_known
from dpft.errors import InputError
from dpft.methods.base import METHODS
from dpft.privacy.mechanisms.banded import BandedConfig
from dpft.privacy.mechanisms.base import MechanismConfig
from dpft.privacy.mechanisms.dp_sgd import DPSGDConfig
from dpft.privacy.plan import Phase
from dpft.privacy.privacy_config import NoPrivacy
from dpft.training import loop as loop_module
from dpft.training import optimizer_steps
from dpft.training.checkpoint import find_resume_point
from dpft.training.optimizer_steps import BiasCorrectedAdam, tell_noise
from dpft.training.optimizers import AdamBC, AdamW
from dpft.training.private_run import train_privately
from tests.slowness import slow_but
from tests.training.killed_runs import killed
from tests.training.toy import plan, privacy, session, spent, tiny_model

STD = 0.5
GRADIENTS = ([3.0, -0.5, 0.01], [1.0, 2.0, -0.4], [-2.0, 0.3, 0.2])


def made(parameter: nn.Parameter, config: AdamBC, weight_decay: float = 0.0) -> BiasCorrectedAdam:
    optimizer = config.make([parameter], learning_rate=0.1, weight_decay=weight_decay)
    assert isinstance(optimizer, BiasCorrectedAdam)
    return optimizer


def moved(config: AdamBC, stds: list[float], weight_decay: float = 0.0) -> list[float]:
    parameter = nn.Parameter(torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64))
    optimizer = made(parameter, config, weight_decay)
    for gradient, std in zip(GRADIENTS, stds, strict=True):
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        tell_noise(optimizer, std)
        optimizer.step()
    return parameter.tolist()


def by_hand(config: AdamBC, std: float, weight_decay: float) -> list[float]:
    """Tang et al. 2023, Algorithm 1, number by number, with AdamW's weight decay before it."""
    weights = [1.0, -1.0, 0.5]
    m, v = [0.0] * 3, [0.0] * 3
    for t, gradient in enumerate(GRADIENTS, start=1):
        for i, g in enumerate(gradient):
            m[i] = config.beta1 * m[i] + (1 - config.beta1) * g
            v[i] = config.beta2 * v[i] + (1 - config.beta2) * g * g
            m_hat = m[i] / (1 - config.beta1**t)
            v_hat = v[i] / (1 - config.beta2**t)
            floor = config.floor * std**2
            weights[i] -= 0.1 * weight_decay * weights[i]
            weights[i] -= 0.1 * m_hat / math.sqrt(max(v_hat - std**2, floor))
    return weights


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("config", [AdamBC(), AdamBC(beta1=0.5, beta2=0.7, floor=0.02)])
def test_its_steps_are_those_of_the_algorithm(config: AdamBC, weight_decay: float) -> None:
    expected = by_hand(config, STD, weight_decay)
    assert moved(config, [STD] * 3, weight_decay) == pytest.approx(expected, rel=1e-12)


def test_where_the_noise_changes_the_mean_of_its_variance_is_taken_away() -> None:
    """By hand, after two steps of noise 0.1 and one of 0.4 with beta2 = 0.5."""
    config = AdamBC(beta1=0.0, beta2=0.5, floor=0.1)
    parameter = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = made(parameter, config)
    for std in (0.1, 0.1, 0.4):
        before = parameter.item()
        parameter.grad = torch.ones(1, dtype=torch.float64)
        tell_noise(optimizer, std)
        optimizer.step()
    noise = (0.01 * 0.125 + 0.01 * 0.25 + 0.16 * 0.5) / 0.875
    assert parameter.item() - before == pytest.approx(-0.1 / math.sqrt(1 - noise), rel=1e-12)


class Launches(TorchDispatchMode):
    """Counts operations on tensors; those on numbers are the host's."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.count += any(not isinstance(each, Tensor) or each.dim() > 0 for each in args[:1])
        return func(*args, **(kwargs or {}))


def test_tensors_that_are_alike_move_together() -> None:
    """On a device each operation is a launch: as many for a hundred tensors as for two."""
    found = []
    for count in (2, 100):
        parameters = [nn.Parameter(torch.ones(3, 2)) for _ in range(count)]
        optimizer = AdamBC().make(parameters, learning_rate=0.1, weight_decay=0.1)
        for parameter in parameters:
            parameter.grad = torch.ones(3, 2)
        tell_noise(optimizer, 1.0)
        optimizer.step()
        tell_noise(optimizer, 1.0)
        with Launches() as launches:
            optimizer.step()
        found.append(launches.count)
    assert found[0] == found[1] < 20


def test_with_hardly_any_noise_it_is_adam() -> None:
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    adam = AdamW().make([parameters[0]], learning_rate=0.1, weight_decay=0.2)
    corrected = made(parameters[1], AdamBC(), 0.2)
    for gradient in GRADIENTS:
        for parameter in parameters:
            parameter.grad = torch.tensor(gradient)
        tell_noise(corrected, 1e-9)
        adam.step()
        corrected.step()
    torch.testing.assert_close(*parameters)


def test_the_corrected_second_moment_is_that_of_the_gradient_without_its_noise() -> None:
    """Its mean is the square of the gradient, where Adam's has the variance of the noise, too.

    E[(g + z)^2] = g^2 + (sigma C / B)^2. The mean over 200,000 numbers is off by about
    sqrt((4 g^2 s^2 + 2 s^4) / (199 * 200,000)), a few 1e-4.
    """
    signal, std = 0.6, 1.0
    config = AdamBC(beta1=0.0, beta2=0.99, floor=1e-9)
    parameter = nn.Parameter(torch.zeros(200_000))
    optimizer = made(parameter, config)
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        noise = torch.randn(parameter.shape, generator=generator) * std
        parameter.grad = signal + noise
        tell_noise(optimizer, std)
        optimizer.step()
    state = optimizer.state[parameter]
    seen = 1 - config.beta2**400
    adams = float(state["exp_avg_sq"].mean()) / seen
    assert adams == pytest.approx(signal**2 + std**2, abs=2e-3)
    assert adams - float(state["noise_moment"]) / seen == pytest.approx(signal**2, abs=2e-3)


def test_a_step_without_the_noise_of_that_step_is_refused() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = made(parameter, AdamBC())
    parameter.grad = torch.ones(1)
    tell_noise(optimizer, 1.0)
    optimizer.step()
    with pytest.raises(RuntimeError, match="must follow tell_noise"):
        optimizer.step()
    with pytest.raises(ValueError, match="noise_std must be positive, got 0"):
        tell_noise(optimizer, 0.0)


def own_session(folder, **settings):
    return replace(session(folder, tiny_model(), **settings), optimizer=AdamBC())


def two_phases():
    first = Phase(method="full", steps=2, max_grad_norm=0.1, sensitivity=0.1)
    return replace(
        plan(), phases=(first, replace(first, steps=3, max_grad_norm=0.4, sensitivity=0.4))
    )


@pytest.mark.parametrize(
    ("own_plan", "micro_batch_size"),
    slow_but([(two_phases, 4)], product([plan, two_phases], [1, 4])),
)
def test_a_run_tells_it_the_noise_that_each_step_really_has(
    tmp_path, monkeypatch, own_plan, micro_batch_size
) -> None:
    """Held against what is left in the gradients of steps whose records have none to give."""
    told: list[float] = []
    drawn: list[float] = []

    def listen(optimizer, noise_std: float) -> None:
        told.append(noise_std)
        gradients = [p.grad.flatten() for g in optimizer.param_groups for p in g["params"]]
        drawn.append(float(torch.cat(gradients).double().square().mean().sqrt()))
        tell_noise(optimizer, noise_std)

    monkeypatch.setattr("dpft.training.session.tell_noise", listen)
    losses = loop_module.per_example_losses
    monkeypatch.setattr(
        loop_module, "per_example_losses", lambda model, batch: losses(model, batch) * 0
    )
    run = own_session(tmp_path, micro_batch_size=micro_batch_size)
    train_privately(run, own_plan(), privacy(), epsilon_after=spent)
    expected = [0.1 / 6] * 5 if own_plan is plan else [0.1 / 6] * 2 + [0.4 / 6] * 3
    assert told == pytest.approx(expected), "noise multiplier 1, over the expected batch size 6"
    numbers = sum(p.numel() for p in run.model.parameters())
    assert drawn == pytest.approx(told, rel=5 / math.sqrt(2 * numbers)), "five deviations"


def go(folder, resume_point=None):
    run = own_session(folder, checkpoint_every=2)
    train_privately(run, two_phases(), privacy(), epsilon_after=spent, resume_point=resume_point)
    return {name: value.detach().clone() for name, value in run.model.state_dict().items()}


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path) -> None:
    undisturbed = go(tmp_path / "a")
    with killed(loop_module, "check_weights", 4):
        go(tmp_path / "b")
    resumed = go(tmp_path / "b", find_resume_point(tmp_path / "b"))
    assert undisturbed and all(torch.equal(undisturbed[n], resumed[n]) for n in undisturbed)


@pytest.mark.parametrize(
    ("mechanism", "method", "config", "sentence"),
    [
        (DPSGDConfig(), "full", NoPrivacy(name="none"), "needs privacy=dp, .* privacy=none"),
        (DPSGDConfig(), "rgp", privacy(), "needs a method whose noise .* method=rgp"),
        (BandedConfig(), "full", privacy(), "needs mechanism=dp_sgd, .* mechanism=banded"),
    ],
)
def test_it_is_refused_where_the_noise_is_not_known(
    mechanism: MechanismConfig, method: str, config, sentence: str
) -> None:
    chosen = METHODS.named(method)(name=method)
    with pytest.raises(InputError, match=f"optimizer=adam_bc {sentence}"):
        check_noise_known(mechanism, chosen, config, AdamBC())
    check_noise_known(mechanism, chosen, config, AdamW())
    check_noise_known(DPSGDConfig(), METHODS.named("full")(name="full"), privacy(), AdamBC())


@pytest.mark.parametrize("floor", [0.0, -1.0])
def test_a_floor_that_is_none_is_refused(floor: float) -> None:
    with pytest.raises(InputError, match=f"optimizer.floor must be positive, got {floor}"):
        AdamBC(floor=floor)


def test_what_is_read_on_the_host_stays_there() -> None:
    from dpft.training.training_state import ON_HOST

    assert optimizer_steps.NOISE_MOMENT in ON_HOST
