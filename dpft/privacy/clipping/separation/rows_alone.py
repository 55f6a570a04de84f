"""Whether a row of a model's output changes with the rows beside it, seen by running it alone.

A gradient cannot show this where the influence is detached, as that of batch statistics may be. So
every row (every unit, where a unit has several) is run by itself, and all of them once more in
another order: what comes out may differ by rounding alone. What a call leaves in the model's
buffers must not depend on its rows either: the next batch would be computed with it.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dpft.batch_mixing import check_model
from dpft.errors import InputError, RunError
from dpft.privacy.clipping.separation.arguments import (
    batch_size_of,
    named_tensors,
    pick_rows,
    places_of_rows,
)
from dpft.privacy.clipping.separation.held_still import HeldStill
from dpft.privacy.clipping.separation.kept_state import (
    Buffers,
    RandomState,
    evaluating,
    state_kept,
)

logger = logging.getLogger(__name__)

ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Share of an output's size that rounding may move, in models of a hundred layers.

A model in float64 may compute a softmax in float32."""
ROUNDING_IN_HALF = 3e-2
Arguments = tuple[Sequence[Any], Mapping[str, Any]]
Forward = Callable[..., Any]


class RowsMixed(RunError):
    """What a model gives for one example changes with the others of its batch."""


def check_modes(model: nn.Module) -> None:
    """Refuses layers that mix examples in the mode they are in, such as a batch norm that trains.

    Raises:
        RowsMixed: There is such a layer.
    """
    try:
        check_model(model)
    except InputError as error:
        raise RowsMixed(str(error)) from error


