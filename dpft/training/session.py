"""A training session: the loop with its checkpoints, diagnostics and progress.

What a private run adds, and in which order, is in ``private_run``.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpft.methods.base import Method, MethodPhase
from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.privacy.witness import Handover
from dpft.run_folder import CHECKPOINTS, private_path
from dpft.training.checkpoint import (
    TrainingState,
    delete_generator_states,
    restore_checkpoint,
    save_checkpoint,
)
from dpft.training.compiling import compilation_of, compiled_calls, private_cache
from dpft.training.diagnostics import Diagnostics
from dpft.training.learning_rates import learning_rate_factor, learning_rate_of
from dpft.training.listeners import PublicStep, StepListener
from dpft.training.loop import StepEngine, StepStatistics, TrainingSet, train
from dpft.training.optimizers import (
    OptimizerConfig,
    SchedulerConfig,
    make_optimizer,
    make_scheduler,
)
from dpft.training.ordinary import OrdinaryEngine
from dpft.training.progress import StepProgress
from dpft.training.resume import ResumePoint
from dpft.training.termination import TERMINATED, termination_requests
from dpft.training.training_config import TrainingConfig

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
    training_set: TrainingSet
    settings: TrainingConfig
    optimizer: OptimizerConfig
    scheduler: SchedulerConfig
    save_model: Callable[[], None]
    """Writes the trained model where it is released from."""
    num_examples: int
    """The public number of training examples."""
    show_diagnostics: bool
    """Whether to log the mean training loss of each step, which epsilon does not cover."""
    listeners: tuple[StepListener, ...] = ()
    """Who else hears of the steps, public quantities only."""
    handover: Handover | None = None
    """To the witness of the ledger's heads; None: there is none."""


def train_ordinarily(session: Session, steps: int, resume_point: ResumePoint | None = None) -> None:
    """Takes ``steps`` ordinary, non-private steps; leaves checkpoint and model.

    Args:
        session: Everything the run trains with.
        steps: The step to end at.
        resume_point: Where the run broke off, to go on from there; None: it begins.

    Raises:
        RunError: A weight is no longer finite.
    """
    training_state = prepare_training_state(session, steps, resume_point)
    done = 0 if resume_point is None else resume_point.checkpoint.step
    session.method.begin_step(session.model, min(done, steps - 1))
    engine = OrdinaryEngine(
        session.model,
        steps=steps,
        batch_size=session.settings.batch_size(session.num_examples),
        seed=session.settings.seed,
        loss_scale=session.settings.backward_scale,
        state=None if resume_point is None else resume_point.checkpoint.read_keys().content,
        steps_taken=done,
    )
    with compiled_calls(session.model, compilation_of(session.training_set)):
        take_steps(
            session,
            engine,
            training_state,
            beside_state=lambda: {"generators": engine.generator_states()},
            goes_on=resume_point is not None,
        )
    session.save_model()
    delete_generator_states(session.folder / CHECKPOINTS)


def prepare_training_state(
    session: Session, steps: int, resume_point: ResumePoint | None
) -> TrainingState:
    """Returns model, optimizer and schedule as they are before the next step.

    Raises:
        StateError: The checkpoint is of another model.
    """
    session.method.begin_step(session.model, 0)
    training_state = _fresh_training_state(session, steps)
    if resume_point is not None:
        restore_checkpoint(resume_point.checkpoint.path, training_state)
    return training_state


