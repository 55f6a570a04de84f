"""The nested arguments of a call of a model: how many rows they carry, and calls of other rows."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from dpft.privacy.clipping.separation.nested_values import map_tensors, named_tensors


def batch_size_of(arguments: Any) -> int:
    """Returns the leading dimension of the first tensor among nested arguments; 0 for none."""
    return next((len(x) for x in named_tensors(arguments).values() if x.dim()), 0)


def places_of_rows(arguments: Any, count: int) -> list[str]:
    """Returns the places of the tensors that have ``count`` rows, the first argument's first."""
    return [
        place
        for place, leaf in named_tensors(arguments).items()
        if leaf.dim() and len(leaf) == count
    ]


def take_rows(arguments: Any, rows: int) -> Any:
    """Returns the arguments with ``rows`` examples in place of however many there are."""
    count = batch_size_of(arguments)
    return pick_rows(arguments, torch.arange(rows) % max(count, 1))


def pick_rows(arguments: Any, rows: Tensor, *, whole: Collection[str] = ()) -> Any:
    """Returns the arguments with some of their examples, in an order of their own.

    Args:
        arguments: Whose first tensor carries the batch in front.
        rows: Numbers of the rows to take, shape (n,).
        whole: Places whose tensors are left as they are, though they have as many rows.
    """
    count = batch_size_of(arguments)

    def take(place: str, leaf: Tensor) -> Tensor:
        if leaf.dim() == 0 or len(leaf) != count or place in whole:
            return leaf
        return leaf.detach()[rows.to(leaf.device)]

    return map_tensors(arguments, take)
