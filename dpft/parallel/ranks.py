"""The processes of a run (ranks): broadcast, gather, agree on errors, run work on rank 0.

Every rank runs the same functions in the same order. Work that only rank 0 does, such as writing a
file, is marked in the code by ``Ranks.on_rank_0``. This method passes an error on rank 0 to all
ranks, so that no rank waits for one that failed. In a run with one process, every method here
returns immediately. Data that pass between ranks are as private as the private/ folder of a run.
They contain keys, indices of drawn records and sums without noise.

A ``RankGrid`` arranges the ranks of a sharded model in rows, each of which holds the whole model. A
``RankShare`` is one rank's share of work that is divided into pieces known to every rank.
"""

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dpft.errors import DpftError, SaidElsewhere
from dpft.parallel.parallel_config import described

LENGTH_OF_PIECE = 2**26
"""Maximum number of bytes in one broadcast."""
Given = ParamSpec("Given")
Result = TypeVar("Result")


class RankLost(DpftError):
    """Error for the other processes after a process of the run ended or became unreachable."""

    def __init__(self) -> None:
        super().__init__(
            "another process of the run ended or cannot be reached, so this process ends too."
        )


@dataclass
class Traffic:
    """Counts of the data that a rank has sent to others so far."""

    collectives: Counter[str] = field(default_factory=Counter)
    """Number of calls of each kind of operation."""
    sent_bytes: int = 0
    """Number of bytes passed to these operations, regardless of their path through the network."""


