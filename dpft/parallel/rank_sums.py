"""Sums of gradients over ranks, whole or sharded, with few transfers.

Each segment of a gradient has one rank as its owner, to which the other ranks send their values.
The owner adds them in float64, in the order of ranks, and finishes the sum (adds the noise). It
rounds the result once and sends it to every rank. A sum therefore does not depend on the order in
which a network adds values. There is no rounding that a single process would not have, and the
results of ranks cannot differ. The transferred values are float32, as many as in an all-reduce.

For a sharded model there are two modes. In the first mode, each rank keeps a whole sum and sends
the shards of other ranks once per step. In the second mode, each micro-batch's sum is sent to the
shards immediately, and no rank holds a whole sum.

The weights of a sharded model are distributed over all ranks. A rank that needs a block needs the
other ranks to send their shards. However, the number of model calls on a rank depends on its
records. It depends on the number of micro-batches, on the clipper's checks of the first ones, and
on the length of generated texts. If ranks had to run in lockstep, they would wait forever when one
of them takes another path. Therefore each rank requests what it needs next, all ranks receive all
requests, and all of them send the requested data. A rank that is done serves the others until all
are done. A request contains the position of a block and nothing about its content. Requests are
exchanged only between ranks, and count as private.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dpft.parallel.ranks import RankLost, Ranks

TURN = 2**22
"""Maximum number of elements that a rank finishes between two exchanges; a single segment may be
larger."""

STRETCH = 2**20
"""Length of the segments of a large gradient, chosen so that ranks own about equally
many elements."""

Finish = Callable[[Sequence[tuple[int, Tensor]]], None]
"""Function that changes segments of the sum in place; each segment is passed with its position."""


@dataclass(frozen=True)
class Piece:
    """A segment of one block of a parameter's sum.

    Attributes:
        place: Position of the parameter among all parameters of the model.
        block: Number of the block in the flattened parameter.
        offset: Position in the block at which the segment begins.
        block_length: Number of elements in the block.
    """

    place: int
    block: int
    offset: int
    block_length: int


FinishPieces = Callable[[Sequence[tuple[Piece, Tensor]]], None]
"""Function that changes pieces of sums in place; float64 if several ranks were added up."""


class StepSums(Protocol):
    """Interface to a rank's clipped sums of a step, which can be reduced over all ranks."""

    def reduce_sums(self, block: int, finish: FinishPieces) -> None:
        """Add up the sums of all ranks, finish each piece once, and store the result in ``grad``.

        Args:
            block: Number of elements in a block of a flattened parameter; no piece crosses a block
                boundary.
            finish: Function that finishes pieces in place. It receives each piece exactly once, on
                one rank, and several pieces per call.
        """


def pieces_between(
    place: int, start: int, end: int, *, total: int, block: int
) -> Iterator[tuple[int, int, Piece]]:
    """Yield the start and end of each piece of a segment of a flattened parameter, and the piece.

    >>> [(a, b, p.block, p.offset) for a, b, p in pieces_between(0, 3, 9, total=10, block=4)]
    [(3, 4, 0, 3), (4, 8, 1, 0), (8, 9, 2, 0)]
    """
    while start < end:
        number = start // block
        last = min(end, (number + 1) * block)
        length = min(block, total - number * block)
        yield start, last, Piece(place, number, start - number * block, length)
        start = last


def finish_sums(
    stretches: Sequence[Tensor],
    finish: Finish,
    ranks: Ranks,
    owned: Sequence[list[int]] | None = None,
) -> None:
    """Replace each segment with the finished sum over all ranks, bit-identical on each rank.

    Args:
        stretches: Segments of this rank's gradients, 1-D, of one dtype; they are overwritten. The
            shapes and their order are the same on every rank.
        finish: Called by the owner of each segment with its sum in float64; in a run with one
            process, with the segment itself.
        ranks: The ranks to add up.
        owned: Positions of the segments that each rank owns; only the owner receives the sum. None:
            every rank receives all sums.

    Raises:
        ValueError: The segments have several dtypes.
    """
    if ranks.size == 1:
        lengths = [len(stretch) for stretch in stretches]
        for (places,) in _turns(lengths, [list(range(len(stretches)))]):
            finish([(place, stretches[place]) for place in places])
        return
    if len({stretch.dtype for stretch in stretches}) > 1:
        raise ValueError("segments must have one dtype, got several; sending would round them.")
    is_shared = owned is None
    if owned is None:
        owned = owned_places([len(stretch) for stretch in stretches], ranks.size)
    for turn in _turns([len(stretch) for stretch in stretches], owned):
        _finish_turn(stretches, turn, finish, ranks, shared=is_shared)