def take_steps(
    session: Session,
    engine: StepEngine,
    training_state: TrainingState,
    *,
    beside_state: Callable[[], Mapping[str, Any]],
    goes_on: bool,
    non_finite: Callable[[], int] = lambda: 0,
    max_grad_norm: float | None = None,
    epsilon_after: Callable[[int], SpentEpsilon] | None = None,
) -> None:
    """Runs the loop up to the last checkpoint; SIGTERM ends it after the step it is in.

    Args:
        session: Everything the run trains with.
        engine: Where gradients come from.
        training_state: What its steps move.
        beside_state: What a checkpoint holds beside that, as ``save_checkpoint`` takes it.
        goes_on: Whether the checkpoint to begin with is there already.
        non_finite: How many examples were left out so far; private.
        max_grad_norm: Norm above which a gradient counts as clipped; None: nothing is counted.
        epsilon_after: What is spent once the weights have taken a number of steps; None for a
            non-private run.

    Raises:
        SystemExit: The run was terminated; a checkpoint of its last step is complete.
    """
    diagnostics = Diagnostics(session.folder, max_grad_norm=max_grad_norm, goes_on=goes_on)
    diagnostics.write_size(session.training_set, num_examples=session.num_examples)
    progress = StepProgress(
        steps=engine.steps,
        taken=engine.steps_taken,
        expected_batch_size=session.settings.batch_size(session.num_examples),
        epsilon_after=epsilon_after,
    )

    def save(step: int) -> None:
        keep = session.settings.keep
        folder = private_path(session.folder, CHECKPOINTS)
        save_checkpoint(folder, step, training_state, keep=keep, **beside_state())

    compiles = session.training_set.compile
    with closing(diagnostics), private_cache(session.folder, wanted=compiles):
        if not goes_on:
            save(0)
        with termination_requests() as terminated, progress:
            after_step = AfterStep(
                session=session,
                training_state=training_state,
                last_step=engine.steps,
                diagnostics=diagnostics,
                non_finite=non_finite,
                save=save,
                progress=progress,
                epsilon_after=epsilon_after,
                terminated=terminated,
            )
            for listener in session.listeners:
                listener.begin(engine.steps_taken)
            train(
                session.model,
                session.training_set,
                engine=engine,
                optimizer=training_state.optimizer,
                scheduler=training_state.scheduler,
                after_step=after_step,
                hooks=session.method,
            )


@dataclass(frozen=True, kw_only=True)
class AfterStep:
    """What a run does when its weights have moved, in this order: write down, save, show, end."""

    session: Session
    training_state: TrainingState
    last_step: int
    """The step that the run ends at."""
    diagnostics: Diagnostics
    non_finite: Callable[[], int]
    """How many examples were left out so far; private."""
    save: Callable[[int], None]
    """Writes the checkpoint of a step."""
    progress: StepProgress
    epsilon_after: Callable[[int], SpentEpsilon] | None
    """What a number of steps has spent; None for a non-private run."""
    terminated: Callable[[], bool]
    """Whether SIGTERM has come."""

    def __call__(self, statistics: StepStatistics) -> None:
        """Ends a step.

        Args:
            statistics: What the step says of its records; private.

        Raises:
            SystemExit: The run was terminated; a checkpoint of the step is complete.
        """
        step = statistics.step
        self._write_diagnostics(statistics)
        if self._checkpoint_is_due(step):
            self.save(step)
        self.progress.advance(step)
        self._tell_listeners(step)
        if self.terminated() and step < self.last_step:
            raise SystemExit(TERMINATED)

    def _write_diagnostics(self, statistics: StepStatistics) -> None:
        self.diagnostics.write(statistics, non_finite=self.non_finite())
        if self.session.show_diagnostics and statistics.losses:
            loss = float(torch.cat(statistics.losses).mean())
            logger.info("step %d: mean training loss %.4f (not private)", statistics.step, loss)

    def _checkpoint_is_due(self, step: int) -> bool:
        every = self.session.settings.checkpoint_every
        is_nth = every is not None and step % every == 0
        return step == self.last_step or is_nth or self.terminated()

    def _tell_listeners(self, step: int) -> None:
        if not self.session.listeners:
            return
        public = PublicStep(
            step=step,
            last_step=self.last_step,
            learning_rate=learning_rate_of(self.training_state, step),
            epsilon=None if self.epsilon_after is None else self.epsilon_after(step),
        )
        for listener in self.session.listeners:
            listener.after_step(public)


def _fresh_training_state(session: Session, steps: int) -> TrainingState:
    optimizer = make_optimizer(
        session.method.moved_parameters(session.model),
        session.optimizer,
        learning_rate=session.settings.learning_rate,
        weight_decay=session.settings.weight_decay,
    )
    factor = learning_rate_factor(session.phases, session.settings.learning_rate)
    scheduler = make_scheduler(optimizer, session.scheduler, steps=steps, factor=factor)
    return TrainingState(model=session.model, optimizer=optimizer, scheduler=scheduler)
