"""Estimate the peak memory of each process from the shapes of the model.

A process always holds weights and, after its first step, the optimizer's state. On top of them
comes what one of four moments of a step needs; the largest of them is the peak: the clipper's
self-check before the first step, a micro-batch, the exchange and the noise at the end of a step,
and the update. ``benchmarks/rank_memory.py`` compares the estimate with measurements.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from dpft.estimates.activations import Activations
from dpft.methods.base import layer_numbers, quantized_layers
from dpft.parallel.parallel_config import SHARDED, ParallelConfig
from dpft.parallel.rank_sums import TURN, Cut
from dpft.parallel.sharding import blocks_apart, repeated_blocks
from dpft.strict_model import Count, StrictModel
from dpft.training.optimizers import OptimizerConfig


class RankMemory(StrictModel):
    """Bytes of a process at the highest point of a step."""

    weights: Count
    """Of the model."""
    gradients: Count
    """Of the step's sum of gradients."""
    optimizer: Count
    """Of the optimizer's state."""
    activations: Count
    """Of the activations of a micro-batch, and of what the clipper keeps of them."""
    other: Count
    """Of the process, its libraries, and buffers for exchange, noise and update."""
    total: Count
    """All of it."""


NUMBER, DOUBLE = 4, 8


def shard_size(config: ParallelConfig, processes: int) -> int:
    """Return into how many shards a model is cut."""
    if not config.shards_model:
        return 1
    return config.shard_size or processes


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
WORKING = 2
"""Of the largest parameter's size, what an optimizer computes in: of AdamW a root, and it divided.
"""


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
    """Return the shapes of the first process; the others have as much, or a row less."""
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
    )


@dataclass(frozen=True, kw_only=True)
class StepShapes:
    """Activations, engine and micro-batches of a step."""

    activations: Activations
    engine: str | None
    """Of the clipper; None: nothing is clipped."""
    micro_batches: int
    """Of a step and process."""
    heap: float = 1.0
    """What the allocator holds for activations, of what they take: ``heap_factor`` on a CPU."""
    history: int = 0
    """Numbers of float64 that a process keeps of earlier steps' noise."""


def heap_factor(shapes: RankShapes) -> float:
    """Return what glibc holds for activations, of what they take."""
    return HEAP_OVER_QUANTIZED if shapes.dequantized_bytes else HEAP


def peak_memory(shapes: RankShapes, step: StepShapes) -> dict[str, int]:
    """Return the bytes of a process at the highest point of a step, by part, and their total.

    A run without clipping has no self-check. Autograd adds its gradients up, and nothing is kept
    beside them.
    """
    is_private = step.engine is not None
    moments = [
        _micro_batch(shapes, step),
        {"gradients": _sums(shapes, step), "other": _finishing(shapes, is_private=is_private)},
        {
            "gradients": _at_update(shapes, step),
            "other": WORKING * NUMBER * shapes.largest_here,
        },
    ]
    if is_private:
        # Before the first step, the self-check compares two whole sums, parameter by parameter.
        compared = {"gradients": 2 * NUMBER * shapes.trained, "other": NUMBER * shapes.largest}
        moments.append(compared | {"optimizer": 0})
    always = {
        "weights": shapes.weight_bytes,
        "gradients": 0,
        "optimizer": NUMBER * shapes.moments_here,
        "activations": 0,
    }
    process = PROCESS + QUANTIZER * bool(shapes.dequantized_bytes) + DOUBLE * step.history

    def parts_of(moment: dict[str, int]) -> dict[str, int]:
        parts = always | moment
        parts["activations"] = int(step.heap * parts["activations"])
        parts["other"] += process
        return parts

    peak = max(map(parts_of, moments), key=lambda parts: sum(parts.values()))
    return peak | {"total": sum(peak.values())}