def check_rows_alone(
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
        RunError: A row comes out otherwise than among the others.
    """
    count = batch_size_of(arguments)
    units = units if units is not None and len(units) == count else None
    try:
        mixed, draws = mixed_output(root, forward, arguments, list(each_alone(units, count)))
    except Exception as error:
        # Its message may tell the records' lengths.
        logger.info("clipping: the model would not run on rows alone (%s)", type(error).__name__)
        return True
    if mixed is not None:
        raise RowsMixed(
            f"the {mixed} of {type(root).__name__} for one example changes with the other examples "
            "of its batch, so no clipping bounds what one of them does; choose another model, or "
            "give the rows that belong together as units."
        )
    return draws


def mixed_output(
    root: nn.Module, forward: Forward, arguments: Arguments, companies: Sequence[Tensor]
) -> tuple[str | None, bool]:
    """Returns what of a call changes for one company of rows with the others, in words, or None.

    Also returns whether the model draws random numbers, dropout aside.

    In training mode, held still; where the model draws numbers even so, in evaluation mode. In
    float32, whatever autocast says, where the model runs so.

    Args:
        root: The model; its buffers and the random state stay as they are.
        forward: The model's own forward.
        arguments: Positional and keyword arguments of a call; the first tensor carries the batch.
        companies: Numbers of the rows that belong together, each row in one of them.
    """
    with state_kept(root), torch.no_grad(), HeldStill():
        trained = _Runs(root, forward, arguments)
        found = trained.first_mixed(companies)
        if found is not None and trained.draws:
            with evaluating(root):
                found = _Runs(root, forward, arguments).first_mixed(companies)
    return found, trained.draws


class _Runs:
    """One call of a model with all of its rows, and with some of them."""

    def __init__(self, root: nn.Module, forward: Forward, arguments: Arguments) -> None:
        self._root, self._forward, self._arguments = root, forward, arguments
        self._count = batch_size_of(arguments)
        self._buffers = Buffers(root)
        device = next((t.device for t in named_tensors(arguments).values()), torch.device("cpu"))
        self._random = RandomState.now(device)
        self._precise = True
        try:
            outputs = self._run(arguments)
        except Exception:
            self._precise = False
            outputs = self._run(arguments)
        self._left = self._buffers.changed()
        self.draws: bool = self._random.was_left
        """Whether the call drew random numbers, dropout's aside."""
        self._whole = {
            place: rows for place, rows in named_tensors(outputs).items() if self._has_rows(rows)
        }
        halves = {torch.bfloat16, torch.float16}
        self._half = any(p.dtype in halves for p in root.parameters()) or (
            not self._precise and torch.is_autocast_enabled(device.type)
        )
        self._allowed = {place: self._rounding(rows) for place, rows in self._whole.items()}
        """How far each output of a row may come out otherwise."""

    def first_mixed(self, companies: Sequence[Tensor]) -> str | None:
        """Returns what differs first for rows without the others or in another order, or None."""
        if len(companies) < 2:
            return None
        try:
            found = self._first_difference((rows, rows) for rows in companies)
        except Exception:
            # Not made for fewer rows: as many, of which some are others.
            found = self._first_difference(_exchanged(companies, self._count))
        order = _another_order(self._count, companies)
        return found or self._first_difference([(order, order)])

    def _first_difference(self, runs: Iterable[tuple[Tensor, Tensor]]) -> str | None:
        """Returns what differs first in runs of some rows, of which some are compared, or None."""
        for rows, compared in runs:
            found = self._difference(rows, compared)
            if found is not None and not self._has_another_reading(rows, compared):
                return found
        return None

    def _has_another_reading(self, rows: Tensor, compared: Tensor) -> bool:
        """Whether the difference goes away where one argument is not taken for rows.

        An argument may have as many entries as there are examples, and be no list of examples.
        """
        _, *others = places_of_rows(self._arguments, self._count)
        for place in others:
            try:
                if self._difference(rows, compared, whole=(place,)) is None:
                    return True
            except Exception:
                continue
        return False

    def _difference(self, rows: Tensor, compared: Tensor, whole: Sequence[str] = ()) -> str | None:
        """Returns the first place where some rows come out otherwise, or None.

        Args:
            rows: Which rows run.
            compared: What must come out as before, at their own places where all rows run.
            whole: Places of arguments that are no rows.

        Raises:
            Exception: As the model raises on these rows.
        """
        got = self._outputs_of(rows, whole)
        for place, expected in self._whole.items():
            found = got.get(place)
            if found is None or found.shape != (len(rows), *expected.shape[1:]):
                continue
            wanted = expected[compared.to(expected.device)]
            if len(rows) > len(compared):
                found = found[compared.to(found.device)]
            if not torch.allclose(found, wanted, rtol=0, atol=self._allowed[place], equal_nan=True):
                return f"output {place}".rstrip()
        return self._difference_left()

    def _outputs_of(self, rows: Tensor, whole: Sequence[str]) -> dict[str, Tensor]:
        """Returns outputs of some rows; a row that cannot be alone is run beside itself."""
        try:
            got = named_tensors(self._run(pick_rows(self._arguments, rows, whole=whole)))
            if len(rows) > 1 or self._fits(got):
                return got
        except Exception:
            if len(rows) > 1:
                raise
        twice = pick_rows(self._arguments, rows.repeat(2), whole=whole)
        outputs = named_tensors(self._run(twice))
        return {place: t[:1] for place, t in outputs.items() if t.dim() and len(t) == 2}

    def _fits(self, got: Mapping[str, Tensor]) -> bool:
        return all(
            place in got and got[place].shape == (1, *expected.shape[1:])
            for place, expected in self._whole.items()
        )

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
        with torch.autocast(device, enabled=False) if self._precise else nullcontext():
            return self._forward(*args, **kwargs)

    def _has_rows(self, tensor: Tensor) -> bool:
        return tensor.is_floating_point() and tensor.dim() > 0 and len(tensor) == self._count

    def _rounding(self, expected: Tensor) -> float:
        share = ROUNDING_IN_HALF if self._half else ROUNDING.get(expected.dtype, ROUNDING_IN_HALF)
        return share * float(expected.abs().nan_to_num(0.0, 0.0, 0.0).max())


def _exchanged(companies: Sequence[Tensor], count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields all rows with those of some companies replaced by others', and the rows that stay.

    Any two companies are apart in one of the pairs: one stays, and the other one is replaced.
    """
    for bit in range((len(companies) - 1).bit_length()):
        for value in (0, 1):
            kept = [rows for n, rows in enumerate(companies) if n >> bit & 1 == value]
            others = [rows for n, rows in enumerate(companies) if n >> bit & 1 != value]
            stays, changes = torch.cat(kept), torch.cat(others)
            rows = torch.arange(count)
            rows[changes] = stays[torch.arange(len(changes)) % len(stays)]
            yield rows, stays


def _another_order(count: int, companies: Sequence[Tensor]) -> Tensor:
    """Returns an order of rows other than theirs, the same whenever it is asked for.

    Companies of several rows stay together.
    """
    generator = torch.Generator().manual_seed(count)
    order = torch.randperm(len(companies), generator=generator)
    rows = torch.cat([companies[place] for place in order.tolist()])
    return rows if not torch.equal(rows, torch.arange(count)) else rows.flip(0)


def each_alone(units: Tensor | None, count: int) -> Iterator[Tensor]:
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
