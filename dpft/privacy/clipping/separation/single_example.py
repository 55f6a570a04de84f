"""Single-example re-execution: whether a row of a model's output changes with the rows beside it.

A gradient cannot show this where the influence is detached, as that of batch statistics may be. So
every row (every unit, where a unit has several) is run by itself, and all of them once more in
another order: what comes out may differ by rounding alone. What a call leaves in the model's
buffers must not depend on its rows either: the next batch would be computed with it.

What is compared is counted. An output is read as rows along the dimension that follows their
number. One whose size follows it in another way, or of which some run shows nothing, cannot be
compared and is refused; so is a result of which no tensor carries rows, or of which a part cannot
be opened (``nested_values``). A scalar or table whose size stays the same is no row's: what the
caller makes of it shows in the losses (``cross_example``).

>>> import torch
>>> model, rows = torch.nn.Linear(2, 2), torch.randn(4, 2)
>>> each = [torch.tensor([row]) for row in range(4)]
>>> mixed_output(model, model.forward, ((rows,), {}), each)
(None, False)
>>> centered = lambda x: {"own": x, "mixed": x - 0.001 * x.mean(0)}
>>> mixed_output(model, centered, ((rows,), {}), each)
("output ['mixed']", False)
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpft.batch_mixing import check_model
from dpft.errors import InputError, RunError, is_out_of_memory
from dpft.privacy.clipping.separation.reexecution import (
    BufferSnapshot,
    DeterministicMode,
    RandomState,
    batch_size_of,
    evaluating,
    named_tensors,
    pick_rows,
    places_of_rows,
    sealed_types,
    state_preserved,
)

logger = logging.getLogger(__name__)

ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Share of an output's size that rounding may move, in models of a hundred layers.

A model in float64 may compute a softmax in float32."""
ROUNDING_IN_HALF = 3e-2
Arguments = tuple[Sequence[Any], Mapping[str, Any]]
Forward = Callable[..., Any]


RETURN_INSTEAD = "a tensor, tuple, dict, dataclass or ModelOutput"


class ExamplesMixed(RunError):
    """What a model gives for one example changes with the others of its batch."""


class NothingCompared(ExamplesMixed):
    """It cannot be seen whether what a model gives for one example changes with the others."""


def check_modes(model: nn.Module) -> None:
    """Refuses layers that mix examples in the mode they are in, such as a batch norm that trains.

    Raises:
        ExamplesMixed: There is such a layer.
    """
    try:
        check_model(model)
    except InputError as error:
        raise ExamplesMixed(str(error)) from error


def check_single_examples(
    root: nn.Module, forward: Forward, arguments: Arguments, units: Tensor | None
) -> bool:
    """Runs every row, or every unit's rows, without the others; as ``mixed_output``.

    Args:
        root: As ``mixed_output``.
        forward: As ``mixed_output``.
        arguments: As ``mixed_output``.
        units: Unit of each row, or None where each row is its own.

    Returns:
        Whether the model draws random numbers, dropout aside.

    Raises:
        RunError: A row comes out otherwise than among the others, or that cannot be seen.
    """
    count, name = batch_size_of(arguments), type(root).__name__
    units = units if units is not None and len(units) == count else None
    remedy = f"pass {name} tensors, or {RETURN_INSTEAD} of them"
    _check_is_open(arguments, remedy, f"given to {name}")
    try:
        mixed, draws = mixed_output(root, forward, arguments, list(rows_by_unit(units, count)))
    except NothingCompared:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # Its message may tell the records' lengths.
        logger.info("clipping: the model would not run on rows alone (%s)", type(error).__name__)
        raise NothingCompared(
            f"{name} does not run on some of its batch's rows, so that nobody can see whether one "
            "example changes what it gives for another; let its forward take tensors that carry "
            "the batch in front, of any number of rows."
        ) from error
    if mixed is not None:
        raise ExamplesMixed(
            f"the {mixed} of {name} for one example changes with the other examples "
            "of its batch, so no clipping bounds what one of them does; choose another model, or "
            "give the rows that belong together as units."
        )
    return draws


def _check_is_open(value: Any, remedy: str, what: str) -> None:
    """Refuses a nested value of which a part cannot be opened."""
    for place, kind in sealed_types(value).items():
        raise NothingCompared(
            f"a {kind} {what} at {place or 'top'} cannot be opened, so that nobody can see whether "
            f"it carries one example's numbers to another; {remedy}."
        )


