"""What each process of a run hands to the network in a step, from a model's shapes.

Counted as ``Ranks.call`` counts it, where all processes have as many micro-batches and ask for the
same blocks at the same time; where they do not, a gather that some of them want is sent to each.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dpft.parallel.blocks import repeated_blocks
from dpft.parallel.cutting import blocks_apart
from dpft.parallel.parallel_config import SHARDED, ParallelConfig
from dpft.parallel.reductions import owned_places, pieces_between, turn_lengths
from dpft.parallel.shard_sums import Cut, owned_stretches
from dpft.privacy.noise import BLOCK

NUMBER, DOUBLE = 4, 8
WISH = 8
"""Bytes by which a process says what it wants next (``Rounds``)."""


def shard_size(config: ParallelConfig, processes: int) -> int:
    """Returns into how many shards a model is cut."""
    if not config.shards_model:
        return 1
    return config.shard_size or processes


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What passes between the processes of a run."""

    processes: int
    finishing: int
    """Of them, those that exchange their sums of one stretch."""
    turns: Sequence[int]
    """Numbers that each is sent by each other one at a step's end, exchange by exchange."""
    is_shared: bool
    """Whether each gets all outcomes, or its shard alone."""
    doubles: bool
    """Whether sums are float64 when they are exchanged."""
    twins: int
    """Numbers that a process gives those with its shard at a step's end."""
    block_bytes: int
    """Of this process's shards of all blocks that are gathered one at a time."""
    blocks: int
    root_bytes: int
    """Of its shard of all else."""
    pushed: int
    """Numbers of the sums that go to the shards at each micro-batch."""
    pushes: int
    """In how many parts."""
    again: int
    """Numbers of what several layers share, which two passes push layer by layer."""

    @classmethod
    def of(cls, model: nn.Module, config: ParallelConfig, processes: int) -> "Traffic":
        """Returns what passes between the processes of a configuration.

        Args:
            model: After ``Method.prepare``; it may be on ``meta``.
            config: How the run is spread.
            processes: Over how many processes.
        """
        shards = shard_size(config, processes)
        parameters = list(model.parameters())
        trained = {str(n): p for n, p in enumerate(parameters) if p.requires_grad}
        apart = blocks_apart(model, repeated_blocks(model)) if shards > 1 else []
        in_blocks = {p for block in apart for p in block.parameters()}
        sent = {p: _padded(p, shards) for p in parameters} if shards > 1 else {}
        pushes = config.shards_model and config.accumulate == SHARDED
        rows = processes // shards
        turns, twins = _turns(trained, config, processes)
        return cls(
            processes=processes,
            finishing=rows if pushes else processes,
            turns=turns,
            is_shared=pushes or not config.shards_model,
            doubles=pushes,
            twins=twins,
            block_bytes=sum(sent.get(p, 0) for p in in_blocks),
            blocks=len(apart),
            root_bytes=sum(size for p, size in sent.items() if p not in in_blocks),
            pushed=sum(p.numel() for p in trained.values()) if pushes else 0,
            pushes=len(trained) if pushes else 0,
            again=_held_again(model) if pushes else 0,
        )

    def bytes_per_step(self, *, engine: str | None, micro_batches: int, drawn: int) -> int:
        """Returns the bytes that a process sends in a step without a proof.

        Args:
            engine: Of the clipper; None: nothing is clipped.
            micro_batches: Of the process.
            drawn: Records of all processes, whose places the first one tells.
        """
        backward = 2 if engine == "two_pass" else 1
        # The root stays from its forward pass to the end of the first backward pass.
        gathers = (1 + backward) * self.block_bytes + backward * self.root_bytes
        count = (1 + backward) * self.blocks + backward + self.pushes
        wishes = count * WISH if self.root_bytes else 0
        pushed = self.pushed + (self.again if engine == "two_pass" else 0)
        number = DOUBLE if self.doubles else NUMBER
        rows = self.finishing + self.is_shared if self.finishing > 1 else 0
        return (
            micro_batches * (gathers + wishes + NUMBER * pushed)
            + sum(self.turns) * number * rows
            + NUMBER * self.twins
            + (DOUBLE * (1 + drawn) if self.processes > 1 else 0)
        )


def _turns(
    trained: dict[str, nn.Parameter], config: ParallelConfig, processes: int
) -> tuple[list[int], int]:
    """Returns the exchanges of a step's end, and what goes to those with the same shard."""
    shards = shard_size(config, processes)
    rows = processes // shards
    cuts = {name: Cut(tuple(p.shape), shards) for name, p in trained.items()}
    places = {name: int(name) for name in trained}
    own = sum(end - start for start, end in (cut.stretch(0) for cut in cuts.values()))
    if not config.shards_model:
        whole = [_lengths(cut, 0, cut.size, places[name]) for name, cut in cuts.items()]
        lengths = [length for each in whole for length in each]
        return turn_lengths(lengths, owned_places(lengths, processes)), 0
    if config.accumulate == SHARDED:
        stretches, owned = owned_stretches(cuts, places, shards, 1, BLOCK)
        lengths = [stretches[place].end - stretches[place].start for place in owned[0]]
        return turn_lengths(lengths, owned_places(lengths, rows)) if rows > 1 else [], 0
    stretches, owned = owned_stretches(cuts, places, shards, rows, BLOCK)
    lengths = [stretch.end - stretch.start for stretch in stretches]
    return turn_lengths(lengths, owned), -(-own // rows) if rows > 1 else 0


def _held_again(model: nn.Module) -> int:
    """Returns the numbers of trained parameters once for each further layer that holds them."""
    holders = Counter(p for module in model.modules() for p in module.parameters(recurse=False))
    return sum((count - 1) * p.numel() for p, count in holders.items() if p.requires_grad)


def _lengths(cut: Cut, start: int, end: int, place: int) -> list[int]:
    pieces = pieces_between(place, start, end, total=cut.size, block=BLOCK)
    return [last - first for first, last, _ in pieces]


def _padded(parameter: nn.Parameter, shards: int) -> int:
    """Returns the bytes of a shard as it is sent: as many rows from each, padded with zeros."""
    rows = -(-parameter.shape[0] // shards)
    return rows * (parameter.numel() // parameter.shape[0]) * parameter.element_size()
