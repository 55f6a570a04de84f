"""A training session: the loop with its checkpoints, diagnostics and progress.

What a private run adds, and in which order, is in ``private_run``.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.privacy.plan import ClippingPlan, write_plan
from dpft.privacy.privacy_config import Clipping
from dpft.privacy.witness import Handover
from dpft.run_folder import CHECKPOINTS, private_path
from dpft.training.checkpoint import delete_generator_states, save_checkpoint
from dpft.training.compiling import compilation_of, compiled_calls, private_cache
from dpft.training.diagnostics import Diagnostics
from dpft.training.learning_rates import learning_rate_of
from dpft.training.listeners import PublicStep, StepListener
from dpft.training.loop import StepEngine, StepStatistics, train
from dpft.training.ordinary import ClippedEngine, OrdinaryEngine
from dpft.training.progress import StepProgress
from dpft.training.recipe import Recipe, prepare_training_state
from dpft.training.replicas import EndedStep, Start, StepsTogether, share_start
from dpft.training.resume import CLIPPING, ResumePoint
from dpft.training.termination import termination_requests
from dpft.training.training_state import TrainingState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Clipped:
    """How a non-private run clips."""

    plan: ClippingPlan
    privacy: Clipping


@dataclass(frozen=True, kw_only=True)
class Session(Recipe):
    """Everything a run trains with, and where the first of its processes writes."""

    folder: Path
    """The run's folder; it exists."""
    save_model: Callable[[], str | None]
    """Writes the trained model where it is released from; returns its digest, for the ledger."""
    show_diagnostics: bool
    """Whether to log the mean training loss of each step, which epsilon does not cover."""
    listeners: tuple[StepListener, ...] = ()
    """Who else hears of the steps, public quantities only."""
    handover: Handover | None = None
    """To the witness of the ledger's heads; None: there is none."""
    state_at_start: Mapping[str, str] | None = None
    """Digests of the model's state before it ran on any record; None: it has not run yet."""
    foretold: str = ""
    """How long the run will take from here, in words, for a terminal; empty: it is not known."""


def train_ordinarily(
    session: Session,
    steps: int,
    resume_point: ResumePoint | None = None,
    *,
    clipped: Clipped | None = None,
) -> None:
    """Takes ``steps`` non-private steps, without noise; leaves checkpoint and model.

    Args:
        session: Everything the run trains with.
        steps: The step to end at.
        resume_point: Where the run broke off, to go on from there; None: it begins.
        clipped: What is drawn and how each gradient is clipped; None: ordinary training.

    Raises:
        RunError: A weight is no longer finite.
    """
    training_state = prepare_training_state(session, steps, resume_point)
    done = 0 if resume_point is None else resume_point.checkpoint.step
    state = None if resume_point is None else resume_point.checkpoint.read_keys().content
    secrets = {} if clipped is None or state is None else state
    start = Start(done=done, last_step=steps, secrets=secrets, goes_on=resume_point is not None)
    share_start(start, training_state, session.ranks)
    session.method.begin_step(session.model, min(done, steps - 1))
    bound = {} if clipped is None else {CLIPPING: write_plan(clipped.plan)}
    with engine_without_noise(session, steps, done, state, clipped) as engine:
        take_steps(
            session,
            engine,
            training_state,
            beside_state=lambda: {"run": bound, "generators": engine.generator_states()},
            goes_on=resume_point is not None,
            max_grad_norm=None if clipped is None else clipped.plan.one_max_grad_norm,
        )
    session.save_model()
    delete_generator_states(session.folder / CHECKPOINTS)


@contextmanager
def engine_without_noise(
    recipe: Recipe,
    steps: int,
    done: int,
    state: Mapping[str, Any] | None,
    clipped: Clipped | None,
) -> Iterator[OrdinaryEngine | ClippedEngine]:
    """Yields where a non-private run's gradients come from, once the weights are its own.

    Args:
        recipe: What steps are taken with.
        steps: The step to end at.
        done: Steps that the weights have taken.
        state: Of the engine then; None: it draws from the first step on, or, on another process
            than the first of an ordinary run, is handed what that one draws.
        clipped: What is drawn and how each gradient is clipped; None: nothing is clipped.
    """
    seed, scale = recipe.settings.seed, recipe.settings.backward_scale
    compilation = compilation_of(recipe.training_set)
    if clipped is not None:
        options = clipped.privacy.clipping_options(scale)
        yield ClippedEngine(
            recipe.model,
            plan=clipped.plan,
            options=replace(options, compilation=compilation, shards=recipe.shards),
            seed=seed,
            state=state,
            steps_taken=done,
            ranks=recipe.ranks,
            shards=recipe.shards,
        )
        return
    with compiled_calls(recipe.model, compilation):
        yield OrdinaryEngine(
            recipe.model,
            steps=steps,
            batch_size=recipe.batch_size,
            seed=seed,
            loss_scale=scale,
            state=state,
            steps_taken=done,
            ranks=recipe.ranks,
            shards=recipe.shards,
        )


