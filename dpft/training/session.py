"""A training session: what steps are taken with, and the loop with checkpoints and progress.

Every process of a run takes its steps through here, at the same time, each with its share of the
records. Diagnostics, progress, listeners and, of a whole model, checkpoints are those of the first.
What a private run adds, and in which order, is in ``private_run``; what one without noise adds, in
``ordinary``.

``Diagnostics`` are what training shows of its records, written where only the owner of the data
looks: none of it is covered by epsilon (docs/design.md, rule 7).
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpft.errors import RunError
from dpft.files import CHECKPOINTS, DIAGNOSTICS, private_path
from dpft.methods.base import Method, MethodPhase
from dpft.parallel.cutting import is_cut, local
from dpft.parallel.rank_environment import TERMINATED, termination_requests
from dpft.parallel.ranks import ALONE, Ranks, Share
from dpft.parallel.shards import ShardedModel
from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.privacy.clipping.clipper import ClippingChoice
from dpft.training.checkpoint import ResumePoint, restore_checkpoint, save_checkpoint
from dpft.training.listeners import PublicStep, StepEvaluation, StepListener
from dpft.training.loop import StepEngine, StepStatistics, TrainingSet, train
from dpft.training.optimizers import (
    OptimizerConfig,
    SchedulerConfig,
    check_works_on_shards,
    learning_rate_factor,
    learning_rate_of,
    make_scheduler,
)
from dpft.training.training_config import TrainingConfig
from dpft.training.training_state import (
    TrainingState,
    model_state,
    optimizer_state,
    restore_optimizer,
    restore_scheduler,
)


class Diagnostics:
    """Appends one line a step to private/diagnostics.jsonl."""

    def __init__(self, run: Path, *, max_grad_norm: float | None, goes_on: bool = False) -> None:
        """Opens the file, mode 0600; what is in it stays where the run goes on.

        Above ``max_grad_norm`` a gradient counts as clipped; None where the style has no such norm.
        """
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if goes_on else os.O_TRUNC)
        descriptor = os.open(private_path(run, DIAGNOSTICS), flags, 0o600)
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        self._max_grad_norm = max_grad_norm

    def write_size(self, training_set: TrainingSet, *, num_examples: int) -> None:
        """Writes how many records and units there really are beside the public number."""
        size = {
            "num_records": training_set.num_records,
            "num_units": training_set.num_units,
            "excluded_records": training_set.excluded,
            "public_num_examples": num_examples,
        }
        self._file.write(json.dumps(size, sort_keys=True) + "\n")

    def write(self, statistics: StepStatistics, *, non_finite: int) -> None:
        """Writes one step's losses, norms, clip fraction, batch size, and signal to noise."""
        line = {**self._summary(statistics), "non_finite_examples_so_far": non_finite}
        self._file.write(json.dumps(line, sort_keys=True) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _summary(self, statistics: StepStatistics) -> dict[str, Any]:
        summary: dict[str, Any] = {"step": statistics.step, "batch_size": statistics.batch_size}
        if statistics.losses:
            summary["mean_loss"] = float(torch.cat(statistics.losses).mean())
        if statistics.norms:
            norms = torch.cat(statistics.norms)
            summary["median_gradient_norm"] = float(norms.median())
            if self._max_grad_norm is not None:
                summary["clipped_fraction"] = float((norms > self._max_grad_norm).float().mean())
        measured = statistics.signal_and_noise
        if measured is not None:
            summary["signal_norm"], summary["noise_norm"] = measured.signal, measured.noise
            summary["signal_to_noise"] = measured.ratio
        return summary


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where all processes begin to take steps; secret, since it holds keys."""

    done: int
    """Steps that the weights have taken."""
    last_step: int
    """The step to end at."""
    secrets: Mapping[str, Any]
    """Keys of the next step, or generator states; ready for JSON."""
    goes_on: bool = False
    """Whether the checkpoint to begin with is there already."""
    stream: int = 0
    """Steps that were in the ledger when the stream of noise began which goes on."""
    history: str | None = None
    """The checkpoint that holds the noise which that of the next steps hangs together with; None:
    the stream begins."""
    loss_scale: Mapping[str, Any] | None = None
    """Where an adaptive loss scale stands; None: where it starts, or there is none."""


def share_start(start: Start | None, training_state: TrainingState, ranks: Ranks) -> Start:
    """Returns the first process's start on each, its weights and optimizer in place of their own.

    What is cut into shards stays: each rank has its own, and the moments that go with it. Of a
    whole model moments may be missing beside the first process.
    """
    if ranks.size == 1:
        assert start is not None
        return start
    weights = model_state(training_state.model).values()
    in_shards = any(is_cut(tensor) for tensor in weights)
    moments = {} if start is None or in_shards else optimizer_state(training_state)
    said = ranks.broadcast(
        json.dumps(
            {
                "start": None if start is None else asdict(start),
                "moments": {
                    name: [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
                    for name, tensor in moments.items()
                },
                "schedule": training_state.scheduler.last_epoch,
            }
        ).encode()
    )
    heard = json.loads(said)
    with torch.no_grad():
        ranks.copy_first([tensor for tensor in weights if not is_cut(tensor)])
    received = {}  # in the processor's memory
    for name, (shape, dtype) in heard["moments"].items():
        blank = torch.empty(shape, dtype=getattr(torch, dtype))
        received[name] = moments[name].detach().cpu() if name in moments else blank
        ranks.copy_first([received[name]])
    if not ranks.is_first and not in_shards:
        restore_optimizer(training_state, received)
        restore_scheduler(training_state, int(heard["schedule"]))
    return Start(**heard["start"])


def gathered(
    statistics: StepStatistics, non_finite: int, ranks: Ranks
) -> tuple[StepStatistics, int]:
    """Returns the losses and norms of all processes, and what they left out together."""
    if ranks.size == 1:
        return statistics, non_finite
    losses, norms = _flat(statistics.losses), _flat(statistics.norms)
    counts = torch.tensor([non_finite, len(losses)], dtype=torch.float64)
    sent = torch.cat((counts, losses, norms)).numpy().tobytes()
    heard = [
        torch.frombuffer(bytearray(each), dtype=torch.float64) for each in ranks.everyones(sent)
    ]
    everyones_losses = [each[2 : 2 + int(each[1])].float() for each in heard]
    everyones_norms = [each[2 + int(each[1]) :].float() for each in heard]
    together = replace(
        statistics,
        losses=[each for each in everyones_losses if len(each)],
        norms=[each for each in everyones_norms if len(each)],
    )
    return together, sum(int(each[0]) for each in heard)


def check_equal(model: nn.Module, twins: Ranks, ranks: Ranks) -> None:
    """Ends the run where weights that should be the same bits are not.

    Raises:
        RunError: They differ, as where a processor or a device computes otherwise.
    """
    if twins.size == 1:
        return
    digest = hashlib.sha256()
    for tensor in model_state(model).values():
        values = local(tensor.detach()).cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(values.numpy().data)
    is_apart = len(set(twins.everyones(digest.digest()))) > 1
    with ranks.settled():
        if is_apart:
            raise RunError(
                "the weights of the run's processes are no longer the same, as where their"
                " processors or devices differ; go on from the last checkpoint on machines of one"
                " kind."
            )


def _flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0, dtype=torch.float64), *(p.double().cpu() for p in parts)])


logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Session:
    """Everything a run trains with, private or not, and where it writes."""

    model: nn.Module
    """Prepared by ``method``."""
    method: Method
    phases: tuple[MethodPhase, ...]
    """The method's, of the steps to take."""
    training_set: TrainingSet
    settings: TrainingConfig
    optimizer: OptimizerConfig
    scheduler: SchedulerConfig
    num_examples: int
    """The public number of training examples."""
    folder: Path
    """The run's folder; the first process has made it, and writes there."""
    save_model: Callable[[], str | None]
    """Writes the trained model where it is released from; returns its digest, for the ledger. The
    first process calls it, and the others serve what it reads of a model in shards."""
    show_diagnostics: bool
    """Whether to log the mean training loss of each step, which epsilon does not cover."""
    listeners: tuple[StepListener, ...] = ()
    """Who else hears of the steps, public quantities only; nobody but on the first process."""
    state_at_start: Mapping[str, str] | None = None
    """Digests of the model's state before it ran on any record; None: it has not run yet, or this
    is not the first process."""
    evaluation: StepEvaluation | None = None
    """Scores the model between steps; None: it is scored before and after them alone."""
    choices: Sequence[ClippingChoice] = ()
    """Results of the clipper's self-check, one per phase; public."""
    ranks: Ranks = ALONE
    """The processes that take the steps together."""
    shards: ShardedModel | None = None
    """``model``, where each process has but a shard of it."""

    def __post_init__(self) -> None:
        """Refuses a share that is not this process's.

        Raises:
            ValueError: A record would be added by two processes, or by none.
        """
        share = Share(self.ranks.rank, self.ranks.size)
        if self.training_set.share != share:
            raise ValueError(f"training_set.share must be {share}, got {self.training_set.share}.")

    @property
    def batch_size(self) -> int:
        """The expected batch size."""
        return self.settings.batch_size(self.num_examples)


def prepare_training_state(
    session: Session, steps: int, resume_point: ResumePoint | None
) -> TrainingState:
    """Returns model, optimizer and schedule as they are before the next step.

    A whole model is restored on the first process, which then shares it (``share_start``). Of a
    model in shards, each process reads its own part of the first one's checkpoint. The first
    process alone has a resume point, where the run goes on.

    Raises:
        InputError: The optimizer cannot work on shards.
        StateError: The checkpoint is of another model.
        SaidElsewhere: Another process cannot read its part, and the first one says why.
    """
    if session.shards is not None:
        check_works_on_shards(session.optimizer)
    session.method.begin_step(session.model, 0)
    optimizer = session.optimizer.make(
        session.method.moved_parameters(session.model),
        learning_rate=session.settings.peak_learning_rate,
        weight_decay=session.settings.weight_decay,
    )
    factor = learning_rate_factor(session.phases, session.settings.peak_learning_rate)
    scheduler = make_scheduler(optimizer, session.scheduler, steps=steps, factor=factor)
    training_state = TrainingState(model=session.model, optimizer=optimizer, scheduler=scheduler)
    ranks, shards = session.ranks, session.shards
    path = None if resume_point is None else resume_point.checkpoint.path.absolute()
    if shards is None:
        ranks.first(lambda: path and restore_checkpoint(path, training_state))
        return training_state
    restored = ranks.first_to_all(lambda: path and str(path))
    if restored is not None:
        restore_checkpoint(Path(restored), training_state, shards=shards)
    return training_state


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
    noise_history: Callable[[], Mapping[str, Tensor]] | None = None,
) -> None:
    """Runs the loop up to the last checkpoint; SIGTERM ends it after the step it is in.

    The checkpoint to begin with is there already where the run ``goes_on``; with it is kept what
    ``beside_state`` gives, as ``save_checkpoint`` takes it. ``before_first_draw`` writes down what
    the run is bound to, once there is a checkpoint, and ``check_state`` refuses what is to be
    released and changed without noise, after the first step and before each checkpoint: all these
    are asked on the first process. ``noise_history`` gives this rank's noise that later noise hangs
    together with; None: no noise does.

    Raises:
        SystemExit: The run was terminated; a checkpoint of its last step is complete.
    """
    ranks, shards = session.ranks, session.shards

    def save(step: int) -> None:
        save_checkpoint(
            session.folder / CHECKPOINTS,
            step,
            training_state,
            keep=session.settings.keep,
            shards=shards,
            history=None if noise_history is None else noise_history(),
            ranks=ranks,
            **(ranks.first(beside_state) or {}),
        )

    with ExitStack() as held:
        diagnostics = None
        if ranks.is_first:
            diagnostics = held.enter_context(
                closing(Diagnostics(session.folder, max_grad_norm=max_grad_norm, goes_on=goes_on))
            )
            diagnostics.write_size(session.training_set, num_examples=session.num_examples)
        if not goes_on:
            save(0)
        ranks.first(before_first_draw)
        after_step = AfterStep(
            session=session,
            training_state=training_state,
            engine=engine,
            first_step=engine.steps_taken + 1,
            terminated=held.enter_context(termination_requests()),
            check_state=check_state,
            save=save,
            epsilon_after=epsilon_after,
            diagnostics=diagnostics,
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
            ranks=ranks,
        )


