"""Sum gradients over ranks, whole or in shards, with few transfers.

Each stretch of a gradient has an owner. The others send it their values of it; the owner adds them
up in float64, in the order of ranks, finishes them (adds the noise), rounds once, and sends every
rank the outcome. So a sum depends on no network's order of additions, nothing is rounded that a
single process would not round, and ranks cannot come to differ. On the way are float32 numbers, as
many as an all-reduce sends.

Of a model in shards either each rank keeps a whole sum, and what is another's shard goes there once
a step; or each micro-batch's sum goes there at once, and no rank holds a whole one.

A sharded model's weights are with all ranks, so whoever needs a block needs the others to send
theirs. But how often a rank runs the model depends on its records: how many micro-batches it has,
what the clipper proves of the first of them, how long a text it writes. Ranks that had to run in
step would wait for ever where one takes another way. So each says what it wishes for next, all hear
what everyone wishes, and all send it; a rank that is done serves the others until all are. What is
wished for is a block's place and nothing of its content; rounds pass between ranks, and count as
private.
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
"""Numbers that a rank finishes between two exchanges, or the one stretch that has more."""

STRETCH = 2**20
"""Numbers that a large gradient is cut into, so that each rank owns about as many."""

Finish = Callable[[Sequence[tuple[int, Tensor]]], None]
"""Changes stretches of the sum in place, each given its place among all of them."""


@dataclass(frozen=True)
class Piece:
    """A stretch of one block of a parameter's sum.

    Attributes:
        place: Of the parameter among all of the model's.
        block: Which block of the flattened parameter.
        offset: Where in the block the stretch begins.
        block_length: How many numbers the block has.
    """

    place: int
    block: int
    offset: int
    block_length: int


FinishPieces = Callable[[Sequence[tuple[Piece, Tensor]]], None]
"""Changes pieces of sums in place, float64 where several ranks' were added up."""


class StepSums(Protocol):
    """Where a step's clipped sums are, this rank's own, and how they become all ranks'."""

    def reduce_sums(self, block: int, finish: FinishPieces) -> None:
        """Add up all ranks' sums, lets each piece be finished once, and leaves it in ``grad``.

        Args:
            block: Numbers of a flattened parameter that no piece reaches across.
            finish: Given each piece once, by one rank; several at a time.
        """


