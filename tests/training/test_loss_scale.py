"""An adaptive loss scale: what moves it, what cannot, and a run that loses its examples without."""

import json
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpft.commands.run_cost import check_sharding
from dpft.config.schema import check_adaptive_scale
from dpft.data.batches import Batch
from dpft.models.losses import per_example_losses
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.mechanisms.base import GaussianStep
from dpft.privacy.privacy_config import NoPrivacy
from dpft.training import loop as loop_module
from dpft.training import loss_scale as module
from dpft.training.checkpoint import find_resume_point
from dpft.training.loss_scale import WINDOW, AdaptiveLossScale
from dpft.training.optimizers import AdamW
from dpft.training.training_config import TrainingConfig
from tests.rejections import rejects
from tests.self_checks import check_text
from tests.slowness import slow_but
from tests.training.killed_runs import killed
from tests.training.toy import (
    plan,
    privacy,
    session,
    spent,
    tiny_model,
    train_privately,
    training_set,
)

MECHANISM = GaussianStep(
    name="poisson_sampled_gaussian", noise_multiplier=2.0, sample_rate=0.1, sensitivity=0.5
)
NUMBERS = 1000


class Log:
    """Takes down how many steps it was told, and refuses one."""

    def __init__(self, refused: int | None = None) -> None:
        self.told, self.refused = 0, refused

    def record_step(self, mechanism, gradients) -> None:
        self.told += 1
        if self.told == self.refused:
            raise RuntimeError("refused")


def scales(signal, *, start: float, steps: int = 400, seed: int = 0) -> list[float]:
    """The scale of each step, and the last, where the clipped sum has a length that it decides."""
    generator = torch.Generator().manual_seed(seed)
    scale, found = AdaptiveLossScale(Log(), start=start), [start]
    for step in range(steps):
        noisy = torch.randn(NUMBERS, generator=generator)
        noisy[0] += signal(scale(), step)
        scale.record_step(MECHANISM, [noisy[:400], noisy[400:]])
        found.append(scale())
    return found


def stands(found: list[float]) -> float:
    """The scale of most of the last windows: the one that stands, trials being rare."""
    return max(set(found[-20 * WINDOW :]), key=found[-20 * WINDOW :].count)


@pytest.mark.parametrize(
    ("signal", "start", "ends"),
    [
        (lambda scale, step: 100.0 * (scale <= 2**12), 2.0**24, range(0, 13)),
        (lambda scale, step: 100.0 if scale <= 2**12 else 60.0, 2.0**16, range(0, 13)),
        (lambda scale, step: 100.0 * (scale >= 2**10), 1.0, range(10, 25)),
    ],
    ids=["all overflow", "four in ten overflow", "all vanish"],
)
def test_it_leaves_a_scale_at_which_examples_are_lost(signal, start, ends) -> None:
    for seed in range(3):
        end = stands(scales(signal, start=start, seed=seed))
        assert end in {2.0**power for power in ends}


SIGNALS = {
    "noise alone": lambda scale, step: 0.0,
    "steady": lambda scale, step: 100.0,
    "fading": lambda scale, step: 100.0 * 0.99**step,
    "restless": lambda scale, step: 100.0 * (1 + 0.3 * (-1) ** step),
    "one in ten overflows": lambda scale, step: 100.0 if scale <= 2**12 else 90.0,
}


@pytest.mark.parametrize("name", slow_but([], SIGNALS))
def test_without_sure_evidence_the_configured_scale_stands_and_trials_get_rare(name: str) -> None:
    for seed in range(5):
        found = scales(SIGNALS[name], start=1024.0, steps=1000, seed=seed)
        assert stands(found) == 1024
        assert found.count(1024.0) >= 0.85 * len(found)
        assert set(found) <= {max(1024.0 * factor, 1.0) for factor in (1.0, *module.TRIALS)}


