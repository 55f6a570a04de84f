"""A step's clipped sums of a sharded model: how they become each rank's share of one gradient.

Either each rank keeps a whole sum, and what is another's shard goes there once a step; or each
micro-batch's sum goes there at once, and no rank holds a whole one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dpft.parallel.ranks import Ranks
from dpft.parallel.reductions import FinishPieces, Piece, finish_sums, pieces_between
from dpft.parallel.rounds import Rounds


@dataclass(frozen=True)
class Cut:
    """How one parameter is cut: shard k has the rows from ``k * ceil(rows / shards)`` on."""

    shape: tuple[int, ...]
    shards: int

    @property
    def size(self) -> int:
        """How many numbers the parameter has."""
        return self._row * self.shape[0]

    @property
    def _row(self) -> int:
        size = 1
        for length in self.shape[1:]:
            size *= length
        return size

    def stretch(self, shard: int) -> tuple[int, int]:
        """Returns where a shard begins and ends in the flattened parameter.

        >>> [Cut((5, 2), 3).stretch(shard) for shard in range(3)]
        [(0, 4), (4, 8), (8, 10)]
        """
        rows, chunk = self.shape[0], -(-self.shape[0] // self.shards)
        return min(rows, shard * chunk) * self._row, min(rows, (shard + 1) * chunk) * self._row


@dataclass(frozen=True)
class _Stretch:
    """A piece of a parameter's sum, and where it lies in the flattened parameter."""

    name: str
    start: int
    end: int
    piece: Piece


class PushedSums:
    """Sums of which each rank holds its shard alone, in float64: ``parallel.accumulate=sharded``.

    Parts go to the shards' owners as soon as they are there, so that no whole gradient is kept.
    """

    def __init__(self, cuts: Mapping[str, Cut], rounds: Rounds, device: torch.device) -> None:
        """Begins with nothing.

        Args:
            cuts: Of every parameter that may train, by name.
            rounds: Of the ranks that hold the shards.
            device: Where shards lie.
        """
        self._cuts, self._rounds, self._device = cuts, rounds, device
        self._held: dict[str, Tensor] = {}
        self._numbers = {
            name: rounds.accept(_length(cut.stretch(rounds.place)), partial(self._take, name))
            for name, cut in cuts.items()
        }

    def add(self, name: str, total: Tensor | None, part: Tensor) -> None:
        """Sends each shard of a part to its owner, who adds it to its own."""
        flat, cut = part.reshape(-1), self._cuts[name]
        self._rounds.push(
            self._numbers[name],
            [flat[slice(*cut.stretch(shard))] for shard in range(cut.shards)],
        )

    def flush(self) -> None:
        """Nothing waits."""

    def clear(self) -> None:
        """Forgets all sums."""
        self._held.clear()

    def taken(self, name: str) -> Tensor:
        """Returns this rank's shard of a sum, flat and in float64, and forgets it."""
        held = self._held.pop(name, None)
        return self._zeros(name) if held is None else held

    def _take(self, name: str, parts: Sequence[Tensor]) -> None:
        """Adds what each rank sent of this rank's shard, in the order of places."""
        held = self._held.setdefault(name, self._zeros(name))
        for part in parts:
            held += part.to(held.device)

    def _zeros(self, name: str) -> Tensor:
        length = _length(self._cuts[name].stretch(self._rounds.place))
        return torch.zeros(length, dtype=torch.float64, device=self._device)


class WholeShardedSums:
    """Sums that each rank keeps whole, in ``grad`` of what bears the parameters' names."""

    def __init__(self, unsharded: Mapping[str, nn.Parameter], cuts: Mapping[str, Cut]) -> None:
        """Takes all the model's parameters."""
        self._unsharded, self._cuts = unsharded, cuts

    def taken(self, name: str) -> Tensor:
        """Returns this rank's own sum of a whole parameter, flat, and forgets it."""
        parameter = self._unsharded[name]
        held, parameter.grad = parameter.grad, None
        if held is None:
            size, like = self._cuts[name].size, parameter
            return torch.zeros(size, dtype=like.dtype, device=like.device)
        return held.reshape(-1)


