"""Signal and noise of a step, against examples one at a time and noise drawn anew."""

import math

import pytest
import torch
from torch import nn

from dpft.data.batches import Batch
from dpft.models.losses import per_example_losses
from dpft.privacy.clipping.sums import rounding_headroom
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.ledger import Ledger
from dpft.privacy.noise import NoiseStream, SignalMeter, add_noise
from dpft.privacy.randomness import make_randomness
from tests.privacy.noise_blocks import block_noise
from tests.privacy.test_engine import PHASES, affine, linear, make_engine, take_step
from tests.privacy.test_ledger import PLAN
from tests.self_checks import checked
from tests.training import toy

CPU = torch.device("cpu")
C, B = 0.1, 6
"""Clipping norm and expected batch size of the toy's plan."""


def source() -> NoiseStream:
    return make_randomness(CPU, noise_seed=1).noise


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl", plan=PLAN) as ledger:
        yield ledger


def tied_model() -> nn.Module:
    """A GPT-2 whose head is its embedding, without dropout."""
    model = toy.tiny_model().eval()
    assert model.lm_head.weight is model.transformer.wte.weight
    return model


def batch_of(indices: list[int]) -> Batch:
    (batch,) = toy.training_set().micro_batches(indices)
    return batch


def clipped_sum(model: nn.Module, indices: list[int]) -> float:
    """The norm of the sum of clipped gradients, one backward pass an example, in float64."""
    parameters, total = list(model.parameters()), 0.0
    for index in indices:
        gradients = torch.autograd.grad(per_example_losses(model, batch_of([index]))[0], parameters)
        flat = torch.cat([gradient.flatten().double() for gradient in gradients])
        total += flat * min(1.0, C * (1 - rounding_headroom(B)) / float(flat.norm()))
    return float(total.norm())


@pytest.mark.slow
def test_signal_is_that_of_examples_one_at_a_time_and_noise_that_of_the_seed(ledger):
    model = tied_model()
    randomness = make_randomness(CPU, noise_seed=1)
    engine = PrivacyEngine(
        model,
        per_example_losses,
        plan=toy.plan(),
        ledger=ledger,
        randomness=randomness,
        choices=[checked(model, per_example_losses, batch_of([0, 3, 1]))],
    )
    for step in range(2):
        with engine:
            drawn = engine.draw(12)
            for start in range(0, len(drawn), 2):
                engine.accumulate(batch_of(drawn[start : start + 2]))
            measured = engine.finish_step()
        expected = clipped_sum(model, drawn) / B
        assert len(drawn) > 2 and measured.signal == pytest.approx(expected, rel=1e-3)
        noise = torch.cat([
            block_noise(source(), parameter.numel(), step=step, parameter=place) * C
            for place, parameter in enumerate(model.parameters())
        ])  # fmt: skip
        assert measured.noise == pytest.approx(float(noise.norm()) / B, rel=1e-12)
        assert measured.ratio == measured.signal / measured.noise
        # a chi-square of as many degrees of freedom as there are numbers, the tied ones once
        count = sum(parameter.numel() for parameter in model.parameters())
        square = (measured.noise / (C / B)) ** 2
        assert abs(square / count - 1) < 5 * math.sqrt(2 / count)


@pytest.mark.parametrize("transposed", [False, True])
def test_every_block_counts_and_the_noisy_sum_is_bit_for_bit_what_it_is_unmeasured(
    transposed, monkeypatch
):
    monkeypatch.setattr("dpft.privacy.noise.BLOCK", 1000)
    sums = []
    for meter in (None, SignalMeter(CPU)):
        parameter = nn.Parameter(torch.zeros(83, 49).t() if transposed else torch.zeros(49, 83))
        parameter.grad = torch.full_like(parameter, 3.0)
        add_noise([parameter], 0.7, source(), step=2, meter=meter)
        sums.append(parameter.grad)
    assert torch.equal(*sums)
    measured = meter.mean(0.7, 4)
    assert measured.signal == pytest.approx(3 * math.sqrt(49 * 83) / 4, rel=1e-12)
    # the noisy sum is rounded, so it gives the noise to some 2^-21 of its deviation
    assert measured.noise == pytest.approx(float((sums[1] - 3).double().norm()) / 4, rel=1e-6)


def test_where_nobody_is_drawn_there_is_noise_and_no_signal(ledger):
    engine = make_engine(linear(), ledger, sample_rate=1e-9)
    with engine:
        assert engine.draw(8) == []
        measured = engine.finish_step()
    assert (measured.signal, measured.ratio) == (0.0, 0.0) and measured.noise > 0


def test_each_phase_is_measured_over_what_trains_in_it(ledger):
    """Eight records whose bias gradients are all 1: clipped at 0.01 each, where it trains alone."""
    model = affine()
    engine = make_engine(model, ledger, sample_rate=1.0, expected_batch_size=40, phases=PHASES)
    with engine:
        take_step(engine, model)
        model.weight.requires_grad_(False)
        drawn = engine.draw(8)
        engine.accumulate(torch.ones(8, 4)[drawn])
        measured = engine.finish_step()
    assert measured.signal == pytest.approx(8 * 0.01 / 40, rel=0.01)
    number = abs(float(block_noise(source(), 1, step=1, parameter=1)))
    assert measured.noise == pytest.approx(number * 1.5 * 0.01 / 40, rel=1e-12)
