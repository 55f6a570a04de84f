"""The arguments and outputs of a region's call: one example's taken out of them, and joined again.

Most tensors carry the batch in front. Of some it is the second dimension: of a time-major model's
texts, of a recurrent layer's states, of the copies of each token that Gemma 3n keeps.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from dpft.errors import RunError
from dpft.privacy.clipping.separation.arguments import fresh
from dpft.privacy.clipping.separation.flow import Status
from dpft.privacy.clipping.separation.regions import Region

CARRYING = (Status.BATCH, Status.SECOND)


class RegionArguments:
    """The arguments of a region's call, with the tensors that carry the batch set apart.

    Attributes:
        count: How many examples they carry.
        device: Where.
        rows: The tensors that carry the batch, brought to the front.
    """

    def __init__(self, tree: Any, region: Region) -> None:
        """Finds the tensors that carry the batch.

        Args:
            tree: The call's positional and keyword arguments.
            region: What is called.

        Raises:
            RunError: No argument carries the batch.
        """
        places, self._spec = pytree.tree_flatten_with_path(tree)
        self._leaves = [leaf for _, leaf in places]
        status = [region.inputs.get(pytree.keystr(place)) for place, _ in places]
        tensors = [i for i, leaf in enumerate(self._leaves) if _has_rows(leaf)]
        known = [i for i in tensors if status[i] in CARRYING]
        first = next(iter(known or tensors), None)
        if first is None:
            raise RunError(
                f"a {type(region.module).__name__} layer, whose {', '.join(region.expanded)} is "
                "trainable, must take an input that carries the batch, got none; freeze it or "
                "choose privacy.engine=loop."
            )
        self.count = self._leaves[first].shape[_axis(status[first])]
        self.device = self._leaves[first].device
        # What had one row to be broadcast may have b of them behind another region.
        everyones = {Status.SHARED} if region.widened else {Status.SHARED, Status.ONE}
        self._axes = {
            i: _axis(status[i])
            for i in tensors
            if status[i] not in everyones
            and self._leaves[i].shape[_axis(status[i]) :][:1] == (self.count,)
        }
        self.rows: list[Tensor] = [self._leaves[i].movedim(a, 0) for i, a in self._axes.items()]

    def with_rows(self, rows: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with others in the place of ``rows``, the batch in front too."""
        leaves = [fresh(leaf) for leaf in self._leaves]
        for (place, axis), row in zip(self._axes.items(), rows, strict=True):
            leaves[place] = row.movedim(0, axis)
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(
            leaves, self._spec
        )
        return arguments


def split_tensors(outputs: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """Returns the tensors of nested outputs, and what puts others in their places."""
    leaves, spec = pytree.tree_flatten(outputs)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def build(tensors: Sequence[Tensor]) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        return pytree.tree_unflatten(filled, spec)

    return [leaves[i] for i in places], build


def output_axes(tensors: Sequence[Tensor], region: Region) -> list[int]:
    """Returns which dimension of each output carries the batch."""
    learned = list(region.outputs.values())
    if len(learned) != len(tensors):
        return [0] * len(tensors)
    return [_axis(status) for status in learned]


def _axis(status: Status | None) -> int:
    return 1 if status is Status.SECOND else 0


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0