def stretches_of(
    cuts: Mapping[str, Cut], places: Mapping[str, int], shard: int, rows: int, block: int
) -> list[list[_Stretch]]:
    """Returns the pieces of a shard of all parameters that the rank of each row finishes.

    Each row has the whole model, so that each of the ranks with one shard finishes a part of it.
    """
    spans = [(name, *cut.stretch(shard)) for name, cut in cuts.items()]
    total = sum(end - start for _, start, end in spans)
    each = -(-total // rows)
    found: list[list[_Stretch]] = [[] for _ in range(rows)]
    before = 0
    for name, start, end in spans:
        at = start
        while at < end:
            row = (before + at - start) // each
            last = min(end, start + (row + 1) * each - before)
            for first, stop, piece in pieces_between(
                places[name], at, last, total=cuts[name].size, block=block
            ):
                found[row].append(_Stretch(name, first, stop, piece))
            at = last
        before += end - start
    return found


def owned_stretches(
    cuts: Mapping[str, Cut], places: Mapping[str, int], shards: int, rows: int, block: int
) -> tuple[list[_Stretch], list[list[int]]]:
    """Returns the pieces of all shards, and the places of those that each rank finishes."""
    stretches: list[_Stretch] = []
    owned: list[list[int]] = [[] for _ in range(rows * shards)]
    for column in range(shards):
        for row, own in enumerate(stretches_of(cuts, places, column, rows, block)):
            owned[row * shards + column] = list(range(len(stretches), len(stretches) + len(own)))
            stretches += own
    return stretches, owned


def finish_whole(
    sums: WholeShardedSums,
    cuts: Mapping[str, Cut],
    places: Mapping[str, int],
    block: int,
    finish: FinishPieces,
    *,
    ranks: Ranks,
    twins: Ranks,
    shard: int,
) -> Iterator[tuple[str, Tensor]]:
    """Yields this rank's shard of each finished sum, flat.

    Args:
        sums: This rank's own.
        cuts: Of what trains.
        places: Of these among all parameters.
        block: As ``StepSums.finish``.
        finish: As ``StepSums.finish``.
        ranks: All of the run; that of row i and shard k is number ``i * shards + k``.
        twins: The ranks with this shard, one of each row.
        shard: This rank's.
    """
    shards = ranks.size // twins.size
    flat = {name: sums.taken(name) for name in cuts}
    stretches, owned = owned_stretches(cuts, places, shards, twins.size, block)
    finish_sums(
        [flat[each.name][each.start : each.end] for each in stretches],
        lambda parts: finish([(stretches[at].piece, total) for at, total in parts]),
        ranks,
        owned,
    )
    own_parts = {}
    for name, cut in cuts.items():
        start, end = cut.stretch(shard)
        own_parts[name] = flat.pop(name)[start:end].clone()
    if twins.size > 1:
        _exchange(own_parts, twins)
    yield from own_parts.items()


def finish_pushed(
    sums: PushedSums,
    cuts: Mapping[str, Cut],
    places: Mapping[str, int],
    block: int,
    finish: FinishPieces,
    *,
    twins: Ranks,
    shard: int,
) -> Iterator[tuple[str, Tensor]]:
    """Yields this rank's shard of each finished sum; as ``finish_whole``, of pushed sums."""
    held = {name: sums.taken(name) for name in cuts}
    (mine,) = stretches_of(cuts, places, shard, 1, block)
    starts = {name: cut.stretch(shard)[0] for name, cut in cuts.items()}
    finish_sums(
        [held[s.name][s.start - starts[s.name] : s.end - starts[s.name]] for s in mine],
        lambda parts: finish([(mine[at].piece, total) for at, total in parts]),
        twins,
    )
    for name in cuts:
        yield name, held.pop(name)


def _exchange(parts: Mapping[str, Tensor], twins: Ranks) -> None:
    """Gives each of the ranks with one shard what the others have finished of it."""
    flat = torch.cat(list(parts.values()))
    each = -(-len(flat) // twins.size)
    padded = flat.new_zeros(each)
    own = flat[twins.rank * each : (twins.rank + 1) * each]
    padded[: len(own)] = own
    whole = torch.cat(twins.all_gather(padded))
    start = 0
    for part in parts.values():
        part.copy_(whole[start : start + len(part)])
        start += len(part)


def _length(stretch: tuple[int, int]) -> int:
    return stretch[1] - stretch[0]


def as_gradient(parameter: nn.Parameter, shard: Tensor) -> DTensor:
    """Returns a shard of a gradient as what an optimizer takes for a sharded parameter."""
    data = parameter.data
    assert isinstance(data, DTensor)
    local = data.to_local()
    return DTensor.from_local(
        shard.to(local).view_as(local),
        data.device_mesh,
        data.placements,
        shape=data.shape,
        stride=data.stride(),
        run_check=False,
    )