def mixed_output(
    root: nn.Module, forward: Forward, arguments: Arguments, groups: Sequence[Tensor]
) -> tuple[str | None, bool]:
    """Returns what of a call changes for one group of rows with the others, in words, or None.

    Also returns whether the model draws random numbers, dropout aside.

    In training mode, deterministic; where the model draws numbers even so, in evaluation mode. In
    float32, whatever autocast says, where the model runs so.

    Args:
        root: The model; its buffers and the random state stay as they are.
        forward: The model's own forward.
        arguments: Positional and keyword arguments of a call; the first tensor carries the batch.
        groups: Numbers of the rows that belong together, each row in one of them.

    Raises:
        NothingCompared: Some output cannot be compared, or none of those that can is a row's.
    """
    with state_preserved(root), torch.no_grad(), DeterministicMode():
        trained = _Runs(root, forward, arguments)
        found = trained.first_mixed(groups)
        if found is not None and trained.draws:
            with evaluating(root):
                found = _Runs(root, forward, arguments).first_mixed(groups)
    return found, trained.draws


@dataclass(frozen=True)
class _Reading:
    """How an output may carry rows: ``per`` entries of each, along one of its dimensions.

    Attributes:
        axis: The dimension.
        per: How many entries of it belong to a row: tokens in one line, say.
        interleaved: Whether a row's entries lie apart: all rows' first ones, then the second.
        of_groups: Whether it is one of each group, rather than of each row.
    """

    axis: int
    per: int
    interleaved: bool
    of_groups: bool

    def rows(self, tensor: Tensor) -> Tensor:
        """Returns all rows, (n, per, ...), in the tensor's own memory where that can be."""
        front = tensor.movedim(self.axis, 0)
        shape = (self.per, -1) if self.interleaved else (-1, self.per)
        apart = front.reshape(*shape, *front.shape[1:])
        return apart.transpose(0, 1) if self.interleaved else apart


@dataclass(frozen=True)
class _Run:
    """Some rows that run.

    Attributes:
        rows: Their numbers.
        compared: Which of these say something, as places among ``rows``; None for all.
        group: Number of the group whose rows these are; None where they are of several.
    """

    rows: Tensor
    compared: Tensor | None = None
    group: int | None = None


@dataclass
class _Comparison:
    """What one run showed.

    Attributes:
        mixed: What came out otherwise, in words, or None.
        readings: Of each output that was compared, those in which it came out the same.
        rowless: Outputs whose shape does not follow the number of rows.
        unseen: Outputs of which nothing could be compared.
    """

    mixed: str | None = None
    readings: dict[str, set[_Reading]] = field(default_factory=dict)
    rowless: set[str] = field(default_factory=set)
    unseen: set[str] = field(default_factory=set)


