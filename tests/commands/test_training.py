"""What is reported and checked before training, and of a run that has ended."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpft.commands.interrupted_run import check_ended
from dpft.commands.run_plan import RunPlan, plan_run, warn_of_guarantee
from dpft.commands.self_check import check_clipper
from dpft.config.schema import TrainConfig
from dpft.data.batches import TextLayout
from dpft.errors import StateError
from dpft.privacy.clipping.clipper import ClippingChoice, PerExampleClipper
from dpft.privacy.plan import Phase
from dpft.training.checkpoint import BoundRun, Checkpoint, ResumePoint, promises
from tests.commands.configs import settings, with_privacy
from tests.training.toy import tiny_model


def configuration(*given: str) -> TrainConfig:
    return settings("task=e2e", "train.steps=3", "task.max_length=12", *given)


@pytest.fixture(scope="module")
def private() -> TrainConfig:
    return configuration("privacy.noise_multiplier=1", "privacy.delta=1e-7")


@pytest.fixture(scope="module")
def ordinary() -> TrainConfig:
    return configuration("privacy=none")


def plan(config: TrainConfig) -> RunPlan:
    return plan_run(config, lambda: 40)


@pytest.mark.slow
def test_a_seed_and_a_large_delta_are_warned_of_and_nothing_else_is(
    private: TrainConfig, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_guarantee(private, plan(private))
    assert caplog.records == []
    config = with_privacy(private, noise_seed=1, num_examples=40000, delta=1 / 40000)
    warn_of_guarantee(config, plan(config))
    delta, seed = [record.message for record in caplog.records]
    assert delta.startswith("delta = 2.5e-05 is equal to") and "reproducible: not private" in seed


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[PerExampleClipper]:
    """The clipper of each self-check; none is carried out."""
    clippers: list[PerExampleClipper] = []

    def check(clipper: PerExampleClipper, *_: Any, **__: Any) -> ClippingChoice:
        clippers.append(clipper)
        return ClippingChoice(f"engine {len(clippers)}")

    monkeypatch.setattr(PerExampleClipper, "self_check", check)
    return clippers


def in_two_phases(config: TrainConfig) -> RunPlan:
    whole = plan(config)
    assert whole.privacy is not None
    phases = tuple(
        Phase(method="full", steps=steps, max_grad_norm=norm, sensitivity=norm)
        for steps, norm in ((2, 0.1), (1, 0.7))
    )
    return replace(whole, privacy=whole.privacy.replace(steps=3, phases=phases))


@pytest.mark.slow
def test_every_phase_has_a_self_check_with_its_own_norm(
    private: TrainConfig, checked: list[PerExampleClipper], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(type(private.method), "begin_step", lambda *given: steps.append(given[-1]))
    model = tiny_model().eval()
    choices = check_clipper(
        private, in_two_phases(private).clipping, model, TextLayout(pad_token_id=0)
    )
    assert [clipper.sensitivity for clipper in checked] == [0.1, 0.7]
    assert [choice.engine for choice in choices] == ["engine 1", "engine 2"]
    assert steps == [0, 2, 0], "the parameters of the first phase are trainable again"
    assert not model.training


def ended(config: TrainConfig, step: int = 3) -> ResumePoint:
    """Where a run stands that has ended, as far as its checkpoint and its ledger tell."""
    guarantee = config.privacy.guarantee
    run = BoundRun(promises=None if guarantee is None else promises(guarantee))
    ledger = None if guarantee is None else SimpleNamespace(closed=True)
    path = Path("private/checkpoints/step")
    return ResumePoint(checkpoint=Checkpoint(path=path, step=step, run=run), ledger=ledger)


@pytest.mark.slow
def test_a_run_without_a_ledger_has_not_ended_before_its_last_step(ordinary: TrainConfig) -> None:
    with pytest.raises(StateError, match="2 of 3"):
        check_ended(ended(ordinary, step=2), plan(ordinary), None)
    check_ended(ended(ordinary), plan(ordinary), None)
