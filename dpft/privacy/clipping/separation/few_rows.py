"""Which rows of a batch a new kind of call is proved on: few, in other company, in another order.

A model or loss that sorts its rows, or gathers them by value, may meet a batch that is in order
already; one that divides by their number shows it only where there are more or fewer. So the rows
are never taken as they lie, and never all of them.

Nor is one choice enough: what only the row of the maximum shows, or what hangs on a second largest
value, is the same on rows without it. So losses are compared on three choices, of which the largest
loss is in two and the second largest in one at most, and no row is in all: whichever row holds a
maximum, some choice goes without it. Two of them are of low and of high losses, so that medians and
ranks are not what they are among all.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dpft.privacy.clipping.separation.nested_values import named_tensors

MOST_ROWS = 8
"""Rows of a proof: of eight, weights tell every two apart in one backward pass (``proof``)."""


def few_rows(
    arguments: object, count: int, units: Tensor | None, losses: Tensor | None = None
) -> Tensor:
    """Returns the numbers of at most ``MOST_ROWS`` rows, at least two units where there are two.

    They are spread over the rows ordered by what marks a kind of row: how many of its numbers are
    not zero, in masks and ids. Of two or three rows one comes twice, so that their number differs.
    Their number is no other size of the arguments, where that can be.

    Args:
        arguments: Of the call; the first tensor carries the batch.
        count: Rows of the batch.
        units: Unit of each row, shape (count,), whose rows are taken together; None where each
            row is its own.
        losses: Of each row, or of each unit. The largest and the smallest are left out, and the
            fullest row, and then more of the larger ones, as far as three are left: what an example
            takes from a maximum, a rank or a mean of its batch is another then.
    """
    if units is not None:
        return _of_whole_units(units, losses)
    if count < 4:
        return torch.tensor([[], [0], [1, 0, 1], [2, 0, 1, 2]][count], dtype=torch.int64)
    fullness = _fullness(arguments, count)
    kept = _without_extremes(fullness, losses, count)
    ordered = kept[fullness[kept].argsort(stable=True)]
    number = _unlike_other_sizes(arguments, min(len(ordered), MOST_ROWS))
    places = torch.linspace(0, len(ordered) - 1, number).round().long()
    return _shuffled(ordered[places])


def other_rows(count: int, units: Tensor | None, losses: Tensor) -> list[Tensor]:
    """Returns two more choices of rows, none where there is but one row or unit.

    Args:
        count: Rows of the batch.
        units: As ``few_rows``.
        losses: Of each row, or of each unit.
    """
    if units is None:
        ranked = losses.detach().cpu().argsort().tolist()
        copies = 3 if count == 2 else 2
        return [
            _shuffled(torch.tensor(chosen if len(chosen) > 1 else chosen * copies))
            for chosen in _two_choices(ranked, MOST_ROWS)
        ]
    index = units.cpu().unique(return_inverse=True)[1]
    ranked = _units_by_loss(index, losses)
    most = max(2, MOST_ROWS // int(torch.bincount(index).max()))
    choices = _two_choices(ranked, most)
    return [_rows_of_units(index, torch.tensor(chosen)) for chosen in choices]


def _two_choices(ranked: Sequence[int], most: int) -> list[list[int]]:
    """Returns two lists of at most ``most`` numbers of those given in ascending order of losses.

    Of four and more both hold the largest, and neither the second largest. One has the lower and
    one the higher of the others: what is a rank or a median among all is neither's.
    """
    if len(ranked) < 2:
        return []
    *ordinary, second, largest = ranked
    if len(ordinary) < 2:
        return [[largest, *ordinary], [second]]
    half = len(ordinary) // 2
    halves = (ordinary[:half], ordinary[half:])
    return [[largest, *_spread(numbers, most - 1)] for numbers in halves]


def _spread(numbers: Sequence[int], most: int) -> list[int]:
    places = torch.linspace(0, len(numbers) - 1, min(len(numbers), most)).round().long()
    return [numbers[place] for place in places.tolist()]


def _without_extremes(fullness: Tensor, losses: Tensor | None, count: int) -> Tensor:
    """Returns the numbers of the rows that may be taken, at least three."""
    order, leave = torch.arange(count), [int(fullness.argmax())]
    if losses is not None and len(losses) == count:
        order = losses.detach().cpu().argsort()
        leave = [int(order[-1]), int(order[0]), *leave]
    for row in dict.fromkeys(leave[: count - 3]):
        order = order[order != row]
    return order[: max(3, MOST_ROWS, -(-2 * len(order) // 3))]


def _unlike_other_sizes(arguments: object, most: int) -> int:
    """Returns the largest number up to ``most`` that is no size of an argument; at least 3."""
    sizes = {size for tensor in named_tensors(arguments).values() for size in tensor.shape[1:]}
    return next((number for number in range(most, 2, -1) if number not in sizes), most)


def _of_whole_units(units: Tensor, losses: Tensor | None) -> Tensor:
    labels, index = units.cpu().unique(return_inverse=True)
    sizes = torch.bincount(index)
    order = _shuffled(torch.arange(len(labels)))
    if losses is not None and len(labels) > 1:
        order = order[order != _units_by_loss(index, losses)[-1]]
    fitting = int((sizes[order].cumsum(0) <= MOST_ROWS).sum())
    number = max(min(fitting, len(labels) - 1), min(2, len(order)))
    return _rows_of_units(index, order[:number])


def _units_by_loss(index: Tensor, losses: Tensor) -> list[int]:
    """Returns the numbers of units in ascending order of their losses."""
    each = losses.detach().cpu()
    if len(each) == len(index):
        each = torch.zeros(int(index.max()) + 1, dtype=each.dtype).index_add(0, index, each)
    return each.argsort().tolist()


def _rows_of_units(index: Tensor, numbers: Tensor) -> Tensor:
    """Returns the rows of some units, whose numbers ``index`` has for each row.

    In their own order: a caller may have put the first rows of all units before the second.
    """
    return torch.isin(index, numbers).nonzero()[:, 0]


def _fullness(arguments: object, count: int) -> Tensor:
    """Returns how many entries other than zero each row has in its whole-number arguments."""
    total = torch.zeros(count, dtype=torch.int64)
    for tensor in named_tensors(arguments).values():
        if tensor.dim() > 1 and len(tensor) == count and not tensor.is_floating_point():
            total += (tensor != 0).flatten(1).sum(1).cpu()
    return total


def _shuffled(rows: Tensor) -> Tensor:
    """Returns rows in an order other than theirs, the same whenever it is asked for."""
    generator = torch.Generator().manual_seed(len(rows))
    order = torch.randperm(len(rows), generator=generator)
    in_order = torch.equal(order, torch.arange(len(rows)))
    return rows[order.roll(1) if in_order else order]
