"""What each process of a run holds at its peak, part by part and phase by phase.

From shapes alone: nothing is measured here. A process holds weights, gradients and the optimizer's
state throughout; on top of them comes what one of four phases needs (``PHASES``), of which the
largest is the peak. ``benchmarks/rank_memory.py`` holds it against what processes take.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from dpft.parallel.blocks import repeated_blocks
from dpft.parallel.cutting import blocks_apart
from dpft.parallel.parallel_config import SHARDED, ParallelConfig
from dpft.parallel.shard_sums import Cut
from dpft.privacy.clipping.costs import keeping_is_cheaper
from dpft.training.activations import Activations
from dpft.training.optimizers import OptimizerConfig
from dpft.training.rank_traffic import Traffic, shard_size

NUMBER, DOUBLE = 4, 8
PROCESS = 500 * 10**6
"""What is resident where the first step of a run begins, without the model (VmRSS, torch 2.13): the
libraries, their files' pages too, and what checks and probes before it leave in the heap."""
HEAP = 1.6
"""On a CPU, what glibc holds for activations, of what they take: it keeps freed blocks of less than
32 MiB for later ones, which fit into them with holes (``benchmarks/run_memory.py``)."""
NOISE_BLOCK = 56 * 10**6
"""A block of 2^20 numbers while it is drawn: bits and zeros of 8 bytes each, whole numbers, radii,
cosines and sines of 8 for every second one, and what they are multiplied and rounded in."""
KEPT_NOISE = 32 * 2**20
"""Of it, what is kept from block to block."""
PROOF_ROWS = 8
"""Of a first batch, on which gradients are held against the bare model's (``loss_company``)."""
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
    """What one process has of a model, in numbers of parameters unless it says bytes."""

    config: ParallelConfig
    processes: int
    weight_bytes: int
    """Of what lies here between two forward passes: all, or a shard."""
    root_bytes: int
    """Of the group that stays gathered while the model runs; 0: the model is whole."""
    block_bytes: int
    """Of the largest block that is gathered to be run."""
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
    """What passes between processes."""

    @property
    def pushes(self) -> bool:
        """Whether each micro-batch's sum goes to the shards at once."""
        return self.config.shards_model and self.config.accumulate == SHARDED


def rank_shapes(
    model: nn.Module, config: ParallelConfig, processes: int, optimizer: OptimizerConfig
) -> RankShapes:
    """Returns what the first process has; the others have as much, or a row less.

    Args:
        model: After ``Method.prepare``; it may be on ``meta``.
        config: How the run is spread.
        processes: Over how many processes.
        optimizer: What moves the weights.
    """
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
        trained=sum(p.numel() for p in trained),
        trained_here=sum(here[p] for p in trained),
        largest=max(p.numel() for p in trained),
        largest_here=max(here[p] for p in trained),
        moments_here=sum(optimizer.state_numbers(_rows_here(p, shards)) for p in trained),
        traffic=Traffic.of(model, config, processes),
    )


@dataclass(frozen=True, kw_only=True)
class StepShapes:
    """What one micro-batch and one step are made of."""

    activations: Activations
    engine: str | None
    """Of the clipper; None: nothing is clipped."""
    memory_mb: int
    """What the clipper may keep of instantiated gradients."""
    micro_batches: int
    """Of a step and process."""
    heap: float = 1.0
    """What the allocator holds for activations, of what they take: ``HEAP`` on a CPU."""


def memory_by_phase(shapes: RankShapes, step: StepShapes) -> dict[str, dict[str, int]]:
    """Returns the bytes of each part in each phase; of a run without clipping there is no proof.

    Without clipping a gradient is added up as autograd does it, with nothing kept beside it.
    """
    is_private = step.engine is not None
    held = {
        "process": PROCESS,
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
    """Returns the bytes of what is gathered while the model runs.

    FSDP gathers a group into one piece of memory and copies its parameters out of it; where the
    root comes, at the beginning, there are no activations yet.
    """
    return shapes.root_bytes + 2 * shapes.block_bytes


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