class _Runs:
    """One call of a model with all of its rows, and with some of them."""

    def __init__(self, root: nn.Module, forward: Forward, arguments: Arguments) -> None:
        self._root, self._forward, self._arguments = root, forward, arguments
        self._count = batch_size_of(arguments)
        self._buffers = BufferSnapshot(root)
        device = next((t.device for t in named_tensors(arguments).values()), torch.device("cpu"))
        self._random = RandomState.now(device)
        self._precise, self._with_graph = True, False
        outputs = self._first_outputs()
        self._left = self._buffers.changed()
        self.draws: bool = self._random.was_left
        """Whether the call drew random numbers, dropout's aside."""
        remedy = f"return {RETURN_INSTEAD} of tensors that carry the batch"
        _check_is_open(outputs, remedy, f"returned by {type(root).__name__}")
        self._kind = type(outputs).__name__
        self._whole = {place: tensor.detach() for place, tensor in named_tensors(outputs).items()}
        halves = {torch.bfloat16, torch.float16}
        self._half = any(p.dtype in halves for p in root.parameters()) or (
            not self._precise and torch.is_autocast_enabled(device.type)
        )
        self._allowed = {place: self._rounding(rows) for place, rows in self._whole.items()}
        """How far each output of a row may come out otherwise."""
        self._readings: dict[str, set[_Reading]] = {}
        self._rowless: set[str] = set()
        self._changing: set[str] = set()
        """Outputs of which some rows gave another shape than all."""
        self._groups = 0

    def _first_outputs(self) -> Any:
        """Returns what all rows give, in the first of the ways in which the model runs.

        In float32; else as autocast says; else with gradients enabled, as a forward may ask for
        those of its inputs.
        """
        for self._precise, self._with_graph in ((True, False), (False, False)):
            try:
                return self._run(self._arguments)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                logger.info("clipping: the model does not run bare (%s)", type(error).__name__)
        self._with_graph = True
        return self._run(self._arguments)

    def first_mixed(self, groups: Sequence[Tensor]) -> str | None:
        """Returns what differs first for rows without the others or in another order, or None.

        Raises:
            NothingCompared: Nothing, or not all, could be compared.
        """
        if len(groups) < 2:
            return None
        self._groups = len(groups)
        alone = (_Run(rows, group=number) for number, rows in enumerate(groups))
        try:
            found, unseen = self._first_difference(alone)
            everything = bool(unseen)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            everything, unseen = True, set(self._whole)
        if everything:
            # Not made for fewer rows, or of another shape there: as many, of which some are others.
            found, left = self._first_difference(_exchanged(groups, self._count))
            unseen &= left
        if found is not None:
            return found
        name = type(self._root).__name__
        for place in unseen - self._rowless:
            raise NothingCompared(
                f"the output {place} of {name} cannot be compared with that of its rows alone; let "
                "it have as many rows, in front, as the batch, each from its own example."
            )
        if not any(self._whole[place].dtype.is_floating_point for place in self._readings):
            raise NothingCompared(
                f"the {self._kind} that {name} returns holds no tensor with the batch's rows, so "
                "that nobody can see whether one example changes what it gives for another; return "
                f"{RETURN_INSTEAD} of tensors that carry the batch in front."
            )
        # All rows once more in another order, the same each time; a group's rows stay together.
        generator = torch.Generator().manual_seed(self._count)
        order = torch.randperm(len(groups), generator=generator)
        rows = torch.cat([groups[place] for place in order.tolist()])
        rows = rows if not torch.equal(rows, torch.arange(self._count)) else rows.flip(0)
        try:
            return self._first_difference([_Run(rows)])[0]
        except Exception as error:
            if is_out_of_memory(error):
                raise
            # A packed sequence may want the longest first. Each row was compared with itself.
            logger.info("clipping: the model wants its rows' order (%s)", type(error).__name__)
            return None

    def _first_difference(self, runs: Iterable[_Run]) -> tuple[str | None, set[str]]:
        """Returns what differs first in runs of some rows, or None; and what was not compared."""
        unseen: set[str] = set()
        for run in runs:
            seen = self._comparison(run)
            if seen.mixed is not None:
                other = self._another_reading(run)
                if other is None:
                    return seen.mixed, unseen
                seen = other
            self._readings |= seen.readings
            self._rowless |= seen.rowless
            unseen |= seen.unseen
        return None, unseen

    def _another_reading(self, run: _Run) -> _Comparison | None:
        """Returns what shows no difference where one argument is not taken for rows, or None.

        An argument may have as many entries as there are examples, and be no list of examples.
        """
        _, *others = places_of_rows(self._arguments, self._count)
        for place in others:
            try:
                seen = self._comparison(run, whole=(place,))
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                continue
            if seen.mixed is None:
                return seen
        return None

    def _comparison(self, run: _Run, whole: Sequence[str] = ()) -> _Comparison:
        """Returns what some rows' outputs show beside what all rows gave."""
        try:
            seen = self._compared(run, whole)
            if len(run.rows) > 1 or not seen.unseen:
                return seen
        except Exception as error:
            if len(run.rows) > 1 or is_out_of_memory(error):
                raise
        # A row that cannot be alone, or has another shape then, runs beside itself.
        return self._compared(_Run(run.rows.repeat(2)), whole)

    def _compared(self, run: _Run, whole: Sequence[str]) -> _Comparison:
        outputs = self._run(pick_rows(self._arguments, run.rows, whole=whole))
        got, seen = named_tensors(outputs), _Comparison()
        for place, expected in self._whole.items():
            found = got.get(place)
            if found is None or found.shape != expected.shape:
                self._changing.add(place)
            else:
                # Whether it follows the number of rows, as far as runs of as many can tell.
                multiple = any(size and size % self._count == 0 for size in expected.shape)
                has_rows = place not in self._rowless and (multiple or place in self._changing)
                if len(run.rows) != self._count or not has_rows:
                    seen.rowless.add(place)
                    continue
            # Rows are compared past the mode that they ran in.
            with torch._C.DisableTorchFunction():
                readings = [] if found is None else self._fitting(place, found, run)
                if found is None or not readings:
                    seen.unseen.add(place)
                    continue
                seen.readings[place] = {
                    reading for reading in readings if self._is_same(place, found, run, reading)
                }
            if not seen.readings[place]:
                seen.mixed = f"output {place}".rstrip()
                return seen
        seen.mixed = self._difference_left()
        return seen

    def _fitting(self, place: str, found: Tensor, run: _Run) -> list[_Reading]:
        """Returns the ways in which an output can be rows, of those that earlier runs left."""
        expected = self._whole[place]
        if found.dim() != expected.dim():
            return []
        ways = []
        sizes = [(self._count, len(run.rows), False)]
        if run.group is not None and self._groups != self._count:
            sizes.append((self._groups, 1, True))
        for axis, size in enumerate(expected.shape):
            others = [n for n in range(expected.dim()) if n != axis]
            if any(found.shape[n] != expected.shape[n] for n in others):
                continue
            for all_of_them, some, of_groups in sizes:
                per = size // all_of_them
                if per and size == per * all_of_them and found.shape[axis] == per * some:
                    ways += [
                        _Reading(axis, per, interleaved, of_groups)
                        for interleaved in (False, True)[: 1 + (per > 1)]
                    ]
        known = self._readings.get(place)
        return ways if known is None else [way for way in ways if way in known]

    def _is_same(self, place: str, found: Tensor, run: _Run, reading: _Reading) -> bool:
        """Whether the rows that run are, read in one way, what they were among all.

        One row after the other: to compare logits of all at once takes the memory of six more.
        """
        here, there = [0], [run.group]
        if not reading.of_groups:
            compared = torch.arange(len(run.rows)) if run.compared is None else run.compared
            here, there = compared.tolist(), run.rows[compared].tolist()
        wanted, got = reading.rows(self._whole[place]), reading.rows(found.detach())
        inexact = wanted.dtype.is_floating_point or wanted.dtype.is_complex
        alike = partial(_are_near, atol=self._allowed[place]) if inexact else torch.equal
        pairs = ((got[row], wanted[among]) for row, among in zip(here, there, strict=True))
        return all(alike(*pair) for pair in pairs)

    def _difference_left(self) -> str | None:
        left = self._buffers.changed()
        for place in {*left, *self._left}:
            mine, other = left.get(place), self._left.get(place)
            if mine is None or other is None or mine.shape != other.shape:
                return f"buffer {place[1]}"
            if not torch.allclose(mine.double(), other.double(), rtol=1e-5, equal_nan=True):
                return f"buffer {place[1]}"
        return None

    def _run(self, arguments: Arguments) -> Any:
        self._buffers.restore()
        self._random.restore()
        args, kwargs = arguments
        device = self._random.device.type
        with (
            torch.autocast(device, enabled=False) if self._precise else nullcontext(),
            torch.set_grad_enabled(self._with_graph),
        ):
            return self._forward(*args, **kwargs)

    def _rounding(self, expected: Tensor) -> float:
        inexact = expected.dtype.is_floating_point or expected.dtype.is_complex
        if not inexact or not expected.numel():
            return 0.0
        share = ROUNDING_IN_HALF if self._half else ROUNDING.get(expected.dtype, ROUNDING_IN_HALF)
        return share * float(expected.abs().nan_to_num(0.0, 0.0, 0.0).max())


