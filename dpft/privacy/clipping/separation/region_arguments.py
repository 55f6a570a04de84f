"""The arguments and outputs of a region's call: one example's taken out of them, and joined again.

Most tensors carry the batch in front. Of some it is the second dimension: of a time-major model's
texts, of a recurrent layer's states, of the copies of each token that Gemma 3n keeps.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dpft.errors import RunError
from dpft.privacy.clipping.separation.flow import Status
from dpft.privacy.clipping.separation.nested_values import map_tensors, named_tensors
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
        self._tree = tree
        tensors = {place: leaf for place, leaf in named_tensors(tree).items() if leaf.dim()}
        status = {place: region.inputs.get(place) for place in tensors}
        known = [place for place in tensors if status[place] in CARRYING]
        first = next(iter(known or tensors), None)
        if first is None:
            raise RunError(
                f"a {type(region.module).__name__} layer, whose {', '.join(region.expanded)} is "
                "trainable, must take an input that carries the batch, got none; freeze it or "
                "choose `engine='loop'`."
            )
        self.count = tensors[first].shape[_axis(status[first])]
        self.device = tensors[first].device
        # What had one row to be broadcast may have b of them behind another region.
        everyones = {Status.SHARED} if region.widened else {Status.SHARED, Status.ONE}
        self._axes = {
            place: _axis(status[place])
            for place, leaf in tensors.items()
            if status[place] not in everyones
            and leaf.shape[_axis(status[place]) :][:1] == (self.count,)
        }
        self.rows: list[Tensor] = [tensors[p].movedim(axis, 0) for p, axis in self._axes.items()]

    def with_rows(self, rows: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with others in the place of ``rows``, the batch in front too."""
        pairs = zip(self._axes.items(), rows, strict=True)
        taken = {place: row.movedim(0, axis) for (place, axis), row in pairs}
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = map_tensors(
            self._tree, lambda place, leaf: taken.get(place, leaf)
        )
        return arguments


def split_tensors(outputs: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """Returns the tensors of nested outputs, and what puts others in their places."""
    found = named_tensors(outputs)

    def build(tensors: Sequence[Tensor]) -> Any:
        others = dict(zip(found, tensors, strict=True))
        return map_tensors(outputs, lambda place, _: others[place])

    return list(found.values()), build


def output_axes(tensors: Sequence[Tensor], region: Region) -> list[int]:
    """Returns which dimension of each output carries the batch."""
    learned = list(region.outputs.values())
    if len(learned) != len(tensors):
        return [0] * len(tensors)
    return [_axis(status) for status in learned]


def _axis(status: Status | None) -> int:
    return 1 if status is Status.SECOND else 0