def owned_places(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Return the positions of the segments that each rank finishes, with about equal sizes.

    >>> owned_places([4, 1, 3, 2], 2)
    [[0, 1], [2, 3]]
    """
    owned: list[list[int]] = [[] for _ in range(size)]
    before, total = 0, max(1, sum(lengths))
    for place, length in enumerate(lengths):
        owned[min(size - 1, (2 * before + length) * size // (2 * total))].append(place)
        before += length
    return owned


def _turns(lengths: Sequence[int], owned: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Yield the positions that each rank finishes in one exchange, of about ``TURN`` elements."""
    waiting = [list(reversed(places)) for places in owned]
    while any(waiting):
        turn = []
        for places in waiting:
            mine: list[int] = []
            numbers = 0
            while places and (not mine or numbers + lengths[places[-1]] <= TURN):
                mine.append(places.pop())
                numbers += lengths[mine[-1]]
            turn.append(mine)
        yield turn


def _finish_turn(
    stretches: Sequence[Tensor],
    turn: Sequence[list[int]],
    finish: Finish,
    ranks: Ranks,
    *,
    shared: bool,
) -> None:
    """Send each owner its segments, finish those of this rank, and share the sums if ``shared``."""
    longest = max(sum(len(stretches[place]) for place in places) for places in turn)
    if not longest:
        return
    rows = stretches[0].new_zeros(ranks.size, longest)
    for row, places in zip(rows, turn, strict=True):
        for place, part in _parts(row, stretches, places):
            part.copy_(stretches[place])
    total = torch.zeros(longest, dtype=torch.float64, device=rows.device)
    for row in ranks.all_to_all(rows):
        total += row
    owned_parts = list(_parts(total, stretches, turn[ranks.rank]))
    finish(owned_parts)
    for place, part in owned_parts:
        stretches[place].copy_(part)
    if not shared:
        return
    outcomes = ranks.all_gather(total.to(rows.dtype))
    for row, places in zip(outcomes, turn, strict=True):
        for place, part in _parts(row, stretches, places):
            stretches[place].copy_(part)


def _parts(
    row: Tensor, stretches: Sequence[Tensor], places: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    """Yield each position with the part of a row that contains its segment, one after the other."""
    start = 0
    for place in places:
        end = start + len(stretches[place])
        yield place, row[start:end]
        start = end


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""The function under its current name; torch before 2.13 has only ``all_gather_into_tensor``."""

DONE = -1
"""The request of a rank that needs nothing more."""

Sender = Callable[[], Tensor]
"""Function that returns the data that this rank sends on request: a 1-D tensor, equally long on all
ranks."""

Receiver = Callable[[Sequence[Tensor]], None]
"""Function that takes the data that ranks sent to this rank, 1-D each, float32."""


class Rounds:
    """The requests of the ranks that together hold the shards of one model.

    Guarantees:
        The data that each rank receives, and their order, follow from the ranks' own sequences of
        requests, not from their speed. A rank that fails inside ``serving_other_ranks`` serves the
        others until they are done, and then raises. A rank that fails during a round ends
        immediately.
    """

    def __init__(
        self, ranks: Ranks, group: dist.ProcessGroup, words: dist.ProcessGroup, device: torch.device
    ) -> None:
        """Store the two process groups through which the ranks communicate; both have all of them.

        Args:
            ranks: All ranks of the run; this object counts the traffic.
            group: Process group for weights and sums.
            words: Process group for requests, in CPU memory.
            device: The device that the ranks compute on.
        """
        self._ranks, self._group, self._words = ranks, group, words
        self.place, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._senders: list[Sender] = []
        self._receivers: dict[int, tuple[int, Receiver]] = {}
        self._like = torch.empty(0, device=device)

    def offer(self, sender: Sender) -> int:
        """Register data that this rank sends on request; return the number of the offer.

        Any rank requests the data of all ranks with this number. The number is the same on each
        rank, because all ranks make the same offers in the same order.
        """
        self._senders.append(sender)
        return len(self._senders) - 1

    def gather(self, number: int, output: Tensor, values: Tensor) -> None:
        """Fill ``output`` with the data that every rank sends for an offer, in the order of ranks.

        Args:
            number: Number of the offer.
            output: 1-D, ``size`` times as long as ``values``.
            values: Data that this rank sends, which may be inside ``output``.
        """
        self._carry_out(self._heard(number), number, output, values)

    def accept(self, length: int, receiver: Receiver) -> int:
        """Register a receiver of data that ranks push; return the number for ``push``.

        Args:
            length: Number of float32 elements that each other rank sends to this rank.
            receiver: Takes the data that were sent to this rank, in the order of ranks.
        """
        self._receivers[len(self._senders)] = (length, receiver)
        return self.offer(lambda: torch.empty(0))

    def push(self, number: int, parts: Sequence[Tensor]) -> None:
        """Send each rank its part, 1-D, of the data that all ranks accept under a number."""
        self._carry_out(self._heard(number), number, None, parts)

    @contextmanager
    def serving_other_ranks(self) -> Iterator[None]:
        """Let each rank run the model any number of times; at the end, serve ranks that still run.

        The block ends on all ranks together. An interrupted rank leaves immediately, because it may
        be in the middle of a round.

        Raises:
            RankLost: A rank has ended, or failed during a round while the others wait for it. The
                failing rank ends too, so that the others notice.
        """
        try:
            yield
        except RankLost:
            raise
        except Exception:
            self._serve()
            raise
        self._serve()

    def _serve(self) -> None:
        """Send what the other ranks request until all of them are done."""
        while set(wishes := self._heard(DONE)) != {DONE}:
            self._carry_out(wishes, DONE, None, None)

    def _heard(self, wish: int) -> list[int]:
        """Return the requests of all ranks, once every rank has made one."""
        received = torch.empty(self.size, dtype=torch.int64)
        sent = torch.tensor([wish])
        self._ranks.call("wish", lambda: _all_gather(received, sent, group=self._words), sent)
        wishes: list[int] = received.tolist()
        return wishes

    def _carry_out(
        self,
        wishes: Sequence[int],
        mine: int,
        output: Tensor | None,
        outgoing: Tensor | Sequence[Tensor] | None,
    ) -> None:
        """Transfer the data that ranks request, in ascending order of the request numbers.

        Args:
            wishes: Requests of all ranks, in the order of ranks.
            mine: Request of this rank.
            output: Receives the gathered data, if this rank requests to gather.
            outgoing: Data that this rank sends for its request: its values to gather, or parts to
                push.

        Raises:
            RankLost: This rank failed, or another rank is gone.
        """
        try:
            for number in sorted(set(wishes) - {DONE}):
                wanted = [wish == number for wish in wishes]
                is_mine = number == mine
                if number in self._receivers:
                    parts = outgoing if is_mine and not isinstance(outgoing, Tensor) else None
                    self._pass_on(number, wanted, parts)
                else:
                    sent = (
                        outgoing
                        if is_mine and isinstance(outgoing, Tensor)
                        else self._senders[number]()
                    )
                    self._send(sent, wanted, output if is_mine else None)
        except RankLost:
            raise
        except Exception as error:
            raise RankLost from error

    def _send(self, sent: Tensor, wanted: Sequence[bool], output: Tensor | None) -> None:
        """Send the same values to all ranks that request them; the others receive nothing."""
        if all(wanted):
            assert output is not None
            gather = partial(_all_gather, output, sent, group=self._group)
            self._ranks.call("gather", gather, sent)
            return
        received = sent.new_empty(0) if output is None else output
        counts = [len(sent) if output is not None else 0] * self.size
        handed = sent.repeat(sum(wanted))
        self._exchange(
            "gather", received, counts, handed, [len(sent) * is_wanted for is_wanted in wanted]
        )

    def _pass_on(
        self, number: int, pushing: Sequence[bool], parts: Sequence[Tensor] | None
    ) -> None:
        """Deliver each rank's part to the rank that accepts it."""
        length, receiver = self._receivers[number]
        counts = [length * is_pushing for is_pushing in pushing]
        if parts is None:
            handed, lengths = self._like.new_empty(0), [0] * self.size
        else:
            handed, lengths = torch.cat(list(parts)), [len(part) for part in parts]
        received = handed.new_empty(sum(counts))
        self._exchange("push", received, counts, handed, lengths)
        receiver([part for part in received.split(length) if length])

    def _exchange(
        self,
        kind: str,
        received: Tensor,
        received_counts: list[int],
        handed: Tensor,
        handed_counts: list[int],
    ) -> None:
        exchange = partial(
            dist.all_to_all_single,
            received,
            handed,
            received_counts,
            handed_counts,
            group=self._group,
        )
        self._ranks.call(kind, exchange, handed)


@dataclass(frozen=True)
class Cut:
    """How one parameter is sharded: shard k begins at row ``k * ceil(rows / shards)``."""

    shape: tuple[int, ...]
    shards: int

    @property
    def size(self) -> int:
        """Number of elements of the parameter."""
        return self._row * self.shape[0]

    @property
    def _row(self) -> int:
        size = 1
        for length in self.shape[1:]:
            size *= length
        return size

    def stretch(self, shard: int) -> tuple[int, int]:
        """Return the start and end of a shard in the flattened parameter.

        >>> [Cut((5, 2), 3).stretch(shard) for shard in range(3)]
        [(0, 4), (4, 8), (8, 10)]
        """
        rows, chunk = self.shape[0], -(-self.shape[0] // self.shards)
        return min(rows, shard * chunk) * self._row, min(rows, (shard + 1) * chunk) * self._row


@dataclass(frozen=True)
class _PieceSpan:
    """A piece of a parameter's sum, with its position in the flattened parameter."""

    name: str
    start: int
    end: int
    piece: Piece


class PushedSums:
    """Sums of which each rank holds only its shard, in float64: ``parallel.accumulate=sharded``.

    Parts are sent to the owners of the shards as soon as they are computed, so that no whole
    gradient is kept.
    """

    def __init__(self, cuts: Mapping[str, Cut], rounds: Rounds, device: torch.device) -> None:
        """Start with empty sums."""
        self._cuts, self._rounds, self._device = cuts, rounds, device
        self._held: dict[str, Tensor] = {}
        self._numbers = {
            name: rounds.accept(_length(cut.stretch(rounds.place)), partial(self._take, name))
            for name, cut in cuts.items()
        }

    def add(self, name: str, total: Tensor | None, part: Tensor) -> None:
        """Send each shard of a part to its owner, which adds it to its sum."""
        flat, cut = part.reshape(-1), self._cuts[name]
        self._rounds.push(
            self._numbers[name], [flat[slice(*cut.stretch(shard))] for shard in range(cut.shards)]
        )

    def flush(self) -> None:
        """Do nothing, because no part is buffered."""

    def clear(self) -> None:
        """Drop all sums."""
        self._held.clear()

    def taken(self, name: str) -> Tensor:
        """Return this rank's shard of a sum, flat and in float64, and drop this sum."""
        held = self._held.pop(name, None)
        return self._zeros(name) if held is None else held

    def _take(self, name: str, parts: Sequence[Tensor]) -> None:
        """Add the parts of this rank's shard that each rank sent, in the order of ranks."""
        held = self._held.setdefault(name, self._zeros(name))
        for part in parts:
            held += part.to(held.device)

    def _zeros(self, name: str) -> Tensor:
        length = _length(self._cuts[name].stretch(self._rounds.place))
        return torch.zeros(length, dtype=torch.float64, device=self._device)


class WholeShardedSums:
    """Sums that each rank keeps whole, in ``grad`` of the unsharded parameters."""

    def __init__(self, unsharded: Mapping[str, nn.Parameter], cuts: Mapping[str, Cut]) -> None:
        """Store the unsharded parameters of the model, and how they are sharded."""
        self._unsharded, self._cuts = unsharded, cuts

    def taken(self, name: str) -> Tensor:
        """Return this rank's own sum of a whole parameter, flat, and drop this sum."""
        parameter = self._unsharded[name]
        held, parameter.grad = parameter.grad, None
        if held is None:
            size, like = self._cuts[name].size, parameter
            return torch.zeros(size, dtype=like.dtype, device=like.device)
        return held.reshape(-1)


def stretches_of(
    cuts: Mapping[str, Cut], places: Mapping[str, int], shard: int, rows: int, block: int
) -> list[list[_PieceSpan]]:
    """Return, for each row of ranks, the pieces of one shard that the rank in this row finishes.

    Each row of ranks holds the whole model, so one rank per row has this shard. These ranks divide
    the pieces of the shard among themselves.
    """
    spans = [(name, *cut.stretch(shard)) for name, cut in cuts.items()]
    total = sum(end - start for _, start, end in spans)
    row_length = -(-total // rows)
    stretches: list[list[_PieceSpan]] = [[] for _ in range(rows)]
    before = 0
    for name, start, end in spans:
        at = start
        while at < end:
            row = (before + at - start) // row_length
            last = min(end, start + (row + 1) * row_length - before)
            for first, stop, piece in pieces_between(
                places[name], at, last, total=cuts[name].size, block=block
            ):
                stretches[row].append(_PieceSpan(name, first, stop, piece))
            at = last
        before += end - start
    return stretches


def owned_stretches(
    cuts: Mapping[str, Cut], places: Mapping[str, int], shards: int, rows: int, block: int
) -> tuple[list[_PieceSpan], list[list[int]]]:
    """Return the pieces of all shards, and the positions of the pieces that each rank finishes."""
    stretches: list[_PieceSpan] = []
    owned: list[list[int]] = [[] for _ in range(rows * shards)]
    for column in range(shards):
        for row, row_stretches in enumerate(stretches_of(cuts, places, column, rows, block)):
            owned[row * shards + column] = list(
                range(len(stretches), len(stretches) + len(row_stretches))
            )
            stretches += row_stretches
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
    """Yield this rank's shard of each finished sum, flat.

    Args:
        sums: The sums of this rank.
        cuts: How the trainable parameters are sharded.
        places: Positions of these parameters among all parameters.
        block: See ``StepSums.reduce_sums``.
        finish: See ``StepSums.reduce_sums``.
        ranks: All ranks of the run; the rank in row i with shard k has number ``i * shards + k``.
        twins: The ranks with this shard, one in each row.
        shard: Number of this rank's shard.
    """
    shards = ranks.size // twins.size
    flat = {name: sums.taken(name) for name in cuts}
    stretches, owned = owned_stretches(cuts, places, shards, twins.size, block)
    finish_sums(
        [flat[stretch.name][stretch.start : stretch.end] for stretch in stretches],
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
    """Yield this rank's shard of each finished sum; like ``finish_whole``, for pushed sums."""
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
    """Exchange the finished parts of a shard, so that each rank with this shard has all of them."""
    flat = torch.cat(list(parts.values()))
    length = -(-len(flat) // twins.size)
    padded = flat.new_zeros(length)
    finished = flat[twins.rank * length : (twins.rank + 1) * length]
    padded[: len(finished)] = finished
    whole = torch.cat(twins.all_gather(padded))
    start = 0
    for part in parts.values():
        part.copy_(whole[start : start + len(part)])
        start += len(part)


def _length(stretch: tuple[int, int]) -> int:
    return stretch[1] - stretch[0]
