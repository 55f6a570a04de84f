"""Batches: pytrees of tensors whose leading dimension is the number of rows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_only

from dpft.errors import InputError


def count_rows(batch: Any) -> int:
    """Return the number of rows of a batch.

    Raises:
        InputError: A leaf is not a tensor, or its leading dimension differs from that of the
            others.
    """
    leaves = tree_flatten_with_path(batch)[0]
    tensors: dict[str, Tensor] = {}
    for path, leaf in leaves:
        if isinstance(leaf, Tensor):
            tensors[keystr(path)] = leaf
        elif leaf is not None:
            raise InputError(
                f"a batch must contain only tensors, but batch{keystr(path)} is a"
                f" {type(leaf).__name__}. Convert it to a tensor, or let losses_of provide data"
                " that is not per row.",
                key=f"batch{keystr(path)}",
            )
    if not tensors:
        raise InputError("a batch must contain tensors, got none.", key="batch")
    sizes = {place: leaf.shape[0] if leaf.dim() else None for place, leaf in tensors.items()}
    counts = list(sizes.values())
    rows = max(set(counts), key=counts.count)
    for place, size in sizes.items():
        if size is None or size != rows:  # No sizes: those of records are private.
            raise InputError(
                "all tensors of a batch must have the same leading dimension, the number of rows,"
                f" but batch{place} has another one. Let losses_of provide data that does not"
                " belong to rows, such as class weights.",
                key=f"batch{place}",
            )
    assert rows is not None
    return rows


def take_rows(batch: Any, rows: slice | Sequence[int]) -> Any:
    """Return a batch with some of the rows: views for a slice, copies for a list of numbers."""
    if isinstance(rows, slice):
        return tree_map_only(Tensor, lambda leaf: leaf[rows], batch)
    return tree_map_only(
        Tensor, lambda leaf: leaf.index_select(0, torch.tensor(rows, device=leaf.device)), batch
    )
