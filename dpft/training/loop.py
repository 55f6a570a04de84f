"""The training loop, written like Algorithm 1 of Abadi et al. 2016.

It knows no task, method or privacy: an engine hands it batches and turns losses into gradients, the
state's method decides what trains, and a run writes down each step.
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
    """Hands out a step's batch and makes its losses one gradient; private or ordinary."""

    @property
    def views(self) -> ViewBits:
        """What random views of records are drawn from."""

    @property
    def steps_taken(self) -> int:
        """Step that the weights have taken."""

    @property
    def steps(self) -> int:
        """The step to end at."""

    @property
    def non_finite(self) -> int:
        """Examples left out so far because their loss or gradient was not finite; private."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...

    def draw(self, num_units: int) -> list[int]:
        """Start a step and return the indices of its batch, units of the data."""

    def accumulate(self, batch: Any, rows_per_unit: int = 1) -> MicroBatchResult:
        """Add one micro-batch, in which the rows of each privacy unit are contiguous."""

    def finish_step(self) -> SignalAndNoise | None:
        """Leave the step's gradient in ``grad`` of every trainable parameter.

        Returns:
            How long its signal and its noise are, where that is measured; private.
        """

    def begin(self) -> None:
        """Write down what the run is bound to, once its first checkpoint is complete."""

    def check(self) -> None:
        """Raise a RunError if what is released and no step changes is not as it was."""

    def state(self) -> EngineState:
        """Return what the next step draws from, for a checkpoint; secret."""


@dataclass
class StepStatistics:
    """What a step says of its records. Private: for private/diagnostics.jsonl alone."""

    step: int
    batch_size: int
    """Units drawn."""
    losses: list[Tensor] = field(default_factory=list)
    """Per-example losses of each micro-batch, shape (b,), in nats; without filler rows."""
    norms: list[Tensor] = field(default_factory=list)
    """Gradient norms of each micro-batch's units, shape (b,) where each example is one."""
    signal_and_noise: SignalAndNoise | None = None
    """Lengths of the step's mean clipped gradient and of its noise; None: not measured."""


@dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """The training records and how they travel to the model."""

    examples: Sequence[Any]
    micro_batch_size: int
    layout: Layout
    device: torch.device
    micro_batch_tokens: int | None = None
    """Most rows times padded tokens of a micro-batch; None: no bound."""
    units: Sequence[Sequence[int]] | None = None
    """Positions in ``examples`` of each privacy unit's records, at most ``micro_batch_size`` of
    them; None: each example is a unit of its own."""
    share: RankShare = EVERYTHING
    """Which micro-batches of a logical batch this process takes."""
    view: RowView | None = None
    """Makes what is read of a row, anew at each draw; None: the row itself is read."""
    excluded: int = 0
    """Records that were left out because they have nothing to learn; private."""

    @property
    def num_records(self) -> int:
        """How many records take part; private."""
        units = self.units
        return len(self.examples) if units is None else sum(len(unit) for unit in units)

    @property
    def num_units(self) -> int:
        """How many units there really are; private."""
        return len(self.examples if self.units is None else self.units)

    def micro_batches(
        self, indices: Sequence[int], *, views: ViewBits | None = None, step: int = 0
    ) -> Iterator[Batch]:
        """Yield this process's batches of a logical batch, sorted by length and padded.

        Each is made when it is asked for: images of all of them may not fit into memory. Where rows
        are viewed, views are drawn for ``step``, counted from 0.
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
    """Where the steps are taken: the processes, and what they do when the weights have moved."""

    @property
    def ranks(self) -> Ranks:
        """The processes that take each step together."""

    def after_step(
        self, state: TrainingState, engine: StepEngine, statistics: StepStatistics
    ) -> None:
        """Write down the step, save a checkpoint if one is due, and end if that was requested."""


def train(
    state: TrainingState, training_set: TrainingSet, engine: StepEngine, run: StepRun
) -> None:
    """Take every planned step that is not taken yet; leave the model in evaluation mode.

    An error on one of the ranks ends all of them, and one of them reports it.

    Args:
        state: The model, on ``training_set.device``, and what moves it.
        training_set: The records.
        engine: Draws each step's records and computes its gradient.
        run: Writes down each step; private numbers of its records go to ``private/``.

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
    """Leave the gradient of one logical batch in ``grad``; return what its records showed."""
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
    """Yield batches on a device; to an accelerator the next one is sent before each is used.

    A thread makes the one after that meanwhile. It draws nothing but what is keyed by step and
    record, so that batches are the same; an error in it is raised here, before what follows.
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
    """Add one micro-batch to the gradient and its losses and norms to ``statistics``."""
    result = engine.accumulate(batch, batch.rows_per_unit)
    is_filler = batch.is_filler
    statistics.losses.append(result.losses if is_filler is None else result.losses[~is_filler])
    if result.norms is not None:
        statistics.norms.append(result.norms)


def check_weights(model: nn.Module, step: int) -> None:
    """End the run if a weight that trains, or that has a gradient to move by, is not finite.

    Raises:
        RunError: Naming the parameter; nothing of the step's records.
    """
    moving = {
        name: local(parameter.detach())
        for name, parameter in model.named_parameters()
        if parameter.requires_grad or parameter.grad is not None
    }
    moving = {name: values for name, values in moving.items() if values.numel()}
    if not moving:
        return
    # the largest magnitude of each, by few operations and in one look at the device
    largest = torch._foreach_norm(list(moving.values()), math.inf)
    widest = reduce(torch.promote_types, {norm.dtype for norm in largest})
    finite = torch.stack([norm.to(widest) for norm in largest]).isfinite().tolist()
    for name, is_finite in zip(moving, finite, strict=True):
        if not is_finite:
            raise RunError(
                f"parameter {name} is not finite after step {step}. Lower train.learning_rate or"
                " raise train.expected_batch_size.",
            )
