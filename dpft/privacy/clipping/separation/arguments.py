"""The nested arguments of a call of a model: their tensors, and calls of fewer or more rows."""

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def named_tensors(tree: Any) -> dict[str, Tensor]:
    """Returns the tensors of nested arguments or results by their places."""
    places, _ = pytree.tree_flatten_with_path(tree)
    return {pytree.keystr(place): leaf for place, leaf in places if isinstance(leaf, Tensor)}


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

    def take(place: Any, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0 or len(leaf) != count:
            return fresh(leaf)
        if pytree.keystr(place) in whole:
            return leaf
        return leaf.detach()[rows.to(leaf.device)]

    return pytree.tree_map_with_path(take, arguments)


def fresh(leaf: Any) -> Any:
    """Returns an argument that a forward may change: a copy of a cache, anything else itself."""
    return copy.deepcopy(leaf) if type(leaf).__name__.endswith("Cache") else leaf
