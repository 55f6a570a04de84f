"""Batches: any pytree of tensors whose leading dimension is the number of rows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_only

from dpft.errors import InputError


def count_rows(batch: Any) -> int:
    """Return the number of rows of a batch.

    Raises:
        InputError: A leaf is not a tensor, or has another leading dimension than the others.
    """
    leaves = tree_flatten_with_path(batch)[0]
    tensors: dict[str, Tensor] = {}
    for path, leaf in leaves:
        if isinstance(leaf, Tensor):
            tensors[keystr(path)] = leaf
        elif leaf is not None:
            raise InputError(
                f"a batch must be a nesting of tensors, but batch{keystr(path)} is a"
                f" {type(leaf).__name__}; convert it to a tensor, or put data without rows into"
                " losses_of itself."
            )
    if not tensors:
        raise InputError("a batch must contain tensors, got none.")
    sizes = {place: leaf.shape[0] if leaf.dim() else None for place, leaf in tensors.items()}
    counts = list(sizes.values())
    rows = max(set(counts), key=counts.count)
    for place, size in sizes.items():
        if size is None or size != rows:  # No sizes: those of records are private.
            raise InputError(
                "every tensor of a batch must have the same leading dimension, the number of rows,"
                f" but that of batch{place} differs from the others'; put data without rows, such"
                " as class weights, into losses_of itself."
            )
    assert rows is not None
    return rows


def take_rows(batch: Any, rows: slice | Sequence[int]) -> Any:
    """Return the batch of some rows: views for a slice, copies for a list of row numbers."""
    if isinstance(rows, slice):
        return tree_map_only(Tensor, lambda leaf: leaf[rows], batch)
    return tree_map_only(
        Tensor, lambda leaf: leaf.index_select(0, torch.tensor(rows, device=leaf.device)), batch
    )
