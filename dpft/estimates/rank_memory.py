"""Estimate of the peak memory of each process from the shapes of the model.

A process always holds weights and, after its first step, the state of the optimizer. Four phases of
a run need additional memory, and the largest of them determines the peak: the clipper's self-check
before the first step, a micro-batch, the exchange and the noise at the end of a step, and the
update. ``benchmarks/rank_memory.py`` compares the estimate with measurements.
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
    """Memory of a process in bytes at the peak of a step."""

    weights: Count
    """Bytes of the model."""
    gradients: Count
    """Bytes of the step's sum of gradients."""
    optimizer: Count
    """Bytes of the optimizer's state."""
    activations: Count
    """Bytes of the activations of a micro-batch, including the tensors that the clipper keeps."""
    other: Count
    """Bytes of the process, its libraries, and buffers for exchange, noise and update."""
    total: Count
    """Sum of all parts, in bytes."""


NUMBER, DOUBLE = 4, 8


def shard_size(config: ParallelConfig, processes: int) -> int:
    """Return the number of shards of a model."""
    if not config.shards_model:
        return 1
    return config.shard_size or processes


PROCESS = 500 * 10**6
"""Resident bytes when the first step of a run begins, without the model (VmRSS, torch 2.13). They
include the libraries with their mapped files, and the heap that the checks before this step leave
behind."""
QUANTIZER = 120 * 10**6
"""Additional bytes of bitsandbytes, which loads a compiler when it is imported."""
DEQUANTIZED = 8
"""Bytes of a quantized number during use: two float32 numbers, before and after scaling."""
HEAP = 1.6
"""Ratio of the memory that glibc holds for activations to their size, on a CPU. glibc keeps freed
blocks of less than 32 MiB, and later allocations fill these blocks only in part
(``benchmarks/run_memory.py``)."""
HEAP_OVER_QUANTIZED = 2.3
"""The same ratio for a model with quantized frozen weights, each of which is allocated and freed
among activations. Measured for one Llama: 2.5 with nf4 and 2.0 with int8."""
NOISE_BLOCK = 56 * 10**6
"""Bytes for generating a block of 2^20 noise numbers: bits and zeros of 8 bytes each, integers,
radii, cosines and sines of 8 bytes for every second number, and buffers for multiplying and
rounding."""
KEPT_NOISE = 32 * 2**20
"""Bytes for generating a noise block that are reused for the next block instead of freed."""
WORKING = 2
"""Temporary memory of an optimizer, as a multiple of the largest parameter's size. AdamW needs two
tensors of this size: a square root, and a quotient with this root."""


@dataclass(frozen=True, kw_only=True)
class RankShapes:
    """One process's share of a model, in numbers of elements, or in bytes if so named."""

    config: ParallelConfig
    processes: int
    weight_bytes: int
    """Bytes of the weights that this process holds between two forward passes: the whole model, or
    its shard."""
    root_bytes: int
    """Bytes of the root group, which stays gathered while the model runs; 0 for an unsharded
    model."""
    block_bytes: int
    """Bytes of the largest block that is gathered to run."""
    dequantized_bytes: int
    """Bytes of the largest quantized weight while a layer multiplies by it; 0 without
    quantization."""
    trained: int
    """Number of trainable elements of the whole model."""
    trained_here: int
    """Number of trainable elements that the optimizer of this process updates."""
    largest: int
    """Size of the largest trainable parameter."""
    largest_here: int
    """Size of this process's largest part of a trainable parameter."""
    moments_here: int
    """Number of elements of the optimizer's state in this process."""

    @property
    def pushes(self) -> bool:
        """Whether the sum of each micro-batch is sent to the owners of the shards immediately."""
        return self.config.shards_model and self.config.accumulate == SHARDED