def pieces_between(
    place: int, start: int, end: int, *, total: int, block: int
) -> Iterator[tuple[int, int, Piece]]:
    """Yield where each piece of a stretch of a flattened parameter begins and ends, and the piece.

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
    """Make each stretch the finished sum of all ranks' stretches, the same bits on each rank.

    Args:
        stretches: Of this rank's gradients, 1-D, of one dtype; to be written to. Every rank has the
            same shapes in the same order.
        finish: Given a stretch by its owner alone, its sum in float64; alone, the stretch itself.
        ranks: Whose sums are added.
        owned: Places of the stretches that each rank owns and, of all ranks, gets; None: all ranks
            get all of them.
    """
    if ranks.size == 1:
        lengths = [len(stretch) for stretch in stretches]
        for (places,) in _turns(lengths, [list(range(len(stretches)))]):
            finish([(place, stretches[place]) for place in places])
        return
    if len({stretch.dtype for stretch in stretches}) > 1:
        raise ValueError("stretches must have one dtype, got several: those sent would be rounded.")
    is_shared = owned is None
    if owned is None:
        owned = owned_places([len(stretch) for stretch in stretches], ranks.size)
    for turn in _turns([len(stretch) for stretch in stretches], owned):
        _finish_turn(stretches, turn, finish, ranks, shared=is_shared)


def owned_places(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Return the places of the stretches that each rank finishes, about as many numbers each.

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
    """Yield what each rank finishes in one exchange: places, of about ``TURN`` numbers."""
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
    """Send each owner its stretches, finish this rank's, and share the sums if ``shared``."""
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
    """Yield each place, and the part of a row that is its stretch's, one after the other."""
    start = 0
    for place in places:
        end = start + len(stretches[place])
        yield place, row[start:end]
        start = end


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Under its present name; torch before 2.13 has the second one alone."""

DONE = -1
"""The wish of a rank that needs nothing more."""

Sender = Callable[[], Tensor]
"""Returns what this rank sends whoever wishes for it, 1-D, as long on every rank."""

Receiver = Callable[[Sequence[Tensor]], None]
"""Takes what ranks sent this one, 1-D each, float32."""


class Rounds:
    """The wishes of the ranks that hold one model's shards together.

    Guarantees:
        What each rank gets, and in which order, follows from the ranks' own sequences of wishes,
        not from who is faster. A rank that fails inside ``serving_other_ranks`` serves the others
        until they are done, and raises then; one that fails amid a round ends at once.
    """

    def __init__(
        self, ranks: Ranks, group: dist.ProcessGroup, words: dist.ProcessGroup, device: torch.device
    ) -> None:
        """Join the ranks of two process groups of the same ranks.

        Args:
            ranks: All of the run, which count the traffic.
            group: Through which weights and sums pass.
            words: Through which wishes pass, in the processor's memory.
            device: What the ranks compute on.
        """
        self._ranks, self._group, self._words = ranks, group, words
        self.place, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._senders: list[Sender] = []
        self._receivers: dict[int, tuple[int, Receiver]] = {}
        self._like = torch.empty(0, device=device)

    def offer(self, sender: Sender) -> int:
        """Return the number by which every rank may wish for what all of them send.

        It is the same on each, since all offer the same things in the same order.
        """
        self._senders.append(sender)
        return len(self._senders) - 1

    def gather(self, number: int, output: Tensor, values: Tensor) -> None:
        """Fill ``output`` with what every rank sends of an offer, in the order of places.

        Args:
            number: Of the offer.
            output: 1-D, ``size`` times as long as ``values``.
            values: What this rank sends, which may lie inside ``output``.
        """
        self._carry_out(self._heard(number), number, output, values)

    def accept(self, length: int, receiver: Receiver) -> int:
        """Return the number by which every rank may push to all; as ``offer``.

        Args:
            length: Numbers of float32 that each other one sends this rank.
            receiver: Takes what was sent to this rank, in the order of places.
        """
        self._receivers[len(self._senders)] = (length, receiver)
        return self.offer(lambda: torch.empty(0))

    def push(self, number: int, parts: Sequence[Tensor]) -> None:
        """Send each rank its part, 1-D, of what all accept under a number."""
        self._carry_out(self._heard(number), number, None, parts)

    @contextmanager
    def serving_other_ranks(self) -> Iterator[None]:
        """Let ranks run the model as often as each likes; ends when all have come to its end.

        An interrupted rank leaves at once: it may be amid a round.

        Raises:
            RankLost: A rank has ended, or failed amid a round, where the others wait for it: it
                ends too, so that they learn of it.
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
        """Send what the others wish for until nobody wishes for anything."""
        while set(wishes := self._heard(DONE)) != {DONE}:
            self._carry_out(wishes, DONE, None, None)

    def _heard(self, wish: int) -> list[int]:
        """Return every rank's wish, once all ranks have one."""
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
        """Pass on what each rank wishes for, the lowest number first.

        Args:
            wishes: Of all ranks, in the order of places.
            mine: This rank's wish.
            output: Receives what is gathered, if this rank wishes to gather.
            outgoing: What this rank sends for its wish: its values to gather, or parts to push.

        Raises:
            RankLost: This rank failed, or another is gone.
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
        """Send the same values to all ranks that want them; the others receive nothing."""
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
        """Hand each rank's part to the rank that accepts it."""
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
        """Return where a shard begins and ends in the flattened parameter.

        >>> [Cut((5, 2), 3).stretch(shard) for shard in range(3)]
        [(0, 4), (4, 8), (8, 10)]
        """
        rows, chunk = self.shape[0], -(-self.shape[0] // self.shards)
        return min(rows, shard * chunk) * self._row, min(rows, (shard + 1) * chunk) * self._row


@dataclass(frozen=True)
class _PieceSpan:
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
        """Begins with nothing."""
        self._cuts, self._rounds, self._device = cuts, rounds, device
        self._held: dict[str, Tensor] = {}
        self._numbers = {
            name: rounds.accept(_length(cut.stretch(rounds.place)), partial(self._take, name))
            for name, cut in cuts.items()
        }

    def add(self, name: str, total: Tensor | None, part: Tensor) -> None:
        """Send each shard of a part to its owner, who adds it to its own."""
        flat, cut = part.reshape(-1), self._cuts[name]
        self._rounds.push(
            self._numbers[name], [flat[slice(*cut.stretch(shard))] for shard in range(cut.shards)]
        )

    def flush(self) -> None:
        """Nothing waits."""

    def clear(self) -> None:
        """Forget all sums."""
        self._held.clear()

    def taken(self, name: str) -> Tensor:
        """Return this rank's shard of a sum, flat and in float64, and forget it."""
        held = self._held.pop(name, None)
        return self._zeros(name) if held is None else held

    def _take(self, name: str, parts: Sequence[Tensor]) -> None:
        """Add what each rank sent of this rank's shard, in the order of places."""
        held = self._held.setdefault(name, self._zeros(name))
        for part in parts:
            held += part.to(held.device)

    def _zeros(self, name: str) -> Tensor:
        length = _length(self._cuts[name].stretch(self._rounds.place))
        return torch.zeros(length, dtype=torch.float64, device=self._device)


class WholeShardedSums:
    """Sums that each rank keeps whole, in ``grad`` of what bears the parameters' names."""

    def __init__(self, unsharded: Mapping[str, nn.Parameter], cuts: Mapping[str, Cut]) -> None:
        """Take all the model's parameters."""
        self._unsharded, self._cuts = unsharded, cuts

    def taken(self, name: str) -> Tensor:
        """Return this rank's own sum of a whole parameter, flat, and forget it."""
        parameter = self._unsharded[name]
        held, parameter.grad = parameter.grad, None
        if held is None:
            size, like = self._cuts[name].size, parameter
            return torch.zeros(size, dtype=like.dtype, device=like.device)
        return held.reshape(-1)


def stretches_of(
    cuts: Mapping[str, Cut], places: Mapping[str, int], shard: int, rows: int, block: int
) -> list[list[_PieceSpan]]:
    """Return the pieces of a shard of all parameters that the rank of each row finishes.

    Each row has the whole model, so that each of the ranks with one shard finishes a part of it.
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
    """Return the pieces of all shards, and the places of those that each rank finishes."""
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
        sums: This rank's own.
        cuts: Of what trains.
        places: Of these among all parameters.
        block: As ``StepSums.reduce_sums``.
        finish: As ``StepSums.reduce_sums``.
        ranks: All of the run; that of row i and shard k is number ``i * shards + k``.
        twins: The ranks with this shard, one of each row.
        shard: This rank's.
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
    """Yield this rank's shard of each finished sum; as ``finish_whole``, of pushed sums."""
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
    """Give each of the ranks with one shard the parts of it that the others have finished."""
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
