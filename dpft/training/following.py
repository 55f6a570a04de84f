"""Training on all processes of a run but the first.

They take the same steps at the same time, each with its share of the records. Ledger, journal,
checkpoints, reports and every line on a screen are the first one's; where the model is in shards,
each process writes its own shard of a checkpoint.
"""

import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.errors import SaidElsewhere
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.journal import ReplayError
from dpft.privacy.plan import PrivacyPlan
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.privacy.randomness import restore_randomness
from dpft.privacy.step_log import Released
from dpft.training.checkpoint import help_save
from dpft.training.compiling import compilation_of, private_cache
from dpft.training.listeners import StepEvaluation
from dpft.training.loop import StepEngine, StepStatistics, train
from dpft.training.loss_scale import scaled
from dpft.training.recipe import Recipe, prepare_training_state
from dpft.training.replicas import Start, StepsTogether, share_start
from dpft.training.session import Clipped, engine_without_noise
from dpft.training.termination import termination_requests
from dpft.training.training_state import TrainingState, moved_while_frozen


class NoLedger:
    """The ledger of a process that keeps none; the first one's is the run's."""

    def record_step(self, mechanism: Mapping[str, Any], gradients: Released) -> None:
        """Records nothing."""


def follow_privately(recipe: Recipe, plan: PrivacyPlan, privacy: DifferentialPrivacy) -> None:
    """Takes the steps that the first process takes, until it has taken the last.

    Where a step that is taken again does not come out as it was, the first process starts anew
    from its checkpoint with new keys, and so does this one.

    Raises:
        SaidElsewhere: Another process failed.
    """
    while True:
        training_state = prepare_training_state(recipe, plan.steps, None)
        start = share_start(None, training_state, recipe.ranks)
        with recipe.ranks.settled():
            pass  # The first one looks at what its model releases.
        if start.done >= start.last_step:
            return
        moved = moved_while_frozen(training_state)
        recipe.method.begin_step(recipe.model, start.done)
        engine = private_engine(recipe, plan, privacy, start, moved)
        goes_on = start.goes_on
        del start  # It holds the keys of the step.
        try:
            _take_steps(recipe, training_state, engine, goes_on=goes_on)
            return
        except SaidElsewhere as error:
            if error.kind != ReplayError.__name__:
                raise


def follow_ordinarily(recipe: Recipe, steps: int, *, clipped: Clipped | None = None) -> None:
    """Takes the steps without noise that the first process takes, as ``train_ordinarily``.

    Raises:
        SaidElsewhere: Another process failed.
    """
    training_state = prepare_training_state(recipe, steps, None)
    start = share_start(None, training_state, recipe.ranks)
    if start.done >= start.last_step:
        return
    recipe.method.begin_step(recipe.model, start.done)
    state = start.secrets or None
    with engine_without_noise(recipe, steps, start.done, state, clipped) as engine:
        _take_steps(recipe, training_state, engine, goes_on=start.goes_on)


def private_engine(
    recipe: Recipe,
    plan: PrivacyPlan,
    privacy: DifferentialPrivacy,
    start: Start,
    moved: Collection[str] = (),
) -> PrivacyEngine:
    """Returns the engine of a process that keeps no ledger."""
    ranks = recipe.ranks
    device = recipe.training_set.device
    log, loss_scale = scaled(recipe.settings, NoLedger(), start.loss_scale)
    return PrivacyEngine(
        recipe.model,
        plan=plan,
        ledger=log,
        randomness=restore_randomness(device, start.secrets, privacy.noise_seed, rank=ranks.rank),
        steps_taken=start.done,
        last_step=start.last_step,
        engine=privacy.engine,
        groups=privacy.groups,
        memory_mb=privacy.clipper_memory_mb,
        loss_scale=loss_scale,
        compilation=compilation_of(recipe.training_set),
        ranks=ranks,
        shards=recipe.shards,
        moved=moved,
    )


@dataclass(frozen=True, kw_only=True)
class AfterFollowedStep:
    """What a process does when its weights have moved, beside the first: help to save, and end."""

    together: StepsTogether
    """What every process does first."""
    evaluation: StepEvaluation | None
    """Scores the model between steps, with the first process."""
    save: Callable[[], None]
    """Writes this process's part of a checkpoint."""

    def __call__(self, statistics: StepStatistics) -> None:
        """Ends a step.

        Raises:
            SystemExit: A process of the run was terminated.
            SaidElsewhere: The checkpoint could not be written.
        """
        ended = self.together.end(statistics)
        if self.evaluation is not None and not ended.stops:
            self.evaluation.after_step(statistics.step, None)
        if ended.is_saved:
            self.save()
        if ended.stops:
            self.together.stop()


def _take_steps(
    recipe: Recipe, training_state: TrainingState, engine: StepEngine, *, goes_on: bool
) -> None:
    """Runs the loop; what a compiler keeps goes with the steps, as the first process's does."""

    def save() -> None:
        if recipe.shards is not None:
            help_save(training_state, recipe.shards)

    compiles = recipe.training_set.compile
    if not goes_on:
        save()
    with (
        tempfile.TemporaryDirectory() as cache,
        private_cache(Path(cache), wanted=compiles),
        termination_requests() as terminated,
    ):
        if recipe.evaluation is not None:
            recipe.evaluation.begin(engine.steps_taken, engine.steps, None)
        train(
            recipe.model,
            recipe.training_set,
            engine=engine,
            optimizer=training_state.optimizer,
            scheduler=training_state.scheduler,
            after_step=AfterFollowedStep(
                together=StepsTogether(
                    recipe=recipe,
                    last_step=engine.steps,
                    non_finite=lambda: engine.non_finite,
                    terminated=terminated,
                    first_step=engine.steps_taken + 1,
                ),
                evaluation=recipe.evaluation,
                save=save,
            ),
            hooks=recipe.method,
            ranks=recipe.ranks,
        )
