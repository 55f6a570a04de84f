"""Scaling on paper: what a private step would take on 1 to 1024 devices, and what bounds it.

    python -m benchmarks.scaling --output benchmarks/scaling.md

No such devices were at hand: these are sums, not measurements. Memory and bytes sent are the plan's
(``dpft plan``), which ``benchmarks/rank_memory.py`` holds against processes. What clipping adds to
an ordinary step is measured (``benchmarks/whole_runs.py``); how many times as long as a copy noise
takes is measured here. Peak rates are those of the makers' data sheets, and the share of them that
is reached is assumed, and said.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from benchmarks import tables
from benchmarks.shapes import SHAPES, Shape, llama_shape
from dpft.data.batches import TextLayout
from dpft.estimates.activations import Activations, trace_activations
from dpft.estimates.rank_memory import RankShapes, StepShapes, memory_by_phase, peak_of, rank_shapes
from dpft.parallel.parallel_config import SHARDED, WHOLE, ParallelConfig
from dpft.parallel.reductions import Piece
from dpft.privacy.cipher import AgingKey
from dpft.privacy.clipping.choices import DEFAULT_MEMORY_MB
from dpft.privacy.noise import BLOCK, BlockNoise, NoiseStream
from dpft.training.optimizers import AdamW

RESULTS = Path(__file__).parent / "scaling.md"
DEVICES = (1, 8, 64, 256, 1024)
RECORDS, LENGTH = 4096, 512
MEMORY = 80e9
PEAK, REACHED = 989e12, 0.4
MEMORY_RATE = 3.35e12
NODE, INSIDE, BETWEEN = 8, 450e9, 50e9
CLIPPING = 1.06
FLOPS = 6
ENGINE = "book_keeping"
MODELS: dict[str, Shape] = {
    "GPT-2, 124M": SHAPES["gpt2"],
    "Llama's form, 374M": SHAPES["llama_350m"],
    "Llama's form, 1.1B": SHAPES["llama_1b"],
    "Llama's form, 6.7B": llama_shape(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=11008
    ),
    "Llama's form, 13B": llama_shape(
        hidden_size=5120, num_hidden_layers=40, num_attention_heads=40, intermediate_size=13824
    ),
    "Llama's form, 69B": llama_shape(
        hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        intermediate_size=28672,
    ),
}  # fmt: skip
TITLE = "Scaling on paper"
NOTES = (
    f"Sums, not measurements. A step of {RECORDS} records of {LENGTH} tokens, full fine-tuning,"
    f" AdamW, fp32 weights, products in bf16.\nDevices of {MEMORY / 1e9:.0f} GB that reach"
    f" {REACHED:.0%} (assumed) of {PEAK / 1e12:.0f} TFLOP/s (H100 SXM, its data sheet), {NODE} a"
    f" node, {INSIDE / 1e9:.0f} GB/s each way inside it (NVLink 4)\nand {BETWEEN / 1e9:.0f} GB/s a"
    " device between nodes (one 400 Gb/s port each); nothing overlaps. Clipping takes"
    f" {CLIPPING - 1:.0%} of an ordinary step\n(measured, GPT-2's shape), noise"
    " {copies:.0f} times as long as a copy of its numbers (measured on this machine's processor).\n"
    "The fastest spread that fits; a micro-batch is the largest that fits. Where none does, what"
    " the one that needs least\nwould need, and in which phase: proof is the clipper's of a first"
    " batch, which holds a whole gradient however small\nthe shards. Efficiency is the share of a"
    " step that computes, times the share of the devices that have a record."
)
COLUMNS = (
    "model", "devices", "spread", "memory, GB", "micro-batch", "sent, GB a step", "seconds a step",
    "compute / network / noise, s", "efficiency", "bound by",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A step of a model on some devices."""

    spread: ParallelConfig
    devices: int
    memory: float
    micro_batch: int
    sent: int
    compute: float
    network: float
    noise: float

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.compute + self.network + self.noise

    @property
    def bound(self) -> str:
        """What takes longest."""
        parts = {"compute": self.compute, "network": self.network, "noise": self.noise}
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class Model:
    """A model without weights."""

    shape: Shape
    copies: float
    """How many times as long as a copy noise takes."""
    cached: dict[str, RankShapes] = field(default_factory=dict)

    @cached_property
    def module(self) -> torch.nn.Module:
        """It, on the meta device."""
        with torch.device("meta"):
            return self.shape.build()

    @cached_property
    def row(self) -> Activations:
        """What one record keeps in memory."""
        layout = TextLayout(kind="causal")
        return trace_activations(
            self.module, rows=1, length=LENGTH, layout=layout, precision="bf16"
        )

    def steps(self, devices: int) -> Iterator[Step]:
        """Yields a step of each spread that fits."""
        for spread in spreads(devices):
            shapes = rank_shapes(self.module, spread, devices, AdamW())
            found = self._fitting(shapes, devices)
            if found is not None:
                yield self._step(shapes, spread, devices, *found)

    def least(self, devices: int) -> tuple[str, int]:
        """Returns the phase and the bytes of the spread that needs least, in micro-batches of 1."""
        step = StepShapes(
            activations=self.row,
            engine=ENGINE,
            memory_mb=DEFAULT_MEMORY_MB,
            micro_batches=max(1, RECORDS // devices),
        )
        peaks = []
        for spread in spreads(devices):
            shapes = rank_shapes(self.module, spread, devices, AdamW())
            phase, parts = peak_of(memory_by_phase(shapes, step))
            peaks.append((parts["total"], phase))
        total, phase = min(peaks)
        return phase, total

    def _fitting(self, shapes: RankShapes, devices: int) -> tuple[int, int] | None:
        """Returns the largest micro-batch that fits, a power of two, and its memory."""
        best = None
        rows = 1
        while rows <= max(1, RECORDS // devices):
            step = StepShapes(
                activations=self.row.of_rows(rows),
                engine=ENGINE,
                memory_mb=DEFAULT_MEMORY_MB,
                micro_batches=max(1, RECORDS // devices // rows),
            )
            _, parts = peak_of(memory_by_phase(shapes, step))
            if parts["total"] > MEMORY:
                break
            best = rows, parts["total"]
            rows *= 2
        return best

    def _step(
        self, shapes: RankShapes, spread: ParallelConfig, devices: int, rows: int, memory: int
    ) -> Step:
        micro_batches = max(1, RECORDS // devices // rows)
        traffic = shapes.traffic
        sent = traffic.bytes_per_step(engine=ENGINE, micro_batches=micro_batches, drawn=RECORDS)
        ended = traffic.bytes_per_step(engine=ENGINE, micro_batches=0, drawn=RECORDS)
        shards = spread.shard_size or (devices if spread.shards_model else 1)
        gathers = (sent - ended) / (INSIDE if shards <= NODE else BETWEEN)
        numbers = sum(p.numel() for p in self.module.parameters())
        tokens = max(1, RECORDS // devices) * LENGTH
        return Step(
            spread=spread,
            devices=devices,
            memory=memory,
            micro_batch=rows,
            sent=sent,
            compute=FLOPS * numbers * tokens * CLIPPING / (PEAK * REACHED),
            network=gathers + ended / (INSIDE if devices <= NODE else BETWEEN),
            noise=self.copies * 8 * numbers / devices / MEMORY_RATE,
        )


def spreads(devices: int) -> Iterator[ParallelConfig]:
    """Yields the ways to spread a run."""
    yield ParallelConfig(name="none" if devices == 1 else "ddp")
    for shards in (size for size in (NODE, 64, 256, 1024) if 1 < size <= devices):
        for accumulate in (WHOLE, SHARDED):
            yield ParallelConfig(name="fsdp", shard_size=shards, accumulate=accumulate)


def copies_of_noise(blocks: int = 8) -> float:
    """Returns how many times as long as copying numbers drawing them takes, on this machine."""
    noise = BlockNoise(NoiseStream(torch.device("cpu"), AgingKey(bytes(32))), 0)
    source, target = torch.zeros(blocks * BLOCK), torch.zeros(blocks * BLOCK)
    seconds = []
    for draw in (True, False):
        begun = time.perf_counter()
        for block in range(blocks):
            if draw:
                list(noise.halves([Piece(0, block, 0, BLOCK)]))
            else:
                target[block * BLOCK :][:BLOCK].copy_(source[block * BLOCK :][:BLOCK])
        seconds.append(time.perf_counter() - begun)
    return seconds[0] / seconds[1]


def row_of(name: str, model: Model, devices: int) -> str:
    """Returns a row of the table in Markdown."""
    steps = list(model.steps(devices))
    if not steps:
        phase, total = model.least(devices)
        return (
            f"| {name} | {devices} | none fits | {total / 1e9:.0f} | 1 | – | – | – | – | memory"
            f" ({phase}) |"
        )
    best = min(steps, key=lambda step: step.seconds)
    spread = best.spread.name
    if best.spread.shards_model:
        spread += f", {best.spread.shard_size} shards, {best.spread.accumulate}"
    parts = " / ".join(f"{part:.2g}" for part in (best.compute, best.network, best.noise))
    busy = min(1.0, RECORDS / devices)
    return (
        f"| {name} | {devices} | {spread} | {best.memory / 1e9:.1f} | {best.micro_batch}"
        f" | {best.sent / 1e9:.3g} | {best.seconds:.3g} | {parts}"
        f" | {best.compute / best.seconds * busy:.0%} | {best.bound} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Adds up and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--devices", type=int, nargs="+", default=DEVICES)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    options.device, options.precision, options.threads = "cpu", "fp32", torch.get_num_threads()
    copies = copies_of_noise()
    table = tables.heading(
        TITLE,
        options,
        writer="benchmarks/scaling.py",
        notes=NOTES.replace("{copies:.0f}", f"{copies:.0f}"),
        columns=COLUMNS,
    )
    for name in options.models:
        model = Model(MODELS[name], copies)
        for devices in options.devices:
            row = row_of(name, model, devices)
            print(row, flush=True)
            table += row + "\n"
    tables.write(options.output, table)


if __name__ == "__main__":
    main()