def test_trust_rule_10_the_scale_is_a_function_of_recorded_noisy_gradients_alone() -> None:
    """Whatever the records were: the same noisy gradients give the same scales, bit for bit."""
    quiet, loud = (scales(lambda scale, step: 0.0, start=2.0**16) for _ in range(2))
    assert quiet == loud
    scale = AdaptiveLossScale(Log(refused=WINDOW), start=2.0**16)
    for _ in range(WINDOW - 1):
        scale.record_step(MECHANISM, [torch.ones(NUMBERS)])
    before = scale.state()
    with pytest.raises(
        RuntimeError, match="refused"
    ):  # a step that is not recorded is not released
        scale.record_step(MECHANISM, [torch.full((NUMBERS,), 1e6)])
    assert scale.state() == before
    with pytest.raises(TypeError, match="got shards"):
        scale.record_step(MECHANISM, {"sum": "0x0p+0", "sum_of_squares": "0x0p+0"})


def test_it_goes_on_from_its_state_as_if_nothing_had_happened() -> None:
    whole, broken = (AdaptiveLossScale(Log(), start=2.0**20) for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    for _ in range(7 * WINDOW + 3):
        noisy = torch.randn(NUMBERS, generator=generator) + 3.0 * (whole() <= 2**16)
        whole.record_step(MECHANISM, [noisy])
        broken.record_step(MECHANISM, [noisy])
        state = json.loads(json.dumps(broken.state(), allow_nan=False))
        broken = AdaptiveLossScale(Log(), start=1.0, state=state)
        assert broken() == whole()
    assert broken.state() == whole.state() and whole.state()["scale"] == 2**16


def test_a_new_phase_is_not_compared_with_the_one_before_it() -> None:
    scale = AdaptiveLossScale(Log(), start=1024.0)
    for _ in range(WINDOW):
        scale.record_step(MECHANISM, [torch.randn(NUMBERS)])
    assert scale() != 1024, "a trial"
    for step in range(WINDOW):
        scale.record_step(MECHANISM, [torch.randn(10) + 100])
        assert scale() == 1024 or step == WINDOW - 1


def without_dropout(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return tiny_model().to(dtype).eval()


def four_records() -> Batch:
    (batch,) = training_set().micro_batches(range(4))
    return batch


@pytest.mark.slow
@pytest.mark.parametrize("engine", slow_but(["book_keeping"], ["book_keeping", "rows"]))
def test_a_scale_that_moves_between_micro_batches_changes_no_sum(engine: str) -> None:
    model, now = without_dropout(torch.float64), [1.0]
    sums = []
    for scale in (lambda: now[0], 1.0):
        now[0] = 1.0
        model.zero_grad()
        with PerExampleClipper(
            model, per_example_losses, 0.5, engine=engine, loss_scale=scale
        ) as clipper:
            check_text(clipper, model)
            norms = [clipper.accumulate(four_records())]
            now[0] = 2.0**20
            norms.append(clipper.accumulate(four_records()))
        assert torch.equal(norms[0], norms[1])
        sums.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("scale", "engine"),
    slow_but(
        [],
        product([1.0, 2.0**8, 2.0**16, 2.0**24], ["book_keeping", "rows"]),
    ),
)
def test_whatever_the_scale_a_record_moves_the_sum_by_at_most_the_norm(engine, scale) -> None:
    """A scale may lose a record to an overflow; it never lets one in unclipped."""
    model, norm, now = without_dropout(), 0.5, [1.0]

    def weighted_losses(model, batch_and_weights) -> torch.Tensor:
        batch, weights = batch_and_weights
        return per_example_losses(model, batch) * weights

    def total(weights: list[float]) -> torch.Tensor:
        model.zero_grad()
        now[0] = 1.0
        with PerExampleClipper(
            model, weighted_losses, norm, engine=engine, loss_scale=lambda: now[0],
            autocast=torch.float16,
        ) as clipper:  # fmt: skip
            clipper.self_check((four_records(), torch.ones(4)))
            now[0] = scale
            clipper.accumulate((four_records(), torch.tensor(weights)))
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        return torch.cat([gradient.double().flatten() for gradient in found])

    for loud in (1.0, 100.0, 1e5):
        moved = total([1.0, loud, 1.0, 1.0]) - total([1.0, 0.0, 1.0, 1.0])
        assert moved.norm() <= norm * (1 + 1e-5)


def go(folder, *, resume_point=None, steps: int = 8, start: float = 1024.0) -> dict[str, Any]:
    """A private run in float32, in which a scale changes no bit; where its scale stands."""
    settings = {"precision": "fp16", "adaptive_loss_scale": True, "loss_scale": start}
    own = session(folder, tiny_model(), checkpoint_every=2, **settings)
    train_privately(own, plan(steps), privacy(), epsilon_after=spent, resume_point=resume_point)
    return {
        "weights": torch.cat([p.flatten() for p in own.model.state_dict().values()]).tolist(),
        "scale": find_resume_point(folder).checkpoint.run.loss_scale,
    }


@pytest.mark.slow
def test_trust_rule_9_a_killed_run_goes_on_with_the_scale_it_had(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 3)
    expected = go(tmp_path / "whole")
    with killed(loop_module, "check_weights", 6):
        go(tmp_path / "run")
    point = find_resume_point(tmp_path / "run")
    assert point.checkpoint.run.loss_scale["steps"] == 1, "one step into its second window"
    assert go(tmp_path / "run", resume_point=point) == expected
    assert expected["scale"]["failed"] + (expected["scale"]["scale"] != 1024) == 1, "one trial"


@pytest.mark.slow
def test_a_run_whose_examples_all_overflow_recovers_and_one_with_a_constant_scale_does_not(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(module, "WINDOW", 3)
    left_out = {}
    for adapts in (True, False):
        folder = tmp_path / str(adapts)
        settings = {"precision": "fp16", "adaptive_loss_scale": adapts, "loss_scale": 2.0**24}
        own = session(folder, tiny_model(), **settings)
        quiet = plan(24, noise_multiplier=0.01)
        train_privately(own, quiet, privacy(), epsilon_after=spent)
        lines = (folder / "private/diagnostics.jsonl").read_text().splitlines()
        entries = [entry for line in lines if "step" in (entry := json.loads(line))]
        so_far = [entry["non_finite_examples_so_far"] for entry in entries]
        left_out[adapts] = so_far[-1] - so_far[-9]
        drawn = sum(entry["batch_size"] for entry in entries[-8:])
    assert left_out[False] == drawn, "with a constant scale each overflows to the end"
    assert left_out[True] <= 0.1 * drawn


@pytest.mark.slow
def test_trust_rule_7_a_scale_that_moves_says_so_after_the_last_step_alone(
    tmp_path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(module, "WINDOW", 3)
    caplog.set_level("INFO", logger="dpft")
    said: list[int] = []
    listener = SimpleNamespace(
        begin=lambda step: None,
        after_step=lambda public: said.append(caplog.text.count("train.loss_scale")),
    )
    settings = {"precision": "fp16", "adaptive_loss_scale": True, "loss_scale": 2.0**24}
    own = replace(session(tmp_path, tiny_model(), **settings), listeners=(listener,))
    train_privately(own, plan(24, noise_multiplier=0.01), privacy(), epsilon_after=spent)
    assert said == [0] * 24, "a line in between tells how long fewer than ten steps took"
    assert caplog.text.count("train.loss_scale: 1.67772e+07 -> ") == 1


def test_a_run_without_noisy_gradients_or_in_shards_is_refused() -> None:
    adapts = TrainingConfig(precision="fp16", adaptive_loss_scale=True)
    check_adaptive_scale(privacy(), adapts)
    check_adaptive_scale(NoPrivacy(name="none"), TrainingConfig(precision="fp16"))
    with rejects("train.adaptive_loss_scale", True):
        check_adaptive_scale(NoPrivacy(name="none"), adapts)
    sharded: Any = SimpleNamespace(
        parallel=SimpleNamespace(shards_model=True), optimizer=AdamW(), train=adapts,
        audit=SimpleNamespace(white_box=False),
    )  # fmt: skip
    with rejects("train.adaptive_loss_scale"):
        check_sharding(sharded)