class Ranks:
    """This process's rank in a run, and its communication with the other ranks.

    Every method except the properties is collective: each rank calls it, in the same order.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        *,
        local_rank: int = 0,
        on_one_node: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Store the rank; if ``size`` is above 1, torch's process group must exist.

        Args:
            rank: Rank of this process, from 0.
            size: Number of ranks.
            local_rank: Rank among the processes of its machine, which is the number of its device.
            on_one_node: Whether all ranks are on one machine.
            group: Process group of some of the run's processes; None for all processes.
        """
        self.rank, self.size = rank, size
        self.local_rank, self.on_one_node = local_rank, on_one_node
        self._group = group
        self.serving_other_ranks: Callable[[], AbstractContextManager[None]] = nullcontext
        """Context that lets each rank run a sharded model any number of times in
        ``failing_together``."""
        self.traffic = Traffic()

    @property
    def is_rank_0(self) -> bool:
        """Whether this rank is the one that draws samples, writes files and prints messages."""
        return self.rank == 0

    @property
    def described(self) -> dict[str, Any]:
        """Description of the run's processes for reports and journals, as values for JSON."""
        return described(self.size, on_one_node=self.on_one_node)

    def broadcast(self, content: bytes = b"") -> bytes:
        """Return the content of rank 0; the content of the other ranks is ignored.

        The content is sent as bytes without encryption. It is never pickled and never sent through
        a file.
        """
        if self.size == 1:
            return content
        length = torch.tensor([len(content)])
        self.broadcast_tensors([length])
        numbers = torch.empty(int(length), dtype=torch.uint8)
        if self.is_rank_0 and content:
            numbers = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self.broadcast_tensors(list(numbers.split(LENGTH_OF_PIECE)) if len(numbers) else [])
        return numbers.numpy().tobytes()

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Copy the values of rank 0's tensors to every rank; shapes and order must be the same."""
        if self.size == 1:
            return
        for tensor in tensors:
            values = tensor.detach().contiguous()
            self.call("broadcast", partial(dist.broadcast, values, src=0), values)
            if values.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(values)

    def everyones(self, content: bytes) -> list[bytes]:
        """Return the content that each rank passes, in the order of ranks."""
        if self.size == 1:
            return [content]
        lengths = [int(length) for length in self.all_gather(torch.tensor([len(content)]))]
        padded = torch.zeros(max(1, *lengths), dtype=torch.uint8)
        if content:
            padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        gathered = self.all_gather(padded)
        return [
            row[:length].numpy().tobytes() for row, length in zip(gathered, lengths, strict=True)
        ]

    def all_gather(self, values: Tensor) -> list[Tensor]:
        """Return the values of each rank, of one shape, in the order of ranks."""
        if self.size == 1:
            return [values]
        gathered = [torch.empty_like(values) for _ in range(self.size)]
        self.call(
            "all_gather", lambda: dist.all_gather(gathered, values, group=self._group), values
        )
        return gathered

    def all_to_all(self, rows: Tensor) -> Tensor:
        """Return the row that each rank has for this rank; shape (size, n), like ``rows``."""
        if self.size == 1:
            return rows
        received = torch.empty_like(rows)
        self.call(
            "all_to_all", lambda: dist.all_to_all_single(received, rows, group=self._group), rows
        )
        return received

    def total(self, values: Tensor) -> Tensor:
        """Add up the values of all ranks in place; for a few numbers, not for gradients."""
        if self.size > 1:
            self.call("all_reduce", lambda: dist.all_reduce(values), values)
        return values

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether it is set on any rank."""
        if self.size == 1:
            return flags
        values = torch.tensor(flags, dtype=torch.uint8)
        self.call("all_reduce", lambda: dist.all_reduce(values, op=dist.ReduceOp.MAX), values)
        return tuple(bool(value) for value in values)

    def on_rank_0(
        self, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Result | None:
        """Call a function only on rank 0; return its result there, and None on the other ranks.

        The other ranks wait until the function has returned. They serve rank 0 if it runs a sharded
        model.

        Raises:
            SaidElsewhere: The function raised on rank 0, which raises the error itself.
        """
        with self.failing_together():
            return work(*args, **kwargs) if self.is_rank_0 else None

    def broadcast_from_rank_0(
        self, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Result:
        """Call a function on rank 0, like ``on_rank_0``, and return its result on every rank.

        The result is sent as JSON. With several ranks, every rank returns the value that is decoded
        from this JSON, for example a list instead of a tuple.
        """
        result: Any = self.on_rank_0(work, *args, **kwargs)
        if self.size > 1:
            result = json.loads(self.broadcast(json.dumps(result).encode()))
        return cast(Result, result)

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Let all ranks continue after the block, or stop all of them.

        No operation inside the block may be collective, except those that ``serving_other_ranks``
        serves. Rank 0 reports the error of the lowest rank that failed.

        Raises:
            SaidElsewhere: Any rank failed, and rank 0 reports the error.
        """
        if self.size == 1:
            with self.serving_other_ranks():
                yield
            return
        try:
            with self.serving_other_ranks():
                yield
        except RankLost:
            raise
        except Exception as error:
            try:
                self.any(True)
                failed, failure = self._lowest_failure(error)
            except RankLost:
                raise error from None  # This rank's error is more informative.
            if not isinstance(error, DpftError) or (self.is_rank_0 and failed == self.rank):
                raise
            raise failure from None
        if self.any(False)[0]:
            raise self._lowest_failure(None)[1]

    def _lowest_failure(self, error: Exception | None) -> tuple[int, SaidElsewhere]:
        """Return the lowest rank that failed, and its error.

        Args:
            error: The error of this rank, of which the other ranks receive only a message for
                users; None if this rank did not fail.
        """
        failure = None
        if error is not None:
            kind, code = type(error).__name__, getattr(error, "exit_code", 1)
            crash = f"process {self.rank} of the run ended with {kind}."
            failure = [kind, code, str(error) if isinstance(error, DpftError) else crash]
        answers = [json.loads(answer) for answer in self.everyones(json.dumps(failure).encode())]
        failed = next(rank for rank, answer in enumerate(answers) if answer is not None)
        kind, code, sentence = answers[failed]
        return failed, SaidElsewhere(kind, code, sentence if self.is_rank_0 else None)

    def call(self, kind: str, collective: Callable[[], object], sent: Tensor) -> None:
        """Execute an operation and count its traffic.

        Raises:
            RankLost: Another process has ended, or the network is gone.
        """
        self.traffic.collectives[kind] += 1
        self.traffic.sent_bytes += sent.numel() * sent.element_size()
        try:
            collective()
        except RuntimeError as error:
            raise RankLost from error


ALONE = Ranks()
"""The only rank of a run with one process."""