@dataclass(frozen=True, kw_only=True)
class AfterStep:
    """What a run does when its weights have moved: write down, save, show, end.

    Listeners hear of a step before it is saved, so that a run killed in between goes on from a
    checkpoint of which they know every step.
    """

    session: Session
    training_state: TrainingState
    engine: StepEngine
    first_step: int
    """The step that this session begins with."""
    terminated: Callable[[], bool]
    """Whether SIGTERM has come to this process."""
    check_state: Callable[[], None]
    """On the first process: refuses what is to be released and changed without noise."""
    save: Callable[[int], None]
    """Writes the checkpoint of a step."""
    epsilon_after: Callable[[int], SpentEpsilon] | None
    """What a number of steps has spent; None for a non-private run, and beside the first."""
    diagnostics: Diagnostics | None
    """On the first process alone."""

    def __call__(self, statistics: StepStatistics) -> None:
        """Ends a step, whose statistics say of this process's records, and are private.

        Raises:
            SystemExit: The run was terminated; a checkpoint of the step is complete.
            RunError: The weights of its processes are no longer the same, or what nothing moves
                changed.
            SaidElsewhere: So it did on the first process, or the checkpoint could not be written.
        """
        ranks, step, last_step = self.session.ranks, statistics.step, self.engine.steps
        (terminated,) = ranks.any(self.terminated())
        statistics, non_finite = gathered(statistics, self.engine.non_finite, ranks)
        every = self.session.settings.checkpoint_every
        is_nth = every is not None and step % every == 0
        is_saved = step == last_step or is_nth or terminated
        if is_saved or step == self.first_step:
            ranks.first(self.check_state)
        if is_saved:
            shards = self.session.shards
            check_equal(self.session.model, ranks if shards is None else shards.twins, ranks)
        self._write_diagnostics(statistics, non_finite)
        self._tell_listeners(step, stops=terminated)
        if is_saved:
            self.save(step)
            # A request that came meanwhile needs no other step: this one's checkpoint is there.
            (terminated,) = ranks.any(self.terminated())
        if terminated:
            raise SystemExit(TERMINATED)

    def _write_diagnostics(self, statistics: StepStatistics, non_finite: int) -> None:
        """Writes down what the step says of all processes' records; on the first process."""
        if self.diagnostics is None:
            return
        self.diagnostics.write(statistics, non_finite=non_finite)
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
            last_step=self.engine.steps,
            learning_rate=learning_rate_of(self.training_state, step),
            epsilon=epsilon,
        )
        if evaluation is not None:
            evaluation.after_step(step, epsilon)
        for listener in self.session.listeners:
            listener.after_step(public)
