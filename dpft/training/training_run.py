"""The training run as an object: its folder, processes and ledger, and its actions at each step.

The checkpoint of step 0 is complete before the first line of the ledger is written. After the last
step, the run writes the last checkpoint, the model and the closing line of the ledger, in this
order. Then it deletes the secret keys (docs/dev/design.md, rule 4).
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpft.errors import DpftError, RunError
from dpft.methods.base import Method, MethodPhase
from dpft.models.losses import per_example_losses
from dpft.parallel.rank_environment import TERMINATED, termination_requests
from dpft.parallel.ranks import ALONE, Ranks, RankShare
from dpft.parallel.sharding import local
from dpft.parallel.shards import ShardedModel, whole_reader
from dpft.privacy.accounting.curve import EpsilonSoFar, SpentEpsilon
from dpft.privacy.clipping.clipper import ClippingChoice
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.journal import JournaledLedger, KnownLedger, is_failed_replay
from dpft.privacy.ledger import ClipperChoice, NoLedger
from dpft.privacy.plan import ClippingPlan, PrivacyPlan, StepsPlan
from dpft.privacy.privacy_config import DifferentialPrivacy, Privacy
from dpft.privacy.randomness import restore_randomness
from dpft.privacy.release_guard import FrozenState, check_same, digests_of
from dpft.run_folder import CHECKPOINTS
from dpft.training.checkpoint import (
    BoundRun,
    ResumePoint,
    delete_generator_states,
    environment,
    find_resume_point,
    promises,
    read_history,
    restore_checkpoint,
    save_checkpoint,
)
from dpft.training.diagnostics import Diagnostics
from dpft.training.listeners import PublicStep, StepEvaluation, StepListener
from dpft.training.loop import StepEngine, StepStatistics, TrainingSet
from dpft.training.loss_scale import AdaptiveLossScale, scaled
from dpft.training.nonprivate import ClippedEngine, OrdinaryEngine
from dpft.training.optimizers import (
    OptimizerConfig,
    SchedulerConfig,
    check_works_on_shards,
    learning_rate_factor,
    learning_rate_of,
    make_scheduler,
)
from dpft.training.starting_point import Start, open_ledger, ordinary_start, share_start
from dpft.training.training_config import TrainingConfig
from dpft.training.training_state import (
    TrainingState,
    model_state,
    moved_while_frozen,
    optimized_parameters,
)

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class TrainingRun:
    """The run that takes and records steps, with or without privacy.

    Each process has one instance. Rank 0 writes the files, except the shards of checkpoints.

    Raises:
        ValueError: ``training_set.share`` does not match this rank, so a record would be added by
            several ranks or by no rank.
    """

    folder: Path
    """Folder of the run, which rank 0 has created."""
    plan: StepsPlan
    """The plan that the run must follow: a ``PrivacyPlan``; or a ``ClippingPlan`` for a run that
    clips but adds no noise."""
    model: nn.Module
    """The model, prepared by ``method``."""
    method: Method
    phases: Sequence[MethodPhase]
    """The phases of the method."""
    training_set: TrainingSet
    settings: TrainingConfig
    optimizer: OptimizerConfig
    scheduler: SchedulerConfig
    privacy: Privacy
    """The privacy configuration, with clipping options and rules for resuming."""
    choices: Sequence[ClippingChoice] = ()
    """Results of the clipper's self-check, one per phase; public."""
    ranks: Ranks = ALONE
    shards: ShardedModel | None = None
    """The sharded ``model``, if each process has only a shard of it."""
    resume_point: ResumePoint | None = None
    """The point at which the run was interrupted; None for a new run, or on a rank other than 0."""
    digests_at_start: Mapping[str, str] | None = None
    """Digests of the model's state before its first record, on rank 0; None if it has read no
    record."""
    epsilon_so_far: EpsilonSoFar | None = None
    """Computes the epsilon spent by a number of steps, for progress; None if it is not shown."""
    listeners: list[StepListener] = field(default_factory=list)
    """Listeners that receive public values of each step; empty on all ranks except rank 0."""
    evaluation: StepEvaluation | None = None
    """Scores the model between steps; None to score it only before and after training."""
    _reseeds: bool = field(default=False, init=False)
    _first_step: int = field(default=1, init=False)
    _stream: int = field(default=0, init=False)
    _ledger: JournaledLedger | None = field(default=None, init=False)
    _frozen: FrozenState | None = field(default=None, init=False)
    _loss_scale: Any = field(default=None, init=False)
    _diagnostics: Diagnostics | None = field(default=None, init=False)
    _terminated: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        share = RankShare(self.ranks.rank, self.ranks.size)
        if self.training_set.share != share:
            raise ValueError(f"training_set.share must be {share}, got {self.training_set.share}.")

    def initial_state(self) -> TrainingState:
        """Return the state before the first step.

        Raises:
            InputError: The optimizer does not support sharded parameters.
        """
        if self.shards is not None:
            check_works_on_shards(self.optimizer)
        method, settings = self.method, self.settings
        method.begin_step(self.model, 0)
        optimizer = self.optimizer.make(
            method.moved_parameters(self.model),
            learning_rate=settings.peak_learning_rate,
            weight_decay=settings.weight_decay,
        )
        factor = learning_rate_factor(self.phases, settings.peak_learning_rate)
        scheduler = make_scheduler(optimizer, self.scheduler, steps=self.plan.steps, factor=factor)
        return TrainingState(
            model=self.model, method=method, optimizer=optimizer, scheduler=scheduler
        )

    def restore(self, state: TrainingState) -> None:
        """Restore the checkpoint of a resumed run, on rank 0 or, if sharded, on every rank.

        Raises:
            StateError: The checkpoint belongs to another model.
            SaidElsewhere: Another process cannot read its part, and rank 0 reports the error.
        """
        path = None
        if self.resume_point is not None:
            path = str(self.resume_point.checkpoint.path.absolute())
        if self.shards is None:
            if self.ranks.any(path is not None)[0]:
                self.ranks.on_rank_0(_restore_whole, path, state)
            return
        path = self.ranks.broadcast_from_rank_0(lambda: path)
        if path is not None:
            restore_checkpoint(Path(path), state, shards=self.shards)

    def restore_end(self, state: TrainingState) -> None:
        """Restore a run that has taken its last step, and delete its remaining secret keys."""
        self.restore(state)
        ended = Start(done=self.plan.steps, last_step=self.plan.steps, secrets={})
        share_start(ended, state, self.ranks)
        self.ranks.on_rank_0(delete_generator_states, self.folder / CHECKPOINTS)

    @contextmanager
    def steps(self, state: TrainingState) -> Iterator[StepEngine]:
        """Open the ledger and the diagnostics, and yield the engine of the remaining steps.

        Args:
            state: The initial state; for a resumed run, the state of the checkpoint is restored
                into it.

        Raises:
            InputError: The folder has a ledger and the run is not resumed.
            RunError: A value that no step updates has changed.
            StateError: The checkpoint belongs to another model.
        """
        ranks = self.ranks
        with ExitStack() as stack:
            self._ledger = None
            start = ranks.on_rank_0(self._open, stack)
            self.restore(state)
            start = share_start(start, state, ranks)
            engine = self._engine(state, start)
            resumes, self._first_step, self._stream = start.resumes, start.done + 1, start.stream
            del start  # It contains the keys of the first step.
            if ranks.is_rank_0:
                diagnostics = self._opened_diagnostics(resumes=resumes)
                self._diagnostics = stack.enter_context(closing(diagnostics))
            if not resumes:
                self._save(0, state, engine)
            ranks.on_rank_0(engine.begin)
            self._terminated = stack.enter_context(termination_requests())
            for listener in self.listeners:
                listener.begin(engine.steps_taken)
            if self.evaluation is not None:
                self.evaluation.begin(engine.steps_taken, engine.steps, self.epsilon())
            yield engine

    def reseed_after(self, error: DpftError) -> None:
        """Prepare to repeat steps with new noise, because a replayed step was not reproduced.

        Args:
            error: The error that ended ``steps``. Any other error, or a second failed replay, is
                raised again.
        """
        if self._reseeds or not is_failed_replay(error):
            raise error
        logger.warning("%s", error)
        self._reseeds = True
        self.resume_point = self.ranks.on_rank_0(find_resume_point, self.folder)

    def after_step(
        self, state: TrainingState, engine: StepEngine, statistics: StepStatistics
    ) -> None:
        """Record a step after the weight update, and save a checkpoint if one is due.

        Listeners are notified before the checkpoint is saved. If the run is killed in between, it
        resumes from a checkpoint whose steps the listeners all know.

        Args:
            state: The state after the step.
            engine: The engine that took the step.
            statistics: Statistics of this rank's records; private.

        Raises:
            SystemExit: The run was terminated; a checkpoint of the step is complete.
            RunError: The weights of the processes differ, or a value that no step updates has
                changed.
            SaidElsewhere: Rank 0 raised such an error, or could not write the checkpoint.
        """
        ranks, step = self.ranks, statistics.step
        (terminated,) = ranks.any(self._terminated())
        statistics, non_finite = gathered(statistics, engine.non_finite, ranks)
        every = self.settings.checkpoint_every
        is_nth = every is not None and step % every == 0
        is_saved = step == engine.steps or is_nth or terminated
        if is_saved or step == self._first_step:
            ranks.on_rank_0(engine.check)
        if is_saved:
            check_equal(self.model, ranks if self.shards is None else self.shards.twins, ranks)
        if self._diagnostics is not None:
            self._diagnostics.write(statistics, non_finite=non_finite)
        self._tell_listeners(state, engine, stops=terminated)
        if is_saved:
            self._save(step, state, engine)
            # If SIGTERM arrived while saving, stop here: the checkpoint of this step is complete.
            (terminated,) = ranks.any(self._terminated())
        if terminated:
            raise SystemExit(TERMINATED)

    def close(self, released: str | None) -> None:
        """Close the ledger with the digest of the saved model, then delete the secret keys.

        Call this method on rank 0 inside ``steps``, after the last step is taken and the model is
        saved.
        """
        if isinstance(self._loss_scale, AdaptiveLossScale):
            self._loss_scale.say_where_it_stands()
        if self._ledger is not None:
            self._ledger.ledger.close(released=released)
        delete_generator_states(self.folder / CHECKPOINTS)

    def epsilon(self) -> SpentEpsilon | None:
        """Return the epsilon spent by all noisy steps in the ledger; None on ranks other than 0.

        The ledger has more steps than the weights if some steps were repeated with new noise.
        """
        if self.epsilon_so_far is None or self._ledger is None:
            return None
        assert isinstance(self.plan, PrivacyPlan)
        mechanism, planned = self.plan.mechanism, self.plan.steps
        cost = mechanism.compositions(self._ledger.ledger.streams)
        steps = mechanism.steps_within(cost)
        within_plan = cost <= mechanism.compositions((planned,))
        return self.epsilon_so_far(min(steps, planned) if within_plan else steps)

    def _open(self, stack: ExitStack) -> Start:
        """Open the ledger of a private run on rank 0, and return the start of the steps."""
        if not isinstance(self.plan, PrivacyPlan):
            return ordinary_start(self.resume_point, steps=self.plan.steps)
        assert isinstance(self.privacy, DifferentialPrivacy)
        self._ledger, start = open_ledger(
            stack,
            self.folder,
            self.plan,
            self.privacy,
            self.resume_point,
            clipper=self._clipper,
            environment=self._environment,
            device=self.training_set.device,
            reseeds=self._reseeds,
        )
        return start

    def _engine(self, state: TrainingState, start: Start) -> StepEngine:
        """Return the engine of the steps after ``start``.

        Raises:
            RunError: The model differs from its state at step 0, or before it ran on any record.
        """
        plan, settings, ranks, shards = self.plan, self.settings, self.ranks, self.shards
        first = min(start.done, plan.steps - 1)
        clips = self.privacy.clips
        if not isinstance(plan, ClippingPlan) or clips is None:
            self.method.begin_step(self.model, first)
            return OrdinaryEngine(
                self.model,
                per_example_losses,
                steps=plan.steps,
                batch_size=settings.batch_size(plan.num_examples),
                seed=settings.seed,
                autocast_dtype=settings.autocast_dtype,
                loss_scale=settings.backward_scale,
                state=start.secrets or None,
                steps_taken=start.done,
                ranks=ranks,
                shards=shards,
            )
        options = replace(
            clips.clipping_options(settings.backward_scale),
            shards=shards,
            autocast=settings.autocast_dtype,
        )
        if not isinstance(plan, PrivacyPlan):
            self.method.begin_step(self.model, first)
            return ClippedEngine(
                self.model,
                per_example_losses,
                plan=plan,
                options=options,
                choices=self.choices,
                seed=settings.seed,
                state=start.secrets or None,
                steps_taken=start.done,
                ranks=ranks,
                shards=shards,
            )
        history: Mapping[str, Tensor] = {}
        with ranks.failing_together():
            if start.history is not None and plan.mechanism.has_streams:
                history = read_history(Path(start.history), ranks)
        seed, device = self.privacy.noise_seed, self.training_set.device
        randomness = restore_randomness(device, start.secrets, seed, rank=ranks.rank)
        log, self._loss_scale = scaled(settings, self._ledger or NoLedger(), start.loss_scale)
        self._frozen = ranks.on_rank_0(self._frozen_state, state)
        moved = moved_while_frozen(state)
        self.method.begin_step(self.model, first)
        return PrivacyEngine(
            self.model,
            per_example_losses,
            plan=plan,
            ledger=log,
            randomness=randomness,
            steps_taken=start.done,
            last_step=start.last_step,
            stream=start.stream,
            history=history,
            options=replace(options, loss_scale=self._loss_scale),
            choices=self.choices,
            moved=moved,
            frozen=self._frozen,
            ranks=ranks,
            shards=shards,
        )

    def _frozen_state(self, state: TrainingState) -> FrozenState:
        """Return the values that no update changes, for comparison with their digests at step 0."""
        model = self.model
        trained = {p for p in model.parameters() if p.requires_grad}
        trained.update(optimized_parameters(state))
        moved = {n: p for n, p in model.named_parameters(remove_duplicate=False) if p in trained}
        read = None if self.shards is None else whole_reader(self.shards)
        if self.resume_point is not None:
            digests = self.resume_point.checkpoint.run.frozen
            assert digests is not None  # Every checkpoint of a private run has them.
            return FrozenState(model, moved, digests, read)
        if self.digests_at_start is not None:
            check_same(digests_of(model, read=read), self.digests_at_start)
        return FrozenState(model, moved, None, read)

    def _opened_diagnostics(self, *, resumes: bool) -> Diagnostics:
        plan = self.plan
        diagnostics = Diagnostics(
            self.folder,
            max_grad_norm=plan.one_max_grad_norm if isinstance(plan, ClippingPlan) else None,
            resumes=resumes,
            shows_losses=self.privacy.show_diagnostics,
        )
        diagnostics.write_size(self.training_set, num_examples=plan.num_examples)
        return diagnostics

    def _save(self, step: int, state: TrainingState, engine: StepEngine) -> None:
        """Write the checkpoint of a step; every rank calls this method."""
        secrets = engine.state()
        is_rank_0 = self.ranks.is_rank_0
        save_checkpoint(
            self.folder / CHECKPOINTS,
            step,
            state,
            run=self._bound() if is_rank_0 else None,
            generators=secrets.generators if is_rank_0 else None,
            keep=self.settings.keep,
            shards=self.shards,
            history=secrets.noise_history,
            ranks=self.ranks,
        )

    def _bound(self) -> BoundRun:
        """Return the values of a checkpoint that must be unchanged when the run resumes."""
        plan = self.plan
        if not isinstance(plan, PrivacyPlan):
            return BoundRun(clipping=plan if isinstance(plan, ClippingPlan) else None)
        assert isinstance(self.privacy, DifferentialPrivacy)
        assert self._ledger is not None and self._frozen is not None
        ledger, scale = self._ledger.ledger, self._loss_scale
        return BoundRun(
            plan=plan,
            clipper=self._clipper,
            environment=self._environment,
            promises=promises(self.privacy),
            run_id=ledger.run_id,
            frozen=self._frozen.digests,
            ledger=KnownLedger(
                lines=ledger.lines, head=ledger.head, position=self._ledger.position
            ),
            stream=self._stream,
            loss_scale=scale.state() if isinstance(scale, AdaptiveLossScale) else None,
        )

    @property
    def _clipper(self) -> tuple[ClipperChoice, ...] | None:
        """The results of the clipper's self-check, for the ledger; None without results."""
        return tuple(ClipperChoice(**choice.public()) for choice in self.choices) or None

    @property
    def _environment(self) -> dict[str, Any]:
        """All settings that affect the bits of a step's sum."""
        settings, clips = self.settings, self.privacy.clips
        rates = (settings.peak_learning_rate, settings.weight_decay, settings.loss_scale)
        adapts = ("adaptive",) if settings.adaptive_loss_scale else ()
        engines = " ".join(choice.engine for choice in self.choices)
        return environment(
            self.training_set,
            engine=engines or ("" if clips is None else clips.engine),
            precision=settings.precision,
            settings=(self.method, self.optimizer, self.scheduler, *rates, *adapts),
            ranks=self.ranks,
            shards=self.shards,
        )

    def _tell_listeners(self, state: TrainingState, engine: StepEngine, *, stops: bool) -> None:
        """Report a step to all listeners; skip the evaluation if the run was asked to stop."""
        evaluation = None if stops else self.evaluation
        if not self.listeners and evaluation is None:
            return
        step, epsilon = engine.steps_taken, self.epsilon()
        public = PublicStep(
            step=step,
            last_step=engine.steps,
            learning_rate=learning_rate_of(state, step),
            epsilon=epsilon,
        )
        if evaluation is not None:
            evaluation.after_step(step, epsilon)
        for listener in self.listeners:
            listener.after_step(public)