def rank_shapes(
    model: nn.Module,
    config: ParallelConfig,
    processes: int,
    optimizer: OptimizerConfig,
) -> RankShapes:
    """Return the shapes of the first process.

    The other processes hold as much, or one row less of a parameter.
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
        dequantized_bytes=DEQUANTIZED * max(map(layer_numbers, quantized_layers(model)), default=0),
        trained=sum(p.numel() for p in trained),
        trained_here=sum(here[p] for p in trained),
        largest=max(p.numel() for p in trained),
        largest_here=max(here[p] for p in trained),
        moments_here=sum(optimizer.state_numbers(_rows_here(p, shards)) for p in trained),
    )


@dataclass(frozen=True, kw_only=True)
class StepShapes:
    """Properties of a step that determine its memory."""

    activations: Activations
    engine: str | None
    """Name of the clipping engine; None if gradients are not clipped."""
    micro_batches: int
    """Number of micro-batches per step and process."""
    heap: float = 1.0
    """Ratio of allocated memory to the size of activations: ``heap_factor`` on a CPU."""
    history: int = 0
    """Number of float64 values of earlier noise that a process keeps for correlated noise."""


def heap_factor(shapes: RankShapes) -> float:
    """Return the ratio of the memory that glibc holds for activations to their size."""
    return HEAP_OVER_QUANTIZED if shapes.dequantized_bytes else HEAP


def peak_memory(shapes: RankShapes, step: StepShapes) -> dict[str, int]:
    """Return the bytes of a process at the peak of a step, by part, and their total.

    A run without clipping has no self-check. Autograd then accumulates the gradients, and no other
    sum is kept.
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
    """Return the bytes of a step's sum after ``micro_batches + further`` additions.

    The bytes are those of the sum itself and, from the second addition on, of the rounding errors
    of the additions (``CompensatedSums``).
    """
    if shapes.pushes:
        return DOUBLE * shapes.trained_here
    if step.engine is None:
        return NUMBER * shapes.trained
    return min(2, step.micro_batches + further) * NUMBER * shapes.trained


def _at_update(shapes: RankShapes, step: StepShapes) -> int:
    """Return the bytes of the gradient and of the rounding errors that remain during an update."""
    lost = 0
    if step.engine is not None and step.micro_batches > 1 and not shapes.pushes:
        lost = shapes.trained
    return NUMBER * (shapes.trained_here + lost)


def _finishing(shapes: RankShapes, *, is_private: bool) -> int:
    """Return the bytes in addition to the sums at the peak of ``finish_sums``.

    The peak occurs at one of three moments. During the exchange, the process holds the numbers that
    it sends and receives, and their total. After the addition, it holds the noise of a block and
    the numbers to send to all processes. At the end, it holds its shard of the result.
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
    """Return the bytes of weights that are gathered or dequantized while the model runs.

    A quantized weight exists in float32 only while its layer multiplies by it. FSDP gathers a group
    into one buffer and then copies the parameters out of this buffer, so a block counts twice. The
    root group counts once, because it is gathered before there are any activations.
    """
    return shapes.root_bytes + 2 * shapes.block_bytes + shapes.dequantized_bytes


def _micro_batch(shapes: RankShapes, step: StepShapes) -> dict[str, int]:
    """Return gradients, activations and gathered weights, in bytes, at the peak of a micro-batch.

    At the beginning of the backward pass, the gradient of the largest output exists twice, before
    and after the logarithm. At the end of the backward pass, the clipper holds its recorded
    tensors. The sums of the micro-batch are then added one parameter at a time, except that the
    engine ``rows`` first holds the whole sum of the micro-batch. If sums are pushed to the shards,
    memory also contains one parameter's sum, the piece of it that is sent, and the numbers received
    from all processes.
    """
    activations, part = step.activations, NUMBER * shapes.largest
    formed = 3 * part if shapes.pushes else part
    before = _sums(shapes, step, -1)
    start, whole, held = activations.saved + 2 * activations.largest, 0, before
    if step.engine is None:
        # The first product's sum is formed while nearly all activations are still saved.
        start = max(start, activations.saved + activations.largest + formed)
    elif step.engine == "rows":
        whole = NUMBER * shapes.trained
        row = activations.of_rows(1)
        start = row.saved + 2 * row.largest
        held += 2 * whole  # the gradient of a row, and the sum of the rows before
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
    """Return the bytes of layer inputs and output gradients, kept until the norms are known."""
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
