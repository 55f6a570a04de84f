"""How ranks that work each at its own pace get what all of them must send: round by round.

A sharded model's weights are with all ranks, so whoever needs a block needs the others to send
theirs. But how often a rank runs the model depends on its records: how many micro-batches it has,
what the clipper proves of the first of them, how long a text it writes. Ranks that had to run in
step would wait for ever where one takes another way. So each says what it wishes for next, all hear
what everyone wishes, and all send it; a rank that is done serves the others until all are. What is
wished for is a block's place and nothing of its content; rounds pass between ranks, and count as
private.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from dpft.parallel.ranks import RankLost, Ranks

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
        not from who is faster. A rank that fails while it is inside ``served`` serves the others
        until they are done, and raises then; one that fails amid a round ends at once.
    """

    def __init__(
        self,
        ranks: Ranks,
        group: dist.ProcessGroup,
        words: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        """Joins the ranks of two process groups of the same ranks.

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
        """Returns the number by which every rank may wish for what all of them send.

        It is the same on each, since all offer the same things in the same order.
        """
        self._senders.append(sender)
        return len(self._senders) - 1

    def gather(self, number: int, output: Tensor, own: Tensor) -> None:
        """Fills ``output`` with what every rank sends of an offer, in the order of places.

        Args:
            number: Of the offer.
            output: 1-D, ``size`` times as long as ``own``.
            own: What this rank sends, which may lie inside ``output``.
        """
        self._carry_out(self._heard(number), number, output, own)

    def accept(self, length: int, receiver: Receiver) -> int:
        """Returns the number by which every rank may push to all; as ``offer``.

        Args:
            length: Numbers of float32 that each other one sends this rank.
            receiver: Takes what was sent to this rank, in the order of places.
        """
        self._receivers[len(self._senders)] = (length, receiver)
        return self.offer(lambda: torch.empty(0))

    def push(self, number: int, parts: Sequence[Tensor]) -> None:
        """Sends each rank its part, 1-D, of what all accept under a number."""
        self._carry_out(self._heard(number), number, None, parts)

    @contextmanager
    def served(self) -> Iterator[None]:
        """Lets ranks run the model as often as each likes; ends when all have come to its end.

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
        """Sends what the others wish for until nobody wishes for anything."""
        while set(wishes := self._heard(DONE)) != {DONE}:
            self._carry_out(wishes, DONE, None, None)

    def _heard(self, wish: int) -> list[int]:
        """Returns everyone's wish, once all have one."""
        found = torch.empty(self.size, dtype=torch.int64)
        own = torch.tensor([wish])
        self._ranks.call("wish", lambda: _all_gather(found, own, group=self._words), own)
        wishes: list[int] = found.tolist()
        return wishes

    def _carry_out(
        self,
        wishes: Sequence[int],
        mine: int,
        output: Tensor | None,
        own: Tensor | Sequence[Tensor] | None,
    ) -> None:
        """Passes on what each rank wishes for, the lowest number first.

        Raises:
            RankLost: This rank failed, or another is gone.
        """
        try:
            for number in sorted(set(wishes) - {DONE}):
                self._pass(number, [wish == number for wish in wishes], mine, output, own)
        except RankLost:
            raise
        except Exception as error:
            raise RankLost from error

    def _pass(
        self,
        number: int,
        wanted: Sequence[bool],
        mine: int,
        output: Tensor | None,
        own: Tensor | Sequence[Tensor] | None,
    ) -> None:
        is_mine = number == mine
        if number in self._receivers:
            parts = own if is_mine and not isinstance(own, Tensor) else None
            self._pass_on(number, wanted, parts)
        else:
            sent = own if is_mine and isinstance(own, Tensor) else self._senders[number]()
            self._send(sent, wanted, output if is_mine else None)

    def _send(self, sent: Tensor, wanted: Sequence[bool], output: Tensor | None) -> None:
        """Sends the same to all that want it; those that do not receive nothing."""
        if all(wanted):
            assert output is not None
            gather = partial(_all_gather, output, sent, group=self._group)
            self._ranks.call("gather", gather, sent)
            return
        received = sent.new_empty(0) if output is None else output
        counts = [len(sent) if output is not None else 0] * self.size
        handed = sent.repeat(sum(wanted))
        self._exchange("gather", received, counts, handed, [len(sent) * each for each in wanted])

    def _pass_on(
        self, number: int, pushing: Sequence[bool], parts: Sequence[Tensor] | None
    ) -> None:
        """Hands each rank's part to the rank that accepts it."""
        length, receiver = self._receivers[number]
        counts = [length * each for each in pushing]
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
