import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpft.methods.base import MethodPhase
from dpft.models.losses import per_example_losses
from dpft.parallel.ranks import Ranks
from dpft.privacy.plan import ClippingPlan
from dpft.privacy.plan_building import make_clipping_plan
from dpft.privacy.privacy_config import NoPrivacy
from dpft.privacy.randomness import make_randomness
from dpft.privacy.sampling import PoissonSampler
from dpft.training import nonprivate as ordinary_module
from dpft.training.checkpoint import find_resume_point
from dpft.training.listeners import PublicStep
from dpft.training.nonprivate import ClippedEngine, OrdinaryEngine
from dpft.training.optimizers import SGD
from tests.parallel.forked import on_ranks
from tests.self_checks import checked_rows
from tests.slowness import slow
from tests.training.toy import session, tiny_model, train_ordinarily, training_set

How = tuple[ClippingPlan, NoPrivacy]
INPUTS = torch.arange(6.0)[:, None]


def outputs_of(model, rows):
    """Take a model's output as the loss."""
    return model(rows)[:, 0]


def engine(model, batch_size=4, losses_of=outputs_of):
    return OrdinaryEngine(model, losses_of, steps=3, batch_size=batch_size, seed=0)


def test_an_epoch_visits_every_record_once():
    own = engine(nn.Linear(1, 1), batch_size=2)
    assert sorted(own.draw(6) + own.draw(6) + own.draw(6)) == [0, 1, 2, 3, 4, 5]


def test_the_gradient_is_that_of_the_mean_loss_however_the_batch_is_cut():
    model = nn.Linear(1, 1)
    own = engine(model, batch_size=6)
    own.draw(6)
    for rows in (slice(0, 4), slice(4, 6)):
        result = own.accumulate(INPUTS[rows])
        assert torch.equal(result.losses, outputs_of(model, INPUTS[rows]).detach())
        assert result.norms is None
    own.finish_step()
    assert torch.allclose(model.weight.grad, INPUTS.mean(0, keepdim=True))


def test_losses_are_computed_under_autocast():
    seen = []

    def losses_of(model, rows):
        outputs = model(rows)
        seen.append(outputs.dtype)
        return outputs[:, 0].float()

    model = nn.Linear(1, 1)
    own = OrdinaryEngine(
        model, losses_of, steps=1, batch_size=6, seed=0, autocast_dtype=torch.bfloat16
    )
    own.draw(6)
    own.accumulate(INPUTS)
    assert seen == [torch.bfloat16]


def test_a_batch_larger_than_the_data_takes_all_of_it():
    assert sorted(engine(nn.Linear(1, 1), batch_size=99).draw(6)) == [0, 1, 2, 3, 4, 5]


def test_what_trains_may_change_and_no_old_gradient_is_left():
    model = nn.Linear(1, 1)
    own = engine(model, batch_size=6)
    for trains in (True, False):
        model.weight.requires_grad_(trains)
        own.draw(6)
        own.accumulate(INPUTS)
        own.finish_step()
        assert (model.weight.grad is not None) == trains and model.bias.grad is not None


def shared_step(ranks: Ranks) -> tuple[Tensor, bool, int]:
    """A step of which the first rank has every record, and the last parameter is not used."""
    ordinary_module.STRETCH = 100
    wide, unused = nn.Linear(1, 2000, bias=False), nn.Linear(1, 1)
    own = OrdinaryEngine(
        nn.ModuleList([wide, unused]),
        lambda model, rows: wide(rows).sum(1),
        steps=1,
        batch_size=6,
        seed=0,
        ranks=ranks,
    )
    own.draw(6)
    if ranks.is_rank_0:
        own.accumulate(INPUTS)
    before = ranks.traffic.sent_bytes
    own.finish_step()
    return wide.weight.grad, unused.weight.grad is None, ranks.traffic.sent_bytes - before


@pytest.mark.slow
def test_ranks_share_a_step_and_send_each_number_about_twice():
    """Also those of one large parameter, and from a rank that has no records."""
    for gradient, is_left_alone, sent in on_ranks(shared_step, 2):
        assert torch.equal(gradient, INPUTS.mean().expand(2000, 1)) and is_left_alone
        assert sent < 1.1 * 4 * (2000 + 2000 / 2)


NORM, STEPS, RECORDS = 0.05, 4, 12


def without_dropout() -> nn.Module:
    model = tiny_model()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def clipped(clipping: str = "flat", engine: str = "auto", **settings: Any) -> How:
    privacy = NoPrivacy(
        name="none", max_grad_norm=NORM, clipping=clipping, engine=engine, **settings
    )
    phases = (MethodPhase(method="full", steps=STEPS),)
    plan = make_clipping_plan(privacy, num_examples=RECORDS, expected_batch_size=6, phases=phases)
    return plan, privacy


def trained(folder: Path, how: How | None, **settings: Any) -> dict[str, Tensor]:
    """Return the weights after a run without noise, by SGD: Adam would hide a gradient's scale."""
    own = replace(session(folder, without_dropout(), **settings), optimizer=SGD())
    train_ordinarily(own, STEPS, clipped=how)
    return {name: value.detach().clone() for name, value in own.model.named_parameters()}


