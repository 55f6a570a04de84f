"""The training loop, written like Algorithm 1 of Abadi et al. 2016.

The loop does not depend on a task, a method or a privacy plan. An engine provides batches and turns
losses into gradients. The method in the training state decides which parameters train, and a run
records each step.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from dpft.data.batches import Batch, Layout, RowView, ViewBits, ViewedRows, micro_batches
from dpft.errors import RunError
from dpft.parallel.ranks import ALONE, EVERYTHING, Ranks, RankShare
from dpft.parallel.sharding import local
from dpft.privacy.engine_results import EngineState, MicroBatchResult
from dpft.privacy.noise import SignalAndNoise
from dpft.training.training_state import TrainingState


class StepEngine(Protocol):
    """Private or ordinary engine that draws the batch of a step and computes its gradient."""

    @property
    def views(self) -> ViewBits:
        """The source of randomness for random views of records."""

    @property
    def steps_taken(self) -> int:
        """Number of steps that the weights have taken."""

    @property
    def steps(self) -> int:
        """Number of the last step to take."""

    @property
    def non_finite(self) -> int:
        """Number of examples skipped so far because of a non-finite loss or gradient; private."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...

    def draw(self, num_units: int) -> list[int]:
        """Start a step and return the indices of its batch, which are units of the data."""

    def accumulate(self, batch: Any, rows_per_unit: int = 1) -> MicroBatchResult:
        """Add one micro-batch, in which the rows of each privacy unit are contiguous."""

    def finish_step(self) -> SignalAndNoise | None:
        """Leave the gradient of the step in ``grad`` of every trainable parameter.

        Returns:
            Norms of the signal and of the noise, if they are measured; private.
        """

    def begin(self) -> None:
        """Record the plan that the run must follow, once its first checkpoint is complete."""

    def check(self) -> None:
        """Raise a RunError if a released value has changed although no step may update it."""

    def state(self) -> EngineState:
        """Return the random state of the next step, for a checkpoint; secret."""


@dataclass
class StepStatistics:
    """Private statistics of the records of a step, only for private/diagnostics.jsonl."""

    step: int
    batch_size: int
    """Number of units drawn."""
    losses: list[Tensor] = field(default_factory=list)
    """Per-example losses of each micro-batch, shape (b,), in nats; without filler rows."""
    norms: list[Tensor] = field(default_factory=list)
    """Gradient norms of the units of each micro-batch; shape (b,) if each example is a unit."""
    signal_and_noise: SignalAndNoise | None = None
    """Norms of the step's mean clipped gradient and of its noise; None if they are not measured."""


@dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """The training records, and how they are batched for the model."""

    examples: Sequence[Any]
    micro_batch_size: int
    layout: Layout
    device: torch.device
    micro_batch_tokens: int | None = None
    """Maximum number of tokens in a micro-batch (rows times padded length); None for no limit."""
    units: Sequence[Sequence[int]] | None = None
    """Positions in ``examples`` of the records of each privacy unit, at most ``micro_batch_size``
    per unit. None if each example is a unit."""
    share: RankShare = EVERYTHING
    """Which micro-batches of a logical batch this process takes."""
    view: RowView | None = None
    """Creates a new view of a row at each draw; None if the model reads the row itself."""
    excluded: int = 0
    """Number of records that were skipped because they contain nothing to learn; private."""

    @property
    def num_records(self) -> int:
        """Number of records that take part in training; private."""
        units = self.units
        return len(self.examples) if units is None else sum(len(unit) for unit in units)

    @property
    def num_units(self) -> int:
        """True number of privacy units; private."""
        return len(self.examples if self.units is None else self.units)

    def micro_batches(
        self, indices: Sequence[int], *, views: ViewBits | None = None, step: int = 0
    ) -> Iterator[Batch]:
        """Yield this process's micro-batches of a logical batch, sorted by length and padded.

        Each micro-batch is created only when it is requested, because the images of all of them may
        not fit into memory. If rows are viewed, the views are drawn for ``step``, counted from 0.
        """
        rows = self.examples
        if self.view is not None:
            assert views is not None
            rows = ViewedRows(self.examples, self.view, views, step)
        return micro_batches(
            rows,
            indices,
            micro_batch_size=self.micro_batch_size,
            micro_batch_tokens=self.micro_batch_tokens,
            layout=self.layout,
            units=self.units,
            share=self.share,
        )


