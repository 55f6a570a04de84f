"""The kind of a call of the model: all of the call that decides how the batch passes through.

Two calls of one kind differ in sizes and values alone. What differs in more (an argument given or
not, a mask of another rank, a switch, positions shared instead of one per example, one token
instead of several) may put weights to use in other ways, and is learned and proved by itself.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.separation.arguments import batch_size_of
from dpft.privacy.clipping.separation.nested_values import leaves_of

PLAIN = (type(None), bool, str)


@dataclass(frozen=True)
class Signature:
    """The kind of a call.

    Attributes:
        kind: Places, dtypes and ranks of the tensor arguments, which of them lead with the batch
            size and where they have size one; the other arguments, numbers by their type alone;
            each module's training switch; and the precision.
        precision: What autocast computes in, or None.
        coincidences: Which sizes happen to equal the batch size, though they are not the leading
            one: from such a call it cannot be learned which tensors carry the batch.
    """

    kind: Hashable
    precision: torch.dtype | None
    coincidences: tuple[tuple[bool, ...], ...]

    @property
    def is_ambiguous(self) -> bool:
        """Whether some size equals the batch size by accident."""
        return any(any(sizes) for sizes in self.coincidences)


def signature_of(model: nn.Module, arguments: Any, units: Tensor | None = None) -> Signature:
    """Returns the kind of a call of ``model`` with nested arguments.

    Args:
        model: What is called.
        arguments: Of the call.
        units: Unit of each row. Rows of one unit say nothing of those of several: their calls are
            of another kind.
    """
    count = batch_size_of(arguments)
    places = leaves_of(arguments)
    leaves = tuple((place, _kind(leaf, count)) for place, leaf in places)
    switches = tuple(module.training for module in model.modules())
    sizes = (tuple(leaf.shape[1:]) for _, leaf in places if isinstance(leaf, Tensor))
    coincidences = tuple(tuple(size == count for size in each) for each in sizes)
    precision = _precision(places)
    one_unit = units is not None and len(units) == count and bool((units == units[0]).all())
    return Signature((leaves, switches, precision, one_unit), precision, coincidences)


def coarsest(model: nn.Module, precision: torch.dtype | None) -> torch.dtype:
    """Returns the coarsest of the dtypes of a model's weights and of what autocast computes in."""
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if precision is not None:
        dtypes.add(precision)
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def _precision(places: Any) -> torch.dtype | None:
    """Returns the dtype that autocast computes in, or None."""
    devices = [leaf.device.type for _, leaf in places if isinstance(leaf, Tensor)]
    if not devices or not torch.is_autocast_enabled(devices[0]):
        return None
    return torch.get_autocast_dtype(devices[0])


def _kind(leaf: Any, count: int) -> Hashable:
    if isinstance(leaf, Tensor):
        leads = leaf.dim() > 0 and len(leaf) == count
        return leaf.dtype, leads, tuple(size == 1 for size in leaf.shape)
    if isinstance(leaf, PLAIN):
        return leaf
    return type(leaf).__qualname__