def one_at_a_time(factor: Callable[[float], float]) -> dict[str, Tensor]:
    """Return what ``trained`` should, by a loop over single records, and nothing of the engine."""
    model, records = without_dropout(), training_set()
    draws = make_randomness(torch.device("cpu"), 0).sampling
    moved = dict(model.named_parameters())
    sizes = []
    for step in range(STEPS):
        sums = {name: torch.zeros_like(value) for name, value in moved.items()}
        drawn = PoissonSampler(clipped()[0].sample_rate, draws).draw(RECORDS, step=step)
        sizes.append(len(drawn))
        for index in drawn:
            (batch,) = records.micro_batches([index])
            (loss,) = per_example_losses(model, batch)
            gradients = torch.autograd.grad(loss, list(moved.values()))
            norm = float(torch.cat([each.flatten() for each in gradients]).norm())
            for name, gradient in zip(moved, gradients, strict=True):
                sums[name] += factor(norm) * gradient
        rate = 1e-2 * (1 - step / STEPS)
        with torch.no_grad():
            for name, value in moved.items():
                value -= rate * sums[name] / 6
    assert len(set(sizes)) > 1, "Poisson draws differ in size, and the divisor does not"
    return {name: value.detach() for name, value in moved.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clipping", "factor"),
    [
        ("flat", lambda norm: min(1, NORM / norm)),
        *slow(("automatic", lambda norm: NORM / (norm + 0.01))),
    ],
)
def test_clipping_without_noise_is_the_loop_over_single_records(
    clipping: str, factor: Callable[[float], float], tmp_path: Path
) -> None:
    expected = one_at_a_time(factor)
    found = trained(tmp_path / "run", clipped(clipping))
    begun = {name: value.detach() for name, value in without_dropout().named_parameters()}
    assert max(float((expected[name] - begun[name]).abs().max()) for name in expected) > 1e-5
    for name, value in expected.items():
        moved = float((value - begun[name]).norm())
        assert float((found[name] - value).norm()) <= 2e-4 * moved + 1e-7, name


@pytest.mark.slow
@pytest.mark.parametrize("clipping", ("flat", "automatic", "automatic_v", "per_layer"))
def test_every_style_clips_without_noise_as_the_oracle_does(clipping: str, tmp_path: Path) -> None:
    fast = trained(tmp_path / "fast", clipped(clipping))
    oracle = trained(tmp_path / "oracle", clipped(clipping, "rows"), micro_batch_size=1)
    ordinary = trained(tmp_path / "ordinary", None)
    assert max(float((fast[name] - oracle[name]).abs().max()) for name in fast) < 1e-7
    assert max(float((fast[name] - ordinary[name]).abs().max()) for name in fast) > 1e-5


@pytest.mark.slow
def test_a_clipped_run_that_broke_off_ends_with_the_same_bits(tmp_path: Path) -> None:
    own = session(tmp_path / "whole", checkpoint_every=2)
    train_ordinarily(own, STEPS, clipped=clipped())
    cut = tmp_path / "cut"
    broken = session(cut, checkpoint_every=2)
    listener = SimpleNamespace(begin=lambda step: None, after_step=stop_at_three)
    with pytest.raises(InterruptedError):
        train_ordinarily(replace(broken, listeners=[listener]), STEPS, clipped=clipped())
    fresh = session(cut, tiny_model(seed=9), checkpoint_every=2)
    point = find_resume_point(cut)
    assert point.checkpoint.step == 2
    assert point.checkpoint.run.clipping.phases[0].max_grad_norm == NORM
    train_ordinarily(fresh, STEPS, point, clipped=clipped())
    for (name, value), again in zip(
        own.model.named_parameters(), fresh.model.parameters(), strict=True
    ):
        assert torch.equal(value, again), name
    assert not (cut / "ledger.jsonl").exists()


def stop_at_three(public: PublicStep) -> None:
    if public.step == 3:
        raise InterruptedError


def test_an_empty_draw_is_a_step_of_gradient_zero() -> None:
    model = nn.Linear(1, 1)
    how, without_noise = clipped()
    plan = how.replace(sample_rate=1e-9)
    options = without_noise.clipping_options()
    own = ClippedEngine(model, outputs_of, plan=plan, options=options, seed=0)
    with own:
        assert own.draw(6) == []
        own.finish_step()
    assert own.steps_taken == 1
    assert torch.equal(model.weight.grad, torch.zeros(1, 1))
    assert torch.equal(model.bias.grad, torch.zeros(1))


def test_an_example_without_a_finite_loss_is_left_out_and_counted() -> None:
    model = nn.Linear(1, 1)
    how, without_noise = clipped()
    plan = how.replace(sample_rate=1.0)
    options = without_noise.clipping_options()
    choices = [checked_rows(model, outputs_of, 1)]
    own = ClippedEngine(model, outputs_of, plan=plan, options=options, seed=0, choices=choices)
    with own:
        own.draw(2)
        own.accumulate(torch.tensor([[1.0], [math.inf]]))
        own.finish_step()
    assert own.non_finite == 1
    assert model.weight.grad is not None and bool(model.weight.grad.isfinite().all())