def _sums(shapes: RankShapes, step: StepShapes, further: int = 0) -> int:
    """Return the bytes of a step's sum, once its last micro-batch is added or some before.

    The sum itself, and from the second addition on what additions lose (``CompensatedSums``).
    """
    if shapes.pushes:
        return DOUBLE * shapes.trained_here
    if step.engine is None:
        return NUMBER * shapes.trained
    return min(2, step.micro_batches + further) * NUMBER * shapes.trained


def _at_update(shapes: RankShapes, step: StepShapes) -> int:
    """Return the bytes of the gradient, and of what additions lost, kept until the next step."""
    lost = 0
    if step.engine is not None and step.micro_batches > 1 and not shapes.pushes:
        lost = shapes.trained
    return NUMBER * (shapes.trained_here + lost)


def _finishing(shapes: RankShapes, *, is_private: bool) -> int:
    """Return the bytes beside the sums at the highest point of ``finish_sums``.

    It is what is sent, what is received and their total; or, once that is added up, the noise of a
    block and what is sent to all; or this process's shard of the outcome.
    """
    block = NOISE_BLOCK if is_private else 0
    finishing = shapes.processes
    if shapes.pushes:  # Only processes with the same shard still exchange their sums.
        finishing //= shard_size(shapes.config, shapes.processes)
    room = min(TURN, -(-shapes.trained // shapes.processes)) if finishing > 1 else 0
    number = DOUBLE if shapes.pushes else NUMBER
    rows = number * finishing
    kept = min(block, KEPT_NOISE)
    exchanged = room * (2 * rows + DOUBLE + number) + kept
    noisy = room * (rows + DOUBLE) + block
    outcome = NUMBER * shapes.trained_here * shapes.config.shards_model + kept
    return max(exchanged, noisy, outcome)


def _gathered(shapes: RankShapes) -> int:
    """Return the bytes of what is gathered, or dequantized, while the model runs.

    A quantized weight is there in float32 only while its layer multiplies by it. FSDP gathers a
    group into one piece of memory and copies its parameters out of it; where the root comes, at the
    beginning, there are no activations yet.
    """
    return shapes.root_bytes + 2 * shapes.block_bytes + shapes.dequantized_bytes


def _micro_batch(shapes: RankShapes, step: StepShapes) -> dict[str, int]:
    """Return gradients, activations and what is gathered, at the highest point of a micro-batch.

    At the beginning of the backward pass the gradient of the largest output is there twice, before
    and after the logarithm's; at its end, the clipper holds what it recorded. Sums are then added
    one parameter at a time, except that engine ``rows`` has the whole sum of the micro-batch first.
    If sums are pushed, there are also a part, what of it is handed out, and what comes from all.
    """
    activations, part = step.activations, NUMBER * shapes.largest
    formed = 3 * part if shapes.pushes else part
    before = _sums(shapes, step, -1)
    start, whole, held = activations.saved + 2 * activations.largest, 0, before
    if step.engine is None:
        # The first product's sum is formed while nearly all is saved yet.
        start = max(start, activations.saved + activations.largest + formed)
    elif step.engine == "rows":
        whole = NUMBER * shapes.trained
        row = activations.of_rows(1)
        start = row.saved + 2 * row.largest
        held += 2 * whole  # a row's gradient, and the sum of the rows before
    else:
        start = max(start, _kept(step))
    running = {"gradients": held, "activations": start, "other": _gathered(shapes)}
    adding = {
        "gradients": max(before + whole, _sums(shapes, step)),
        "activations": max(2 * activations.largest + part, formed),
        "other": 0,
    }
    return max(running, adding, key=lambda parts: sum(parts.values()))


def _kept(step: StepShapes) -> int:
    """Return the bytes that are kept of layers' inputs and gradients until norms are known."""
    total = 0
    for use in step.activations.uses:
        formed = NUMBER * use.numbers * step.activations.rows
        total += min(formed, use.outputs) if use.is_formed else use.inputs + use.outputs
    return total


def _bytes(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)


def _rows_here(parameter: nn.Parameter, shards: int) -> tuple[int, ...]:
    shape = tuple(parameter.shape)
    return (-(-shape[0] // shards), *shape[1:]) if shape else shape
