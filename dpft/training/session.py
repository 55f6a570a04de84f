"""A training session: the loop with its checkpoints, diagnostics and progress, in the safe order.

A checkpoint of step 0 is complete before the first ledger line. At the end: last step, final
checkpoint, model, the ledger's closing line, and then the secret generator states are deleted
(DESIGN trust rule 4).
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpft.errors import InputError
from dpft.files import private_folder
from dpft.methods.base import Method, MethodPhase
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.ledger import Ledger
from dpft.privacy.plan import PrivacyPlan
from dpft.privacy.randomness import make_randomness
from dpft.privacy.settings import DifferentialPrivacy
from dpft.training.checkpoint import Trained, delete_generator_states, save_checkpoint
from dpft.training.diagnostics import Diagnostics
from dpft.training.loop import Records, StepEngine, StepStatistics, train
from dpft.training.optimizers import (
    OptimizerConfig,
    SchedulerConfig,
    make_optimizer,
    make_scheduler,
)
from dpft.training.ordinary import OrdinaryEngine
from dpft.training.progress import StepProgress
from dpft.training.settings import TrainingConfig

LEDGER = "ledger.jsonl"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Session:
    """Everything a run trains with, private or not."""

    folder: Path
    """The run's folder; it exists."""
    model: nn.Module
    """Prepared by ``method``."""
    method: Method
    phases: tuple[MethodPhase, ...]
    """The method's, of the steps to take."""
    records: Records
    settings: TrainingConfig
    optimizer: OptimizerConfig
    scheduler: SchedulerConfig
    save_model: Callable[[], None]
    """Writes the trained model where it is released from."""
    num_examples: int
    """The public number of training examples."""
    show_diagnostics: bool
    """Whether to log the mean training loss of each step, which epsilon does not cover."""


def train_privately(
    session: Session,
    plan: PrivacyPlan,
    privacy: DifferentialPrivacy,
    *,
    epsilon_after: Callable[[int], float],
) -> None:
    """Takes the plan's steps; leaves ledger, checkpoint and model in the run's folder.

    Raises:
        InputError: The folder has a ledger already.
        RunError: A weight is no longer finite.
    """
    session.method.begin_step(session.model, 0)
    randomness = make_randomness(
        session.records.device, privacy.noise_seed, secure_noise=privacy.secure_noise
    )
    with Ledger(session.folder / LEDGER) as ledger:
        engine = PrivacyEngine(
            session.model,
            plan=plan,
            ledger=ledger,
            randomness=randomness,
            engine=privacy.engine,
            groups=privacy.groups,
            memory_mb=privacy.clipper_memory_mb,
            loss_scale=session.settings.backward_scale,
        )

        def private_state() -> dict[str, Any]:
            return {
                "ledger": {"lines": ledger.lines, "head": ledger.head},
                "generators": engine.generator_states(),
            }

        _train(
            session,
            engine,
            steps=plan.steps,
            private_state=private_state,
            non_finite=lambda: engine.non_finite,
            max_grad_norm=_one_max_grad_norm(plan),
            epsilon_after=epsilon_after,
        )
        session.save_model()
        ledger.close()
    delete_generator_states(private_folder(session.folder) / "checkpoints")


def train_ordinarily(session: Session, steps: int) -> None:
    """Takes ``steps`` ordinary, non-private steps; leaves checkpoint and model.

    Raises:
        RunError: A weight is no longer finite.
    """
    session.method.begin_step(session.model, 0)
    engine = OrdinaryEngine(
        session.model,
        steps=steps,
        batch_size=session.settings.expected_batch_size,
        seed=session.settings.seed,
        loss_scale=session.settings.backward_scale,
    )
    _train(
        session,
        engine,
        steps=steps,
        private_state=dict,
        non_finite=lambda: 0,
        max_grad_norm=None,
        epsilon_after=None,
    )
    session.save_model()


def _train(
    session: Session,
    engine: StepEngine,
    *,
    steps: int,
    private_state: Callable[[], Mapping[str, Any]],
    non_finite: Callable[[], int],
    max_grad_norm: float | None,
    epsilon_after: Callable[[int], float] | None,
) -> None:
    """Runs the loop between the first and the last checkpoint."""
    settings, private = session.settings, private_folder(session.folder)
    trained = _trained(session, steps)
    diagnostics = Diagnostics(private, max_grad_norm=max_grad_norm)
    diagnostics.write_size(session.records, num_examples=session.num_examples)
    progress = StepProgress(
        steps=steps,
        expected_batch_size=settings.expected_batch_size,
        epsilon_after=epsilon_after,
    )

    def save(step: int) -> None:
        folder = private / "checkpoints"
        save_checkpoint(folder, step, trained, keep=settings.keep, **private_state())

    def after_step(statistics: StepStatistics) -> None:
        step = statistics.step
        diagnostics.write(statistics, non_finite=non_finite())
        if session.show_diagnostics and statistics.losses:
            loss = float(torch.cat(statistics.losses).mean())
            logger.info("step %d: mean training loss %.4f (not private)", step, loss)
        if step == steps or (settings.checkpoint_every and step % settings.checkpoint_every == 0):
            save(step)
        progress.advance(step)

    save(0)
    try:
        with progress:
            train(
                session.model,
                session.records,
                engine=engine,
                optimizer=trained.optimizer,
                scheduler=trained.scheduler,
                after_step=after_step,
                hooks=session.method,
            )
    finally:
        diagnostics.close()


def learning_rate_factor(
    phases: Sequence[MethodPhase], learning_rate: float
) -> Callable[[int], float] | None:
    """Returns what multiplies ``learning_rate`` at each step (counted from 0); None: nothing does.

    Raises:
        InputError: A phase has a rate of its own and ``learning_rate`` is 0.
    """
    given = [phase.learning_rate for phase in phases if phase.learning_rate is not None]
    if not given:
        return None
    if learning_rate == 0:
        raise InputError(
            f"train.learning_rate must be positive where a phase has a learning rate of its own, "
            f"got 0 and {given[0]:g}; give both, or neither."
        )
    rates = [learning_rate if p.learning_rate is None else p.learning_rate for p in phases]
    ends = list(accumulate(phase.steps for phase in phases))

    def factor(step: int) -> float:
        # The schedule is asked once more after the last step.
        return rates[min(bisect_right(ends, step), len(rates) - 1)] / learning_rate

    return factor


def _one_max_grad_norm(plan: PrivacyPlan) -> float | None:
    """Returns the norm above which a gradient is clipped, where all phases share one."""
    norms = {phase.max_grad_norm for phase in plan.phases}
    return norms.pop() if plan.clipping == "flat" and len(norms) == 1 else None


def _trained(session: Session, steps: int) -> Trained:
    optimizer = make_optimizer(
        session.method.moved_parameters(session.model),
        session.optimizer,
        learning_rate=session.settings.learning_rate,
        weight_decay=session.settings.weight_decay,
    )
    factor = learning_rate_factor(session.phases, session.settings.learning_rate)
    scheduler = make_scheduler(optimizer, session.scheduler, steps=steps, factor=factor)
    return Trained(model=session.model, optimizer=optimizer, scheduler=scheduler)
