"""Estimate of each process's peak memory, and of its network traffic in a step.

From shapes alone: nothing is measured here. A process holds weights, gradients and the optimizer's
state throughout; on top of them comes what one of four phases needs (``PHASES``), of which the
largest is the peak. ``benchmarks/rank_memory.py`` holds it against what processes take.

Traffic is counted as ``Ranks.call`` counts it, where all processes have as many micro-batches and
ask for the same blocks at the same time; where they do not, a gather that some of them want is sent
to each.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from dpft.estimates.activations import Activations
from dpft.methods.base import layer_numbers, quantized_layers
from dpft.parallel.cutting import blocks_apart, repeated_blocks
from dpft.parallel.parallel_config import SHARDED, ParallelConfig
from dpft.parallel.reductions import (
    Cut,
    owned_places,
    owned_stretches,
    pieces_between,
    turn_lengths,
)
from dpft.privacy.clipping.choices import keeping_is_cheaper
from dpft.privacy.noise import BLOCK
from dpft.training.optimizers import OptimizerConfig

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
    """Network traffic between the processes of a run."""

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
        """Returns the traffic between the processes of a configuration."""
        shards = shard_size(config, processes)
        parameters = list(model.parameters())
        trained = {str(n): p for n, p in enumerate(parameters) if p.requires_grad}
        apart = blocks_apart(model, repeated_blocks(model)) if shards > 1 else []
        in_blocks = {p for block in apart for p in block.parameters()}
        sent = {p: _padded(p, shards) for p in parameters} if shards > 1 else {}
        pushes = config.shards_model and config.accumulate == SHARDED
        rows = processes // shards
        turns, twins = _turns(trained, config, processes)
        again = 0
        if pushes:  # once for each further layer that holds a parameter
            held = Counter(
                p for module in model.modules() for p in module.parameters(recurse=False)
            )
            again = sum((n - 1) * p.numel() for p, n in held.items() if p.requires_grad)
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
            again=again,
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


def _lengths(cut: Cut, start: int, end: int, place: int) -> list[int]:
    pieces = pieces_between(place, start, end, total=cut.size, block=BLOCK)
    return [last - first for first, last, _ in pieces]


def _padded(parameter: nn.Parameter, shards: int) -> int:
    """Returns the bytes of a shard as it is sent: as many rows from each, padded with zeros."""
    rows = -(-parameter.shape[0] // shards)
    return rows * (parameter.numel() // parameter.shape[0]) * parameter.element_size()


PROCESS = 500 * 10**6
"""Resident memory where the first step of a run begins, without the model (VmRSS, torch 2.13): the
libraries, their files' pages too, and what checks and probes before it leave in the heap."""
QUANTIZER = 120 * 10**6
"""What bitsandbytes brings with it: a compiler that it asks for when it is imported."""
DEQUANTIZED = 8
"""Bytes of a quantized number while it is in use: of float32, before and after its scale."""
HEAP = 1.6
"""On a CPU, what glibc holds for activations, of what they take: it keeps freed blocks of less than
32 MiB for later ones, which fit into them with holes (``benchmarks/run_memory.py``)."""
HEAP_OVER_QUANTIZED = 2.3
"""The same where frozen weights are quantized, each of which is formed and freed among activations:
seen on one Llama, 2.5 over nf4 and 2.0 over int8."""
NOISE_BLOCK = 56 * 10**6
"""A block of 2^20 numbers while it is drawn: bits and zeros of 8 bytes each, whole numbers, radii,
cosines and sines of 8 for every second one, and what they are multiplied and rounded in."""
KEPT_NOISE = 32 * 2**20
"""Of it, what is kept from block to block."""
PROOF_ROWS = 8
"""Of a first batch, on which gradients are compared with the bare model's (``proof``)."""
WORKING = 2
"""Of the largest parameter's size, what an optimizer computes in: of AdamW a root, and it divided.
"""
PHASES = ("proof", "accumulate", "finish", "optimizer")
"""A first micro-batch; the others; sum, exchange and noise at a step's end; the optimizer's step.
"""
PARTS = (
    "process", "weights", "gathered", "gradients", "optimizer", "activations", "proof",
    "exchange", "noise", "working",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RankShapes:
    """One process's part of a model, in numbers of parameters unless it says bytes."""

    config: ParallelConfig
    processes: int
    weight_bytes: int
    """Of what lies here between two forward passes: all, or a shard."""
    root_bytes: int
    """Of the group that stays gathered while the model runs; 0: the model is whole."""
    block_bytes: int
    """Of the largest block that is gathered to be run."""
    dequantized_bytes: int
    """Of the largest quantized weight while a layer multiplies by it; 0: none is quantized."""
    trained: int
    """All that trains."""
    trained_here: int
    """Of it, what the optimizer of this process moves."""
    largest: int
    """Of the largest parameter that trains."""
    largest_here: int
    """Of it, what lies here."""
    moments_here: int
    """Numbers that the optimizer keeps in this process."""
    traffic: Traffic
    """Between processes."""

    @property
    def pushes(self) -> bool:
        """Whether each micro-batch's sum goes to the shards at once."""
        return self.config.shards_model and self.config.accumulate == SHARDED


def rank_shapes(
    model: nn.Module,
    config: ParallelConfig,
    processes: int,
    optimizer: OptimizerConfig,
) -> RankShapes:
    """Returns the shapes of the first process; the others have as much, or a row less."""
    shards = shard_size(config, processes)
    trained = [p for p in model.parameters() if p.requires_grad]
    cuts = {p: Cut(tuple(p.shape) or (1,), shards) for p in model.parameters()}
    here = {p: cut.stretch(0)[1] for p, cut in cuts.items()}
    apart = blocks_apart(model, repeated_blocks(model))
    blocks = [{p: None for p in block.parameters()} for block in apart]
    in_blocks = {p for block in blocks for p in block}
    is_cut = shards > 1
    return RankShapes(
        config=config,
        processes=processes,
        weight_bytes=sum(here[p] * p.element_size() for p in here),
        root_bytes=is_cut * _bytes([p for p in model.parameters() if p not in in_blocks]),
        block_bytes=is_cut * max(map(_bytes, blocks), default=0),
        dequantized_bytes=DEQUANTIZED * max(map(layer_numbers, quantized_layers(model)), default=0),
        trained=sum(p.numel() for p in trained),
        trained_here=sum(here[p] for p in trained),
        largest=max(p.numel() for p in trained),
        largest_here=max(here[p] for p in trained),
        moments_here=sum(optimizer.state_numbers(_rows_here(p, shards)) for p in trained),
        traffic=Traffic.of(model, config, processes),
    )


@dataclass(frozen=True, kw_only=True)
class StepShapes:
    """Activations, engine and micro-batches of a step."""

    activations: Activations
    engine: str | None
    """Of the clipper; None: nothing is clipped."""
    memory_mb: int
    """Memory that the clipper may use for instantiated gradients."""
    micro_batches: int
    """Of a step and process."""
    heap: float = 1.0
    """What the allocator holds for activations, of what they take: ``heap_factor`` on a CPU."""
    history: int = 0
    """Numbers of float64 that a process keeps of earlier steps' noise."""


def heap_factor(shapes: RankShapes) -> float:
    """Returns what glibc holds for activations, of what they take."""
    return HEAP_OVER_QUANTIZED if shapes.dequantized_bytes else HEAP


def memory_by_phase(shapes: RankShapes, step: StepShapes) -> dict[str, dict[str, int]]:
    """Returns the bytes of each part in each phase; of a run without clipping there is no proof.

    Without clipping a gradient is added up as autograd does it, with nothing kept beside it.
    """
    is_private = step.engine is not None
    held = {
        "process": PROCESS + QUANTIZER * bool(shapes.dequantized_bytes),
        "weights": shapes.weight_bytes,
        "optimizer": NUMBER * shapes.moments_here,
    }
    sums = _sums(shapes, step)
    gathered = _gathered(shapes)
    working = WORKING * NUMBER * shapes.largest_here
    phases = {
        "accumulate": held | _micro_batch(shapes, step),
        "finish": held | {"gradients": sums} | _finishing(shapes, is_private=is_private),
        "optimizer": held | {"gradients": _at_update(shapes, step), "working": working},
    }
    if is_private and step.engine != "loop":
        proof = {"gathered": gathered, "activations": _proof(step), "optimizer": 0}
        phases["proof"] = held | proof | {"proof": NUMBER * shapes.trained}
    for name in {"proof", "accumulate"} & set(phases):
        phases[name]["activations"] = int(step.heap * phases[name]["activations"])
    for parts in phases.values():
        parts["noise"] = parts.get("noise", 0) + DOUBLE * step.history
    return phases


def _sums(shapes: RankShapes, step: StepShapes, further: int = 0) -> int:
    """Returns the bytes of a step's sum, once its last micro-batch is added or some before.

    The sum itself, and from the second addition on what additions lose (``CompensatedSums``).
    """
    if shapes.pushes:
        return DOUBLE * shapes.trained_here
    if step.engine is None:
        return NUMBER * shapes.trained
    return min(2, step.micro_batches + further) * NUMBER * shapes.trained


def _at_update(shapes: RankShapes, step: StepShapes) -> int:
    """Returns the bytes of the gradient, and of what additions lost, kept until the next step."""
    lost = 0
    if step.engine is not None and step.micro_batches > 1 and not shapes.pushes:
        lost = shapes.trained
    return NUMBER * (shapes.trained_here + lost)


def _finishing(shapes: RankShapes, *, is_private: bool) -> dict[str, int]:
    """Returns the bytes at the highest point of ``finish_sums``.

    What is sent, what is received and their total; or, once that is added up, the noise of a block
    and what is sent to all; or this process's shard of the outcome, beside the sums.
    """
    traffic, block = shapes.traffic, NOISE_BLOCK if is_private else 0
    room = max(traffic.turns, default=0) if traffic.finishing > 1 else 0
    number = DOUBLE if shapes.pushes else NUMBER
    rows = number * traffic.finishing
    exchanged = room * (2 * rows + DOUBLE + number), min(block, KEPT_NOISE)
    noisy = room * (rows + DOUBLE), block
    outcome = NUMBER * shapes.trained_here * shapes.config.shards_model, min(block, KEPT_NOISE)
    exchange, noise = max(exchanged, noisy, outcome, key=sum)
    return {"exchange": exchange, "noise": noise}


def _gathered(shapes: RankShapes) -> int:
    """Returns the bytes of what is gathered, or dequantized, while the model runs.

    A quantized weight is there in float32 only while its layer multiplies by it. FSDP gathers a
    group into one piece of memory and copies its parameters out of it; where the root comes, at the
    beginning, there are no activations yet.
    """
    return shapes.root_bytes + 2 * shapes.block_bytes + shapes.dequantized_bytes


def _micro_batch(shapes: RankShapes, step: StepShapes) -> dict[str, int]:
    """Returns gradients, activations and what is gathered, at the highest point of a micro-batch.

    At the beginning of the backward pass the gradient of the largest output is there twice, before
    and after the logarithm's; at its end, what the clipper kept; when that is added up nothing is
    gathered, but a parameter's sum is formed, and sent where sums are pushed.
    """
    found, part = step.activations, NUMBER * shapes.largest
    # Pushed: the part, what of it is handed out, and what comes from all.
    formed = 3 * part if shapes.pushes else part
    start = found.saved + max(2 * found.largest, found.chunk)
    if step.engine == "loop":
        start += 2 * NUMBER * shapes.trained
    elif step.engine in (None, "two_pass"):
        # The first product's sum is formed while nearly all is saved yet.
        start = max(start, found.saved + max(found.largest, found.chunk) + formed)
    else:
        start = max(start + _head_kept(step), _kept(step))
    before, after = (_sums(shapes, step, count) for count in (-1, 0))
    running = {"gradients": before, "activations": start, "gathered": _gathered(shapes)}
    added = max(max(2 * found.largest, found.chunk) + part, formed)
    adding = {"gradients": after, "activations": added}
    return max(running, adding, key=lambda parts: sum(parts.values()))


def _kept(step: StepShapes) -> int:
    """Returns the bytes that are kept of layers' inputs and gradients until norms are known."""
    total = _head_kept(step)
    left = step.memory_mb * 2**20 - total
    for use in step.activations.uses:
        formed = NUMBER * use.numbers * step.activations.rows
        if step.engine == "instantiate":
            total += formed
        elif use.product is None:
            total += min(formed, use.outputs)
        elif keeping_is_cheaper(use.product, left):
            left -= formed if formed > use.product.factored_bytes else 0
            total += formed
        else:
            total += use.inputs + use.outputs
    return total


def _head_kept(step: StepShapes) -> int:
    """Returns the bytes of a fused head's residuals that are kept for its sum."""
    found, room = step.activations, step.memory_mb * 2**20
    if found.fused is None or step.engine != "book_keeping":
        return 0
    return found.fused.kept_bytes(found.rows, room)


def _proof(step: StepShapes) -> int:
    """Returns the bytes of the graph of few rows; logits' gradient thrice: one is a use's."""
    found = step.activations
    few = found.of_rows(min(found.rows, PROOF_ROWS))
    return few.saved + max(3 * few.largest, few.chunk)


def peak_of(phases: Mapping[str, Mapping[str, int]]) -> tuple[str, dict[str, int]]:
    """Returns the phase of the peak, and its parts with their ``total``."""
    name = max(phases, key=lambda phase: sum(phases[phase].values()))
    parts = {part: phases[name].get(part, 0) for part in PARTS}
    return name, parts | {"total": sum(parts.values())}


def _bytes(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)


def _rows_here(parameter: nn.Parameter, shards: int) -> tuple[int, ...]:
    shape = tuple(parameter.shape)
    return (-(-shape[0] // shards), *shape[1:]) if shape else shape