def broadcast_numbers(numbers: Sequence[int], ranks: Ranks) -> list[int]:
    """Return the numbers of rank 0 on every rank; those of the others are ignored."""
    if ranks.size == 1:
        return list(numbers)
    sent = torch.tensor(numbers, dtype=torch.int64).numpy().tobytes()
    received = ranks.broadcast(sent)
    if not received:
        return []
    return [int(number) for number in torch.frombuffer(bytearray(received), dtype=torch.int64)]


REPLICAS, SHARDS = "replicas", "shards"
"""The dimensions of the mesh."""


@dataclass(frozen=True, kw_only=True)
class RankGrid:
    """The ranks in rows: each row holds the whole model, and each rank of a row holds one shard."""

    mesh: DeviceMesh
    """Device mesh with the dimensions (replicas, shards)."""
    words: dist.ProcessGroup
    """Process group of the ranks in this row, through CPU memory."""
    device: torch.device
    """The device that this rank computes on."""

    @property
    def shard_size(self) -> int:
        """Number of shards that the model is split into."""
        return self.mesh.size(1)

    @property
    def replicas(self) -> int:
        """Number of copies of the whole model."""
        return self.mesh.size(0)

    @property
    def place(self) -> tuple[int, int]:
        """Row of this rank, and number of its shard."""
        row, column = self.mesh.get_coordinate() or (0, 0)
        return row, column


def make_grid(ranks: Ranks, shard_size: int | None, device: torch.device) -> RankGrid:
    """Arrange the ranks in a grid; every rank calls this function.

    Args:
        ranks: All ranks of the run.
        shard_size: Number of shards of the model; None for one shard per rank.
        device: The device that the ranks compute on.

    Raises:
        ValueError: The ranks do not form whole rows.
    """
    size = ranks.size if shard_size is None else shard_size
    if ranks.size % size:
        raise ValueError(f"shard_size must divide {ranks.size}, got {size}.")
    shape = (ranks.size // size, size)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=(REPLICAS, SHARDS))
    words = [
        dist.new_group(list(range(first, first + size)), backend="gloo")
        for first in range(0, ranks.size, size)
    ]
    return RankGrid(mesh=mesh, words=words[ranks.rank // size], device=device)


@dataclass(frozen=True)
class RankShare:
    """One rank's share of pieces that every rank knows.

    >>> [RankShare(rank, 2).of([5, 3, 3, 1]) for rank in (0, 1)]
    [[0, 3], [1, 2]]
    """

    rank: int = 0
    size: int = 1

    def of(self, weights: Sequence[int]) -> list[int]:
        """Return the positions of this rank's pieces, in ascending order.

        Pieces are assigned in descending order of weight, each to the rank with the smallest load.
        Shares differ by at most the heaviest piece, and every rank computes the same shares
        independently.

        Args:
            weights: Amount of work of each piece, at least 0.
        """
        if self.size == 1:
            return list(range(len(weights)))
        loads = [(0, rank) for rank in range(self.size)]
        mine = []
        for place in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
            load, rank = heapq.heappop(loads)
            heapq.heappush(loads, (load + weights[place], rank))
            if rank == self.rank:
                mine.append(place)
        return sorted(mine)


EVERYTHING = RankShare()
"""The share of a run with one process."""


def in_turn(count: int, ranks: Ranks) -> range:
    """Return the positions of this rank; position i belongs to rank i modulo the world size."""
    return range(ranks.rank, count, ranks.size)


def put_together(answers: Sequence[Any], ranks: Ranks) -> list[Any]:
    """Return the answers of all ranks to the positions from ``in_turn``, in order of positions.

    Args:
        answers: The answers of this rank, as values for JSON, one for each of its positions.
        ranks: The ranks that answer.
    """
    if ranks.size == 1:
        return list(answers)
    answers_by_rank = [
        json.loads(content) for content in ranks.everyones(json.dumps(list(answers)).encode())
    ]
    ordered: list[Any] = [None] * sum(map(len, answers_by_rank))
    for rank, rank_answers in enumerate(answers_by_rank):
        ordered[rank :: ranks.size] = rank_answers
    return ordered