def take_steps(
    session: Session,
    engine: StepEngine,
    training_state: TrainingState,
    *,
    beside_state: Callable[[], Mapping[str, Any]],
    goes_on: bool,
    max_grad_norm: float | None = None,
    epsilon_after: Callable[[int], SpentEpsilon] | None = None,
    check_state: Callable[[], None] = lambda: None,
    before_first_draw: Callable[[], None] = lambda: None,
) -> None:
    """Runs the loop up to the last checkpoint; SIGTERM ends it after the step it is in.

    Args:
        session: Everything the run trains with.
        engine: Where gradients come from.
        training_state: What its steps move.
        beside_state: What a checkpoint holds beside that, as ``save_checkpoint`` takes it.
        goes_on: Whether the checkpoint to begin with is there already.
        max_grad_norm: Norm above which a gradient counts as clipped; None: nothing is counted.
        epsilon_after: What is spent once the weights have taken a number of steps; None for a
            non-private run.
        check_state: Refuses what is to be released and changed without noise; asked after the first
            step and before each checkpoint.
        before_first_draw: Writes down what the run is bound to, once there is a checkpoint.

    Raises:
        SystemExit: The run was terminated; a checkpoint of its last step is complete.
    """
    diagnostics = Diagnostics(session.folder, max_grad_norm=max_grad_norm, goes_on=goes_on)
    diagnostics.write_size(session.training_set, num_examples=session.num_examples)
    progress = StepProgress(
        steps=engine.steps,
        taken=engine.steps_taken,
        expected_batch_size=session.batch_size,
        epsilon_after=epsilon_after,
        counted="examples" if session.training_set.units is None else "units",
        foretold=session.foretold,
    )

    def save(step: int) -> None:
        keep = session.settings.keep
        folder = private_path(session.folder, CHECKPOINTS)
        beside = beside_state()
        save_checkpoint(folder, step, training_state, keep=keep, shards=session.shards, **beside)

    compiles = session.training_set.compile
    with closing(diagnostics), private_cache(session.folder, wanted=compiles):
        if not goes_on:
            save(0)
        before_first_draw()
        with termination_requests() as terminated, progress:
            after_step = AfterStep(
                session=session,
                training_state=training_state,
                together=StepsTogether(
                    recipe=session,
                    last_step=engine.steps,
                    non_finite=lambda: engine.non_finite,
                    terminated=terminated,
                    first_step=engine.steps_taken + 1,
                    check_state=check_state,
                ),
                diagnostics=diagnostics,
                save=save,
                progress=progress,
                epsilon_after=epsilon_after,
            )
            for listener in session.listeners:
                listener.begin(engine.steps_taken)
            if session.evaluation is not None:
                spent = None if epsilon_after is None else epsilon_after(engine.steps_taken)
                session.evaluation.begin(engine.steps_taken, engine.steps, spent)
            train(
                session.model,
                session.training_set,
                engine=engine,
                optimizer=training_state.optimizer,
                scheduler=training_state.scheduler,
                after_step=after_step,
                hooks=session.method,
                ranks=session.ranks,
            )


@dataclass(frozen=True, kw_only=True)
class AfterStep:
    """What a run does when its weights have moved, in this order: write down, save, show, end.

    Listeners hear of a step before it is saved, so that a run killed in between goes on from a
    checkpoint of which they know every step.
    """

    session: Session
    training_state: TrainingState
    together: StepsTogether
    """What every process does first."""
    diagnostics: Diagnostics
    save: Callable[[int], None]
    """Writes the checkpoint of a step."""
    progress: StepProgress
    epsilon_after: Callable[[int], SpentEpsilon] | None
    """What a number of steps has spent; None for a non-private run."""

    def __call__(self, statistics: StepStatistics) -> None:
        """Ends a step.

        Args:
            statistics: What the step says of its records; private.

        Raises:
            SystemExit: The run was terminated; a checkpoint of the step is complete.
            RunError: The weights of its processes are no longer the same.
        """
        ended, step = self.together.end(statistics), statistics.step
        self._write_diagnostics(ended)
        self._tell_listeners(step, stops=ended.stops)
        if ended.is_saved:
            self.save(step)
        self.progress.advance(step)
        if ended.stops:
            self.together.stop()

    def _write_diagnostics(self, ended: EndedStep) -> None:
        statistics = ended.statistics
        self.diagnostics.write(statistics, non_finite=ended.non_finite)
        if self.session.show_diagnostics and statistics.losses:
            loss = float(torch.cat(statistics.losses).mean())
            logger.info("step %d: mean training loss %.4f (not private)", statistics.step, loss)

    def _tell_listeners(self, step: int, *, stops: bool) -> None:
        """Tells all that the step was taken; a run that was asked to stop scores nothing before."""
        evaluation = None if stops else self.session.evaluation
        if not self.session.listeners and evaluation is None:
            return
        epsilon = None if self.epsilon_after is None else self.epsilon_after(step)
        public = PublicStep(
            step=step,
            last_step=self.together.last_step,
            learning_rate=learning_rate_of(self.training_state, step),
            epsilon=epsilon,
        )
        for listener in self.session.listeners:
            listener.after_step(public)
        if evaluation is not None:
            evaluation.after_step(step, epsilon)