def _restore_whole(path: str | None, state: TrainingState) -> None:
    assert path is not None
    restore_checkpoint(Path(path), state)


def gathered(
    statistics: StepStatistics, non_finite: int, ranks: Ranks
) -> tuple[StepStatistics, int]:
    """Return the losses and norms of all ranks, and the number of examples that they skipped."""
    if ranks.size == 1:
        return statistics, non_finite
    losses, norms = _flat(statistics.losses), _flat(statistics.norms)
    counts = torch.tensor([non_finite, len(losses)], dtype=torch.float64)
    sent = torch.cat((counts, losses, norms)).numpy().tobytes()
    received = [
        torch.frombuffer(bytearray(content), dtype=torch.float64)
        for content in ranks.everyones(sent)
    ]
    losses_of_ranks = [values[2 : 2 + int(values[1])].float() for values in received]
    norms_of_ranks = [values[2 + int(values[1]) :].float() for values in received]
    together = replace(
        statistics,
        losses=[values for values in losses_of_ranks if len(values)],
        norms=[values for values in norms_of_ranks if len(values)],
    )
    return together, sum(int(values[0]) for values in received)


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0, dtype=torch.float64), *(p.double().cpu() for p in parts)])


def check_equal(model: nn.Module, twins: Ranks, ranks: Ranks) -> None:
    """End the run if weights of its processes that must be bit-identical differ.

    Raises:
        RunError: The weights differ, for example because a CPU or a device computes differently.
    """
    if twins.size == 1:
        return
    digest = hashlib.sha256()
    for tensor in model_state(model).values():
        values = local(tensor.detach()).cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(values.numpy().data)
    differ = len(set(twins.everyones(digest.digest()))) > 1
    with ranks.failing_together():
        if differ:
            raise RunError(
                "The weights of the run's processes differ, which happens if their CPUs or"
                " devices differ. Resume from the last checkpoint on machines of one kind.",
            )