class StepRun(Protocol):
    """The run that takes the steps: its processes, and the actions after each weight update."""

    @property
    def ranks(self) -> Ranks:
        """The processes that take each step together."""

    def after_step(
        self, state: TrainingState, engine: StepEngine, statistics: StepStatistics
    ) -> None:
        """Record the step, save a checkpoint if one is due, and stop the run if requested."""


def train(
    state: TrainingState, training_set: TrainingSet, engine: StepEngine, run: StepRun
) -> None:
    """Take all remaining planned steps; leave the model in evaluation mode.

    An error on one rank ends all ranks, and one of them reports it.

    Args:
        state: The model, on ``training_set.device``, with its optimizer, schedule and method.
        training_set: The records.
        engine: Draws the records of each step and computes its gradient.
        run: Records each step; private values go to ``private/``.

    Raises:
        RunError: A weight is no longer finite.
        SaidElsewhere: Another process failed.
    """
    model, method = state.model, state.method
    model.train()
    with engine:
        for step in range(engine.steps_taken + 1, engine.steps + 1):
            method.begin_step(model, step - 1)
            statistics = compute_gradient(training_set, engine, step, run.ranks)
            method.finish_gradient(model)
            with run.ranks.failing_together():
                method.begin_update(state.optimizer, step - 1)
                state.optimizer.step()
                state.scheduler.step()
                check_weights(model, step)
            run.after_step(state, engine, statistics)
    model.eval()


def compute_gradient(
    training_set: TrainingSet, engine: StepEngine, step: int, ranks: Ranks = ALONE
) -> StepStatistics:
    """Leave the gradient of one logical batch in ``grad``; return the statistics of its records."""
    indices = engine.draw(training_set.num_units)
    statistics = StepStatistics(step=step, batch_size=len(indices))
    with ranks.failing_together():
        views = None if training_set.view is None else engine.views
        batches = training_set.micro_batches(indices, views=views, step=step - 1)
        for batch in sent_ahead(batches, training_set.device):
            accumulate(batch, engine, statistics)
    statistics.signal_and_noise = engine.finish_step()
    return statistics


def sent_ahead(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield batches on a device; on an accelerator, copy each batch while the previous one is used.

    At the same time, a thread creates the batch after the next one. The thread uses only randomness
    that is keyed by step and record, so batches are the same without it. An error in the thread is
    raised here, before any later batch is used.
    """
    if device.type == "cpu":
        yield from batches
        return
    source, ahead = iter(batches), None
    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(next, source, None)
        while (made := coming.result()) is not None:
            following = made.to(device)
            coming = worker.submit(next, source, None)
            if ahead is not None:
                yield ahead
            ahead = following
    if ahead is not None:
        yield ahead


def accumulate(batch: Batch, engine: StepEngine, statistics: StepStatistics) -> None:
    """Add one micro-batch to the gradient, and its losses and norms to ``statistics``."""
    result = engine.accumulate(batch, batch.rows_per_unit)
    is_filler = batch.is_filler
    statistics.losses.append(result.losses if is_filler is None else result.losses[~is_filler])
    if result.norms is not None:
        statistics.norms.append(result.norms)


def check_weights(model: nn.Module, step: int) -> None:
    """End the run if a weight that trains, or that has a gradient, is not finite.

    Raises:
        RunError: A weight is not finite. The message names the parameter and reveals nothing about
            the records of the step.
    """
    moving = {
        name: local(parameter.detach())
        for name, parameter in model.named_parameters()
        if parameter.requires_grad or parameter.grad is not None
    }
    moving = {name: values for name, values in moving.items() if values.numel()}
    if not moving:
        return
    # The largest magnitude of each parameter, with few operations and one device synchronization.
    largest = torch._foreach_norm(list(moving.values()), math.inf)
    widest = reduce(torch.promote_types, {norm.dtype for norm in largest})
    finite = torch.stack([norm.to(widest) for norm in largest]).isfinite().tolist()
    for name, is_finite in zip(moving, finite, strict=True):
        if not is_finite:
            raise RunError(
                f"parameter {name} is not finite after step {step}. Lower train.learning_rate or"
                " raise train.expected_batch_size.",
            )