def _are_near(one: Tensor, other: Tensor, *, atol: float) -> bool:
    """Whether numbers are the same but for ``atol``; ``allclose`` reads them four times as often.

    The largest difference says nothing of what is not finite.
    """
    largest = float((one - other).abs().amax()) if one.numel() else 0.0
    if math.isfinite(largest):
        return largest <= atol
    return torch.allclose(one, other, rtol=0, atol=atol, equal_nan=True)


def _exchanged(groups: Sequence[Tensor], count: int) -> Iterator[_Run]:
    """Yields all rows with those of some groups replaced by others', of which the rest stays.

    Any two groups are apart in one of the runs: one stays, and the other one is replaced.
    """
    for bit in range((len(groups) - 1).bit_length()):
        for value in (0, 1):
            kept = [rows for n, rows in enumerate(groups) if n >> bit & 1 == value]
            others = [rows for n, rows in enumerate(groups) if n >> bit & 1 != value]
            stays, changes = torch.cat(kept), torch.cat(others)
            rows = torch.arange(count)
            rows[changes] = stays[torch.arange(len(changes)) % len(stays)]
            yield _Run(rows, compared=stays)


def rows_by_unit(units: Tensor | None, count: int) -> Iterator[Tensor]:
    """Yields the rows of each unit, or each row by itself where units are not given.

    Args:
        units: Unit of each row, shape (count,).
        count: Number of rows.
    """
    if units is None:
        yield from torch.arange(count)[:, None]
        return
    for unit in units.unique():
        yield (units == unit).nonzero()[:, 0].cpu()
