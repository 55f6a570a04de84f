"""Measure the peak memory of each process and compare it with ``dpft plan``.

    python -m benchmarks.rank_memory --output benchmarks/results.md

One, two and four ranks of one thread take two private steps of a GPT-2 with random weights, by
torchrun where there are several. Each looks at its resident memory every 20 ms. glibc runs as
``memory.ENVIRONMENT`` has it, so that what is held is measured, and not also the holes of a heap;
``--heap`` leaves it as it is.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks import memory, tables
from benchmarks.rank_memory_worker import RankWorkload
from dpft.estimates.activations import trace_activations
from dpft.estimates.rank_memory import StepShapes, peak_memory, rank_shapes
from dpft.parallel.parallel_config import ParallelConfig
from dpft.privacy.clipping.options import ENGINE_NAMES
from dpft.training.optimizers import AdamW

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results.md"
TITLE = "Memory of each process against its plan"
NOTES = (
    "GPT-2 with 8 layers of width 512 (51 M parameters, random weights), texts of 64 tokens, two"
    " micro-batches of 4 a step\nand rank, AdamW. Peak resident memory of the rank that had most;"
    " measured over planned should be within 15 %."
)
COLUMNS = ("ranks", "parallel", "engine", "measured, MB", "planned, MB", "measured / planned")
SPREADS = {1: [("none", "whole")], 2: [], 4: []}
SPREADS[2] = SPREADS[4] = [("ddp", "whole"), ("fsdp", "whole"), ("fsdp", "sharded")]


def measured(workload: RankWorkload, ranks: int, *, heap: bool) -> list[dict[str, Any]]:
    """Return what each rank held.

    Raises:
        RuntimeError: A rank failed.
    """
    launched = [sys.executable, "-m"]
    if ranks > 1:
        launched += ["torch.distributed.run", f"--nproc_per_node={ranks}", "-m"]
    answer = subprocess.run(
        [*launched, "benchmarks.rank_memory_worker", json.dumps(asdict(workload))],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **({} if heap else memory.ENVIRONMENT)},
        check=False,
    )
    if answer.returncode:
        raise memory.failure(answer.returncode, answer.stderr)
    found: list[dict[str, Any]] = json.loads(answer.stdout.splitlines()[-1])
    return found


def planned(workload: RankWorkload, ranks: int) -> int:
    """Return the bytes of the peak."""
    with torch.device("meta"):
        model = workload.model()
    config = ParallelConfig(name=workload.parallel, accumulate=workload.accumulate)
    shapes = rank_shapes(model, config, ranks, AdamW())
    rows = workload.micro_batch_size
    step = StepShapes(
        activations=trace_activations(model, rows=rows, length=workload.length),
        engine=workload.engine,
        micro_batches=workload.micro_batches,
    )
    return peak_memory(shapes, step)["total"]


def row_of(workload: RankWorkload, ranks: int, *, heap: bool) -> str:
    """Return a row of the table in Markdown."""
    found = measured(workload, ranks, heap=heap)
    total = planned(workload, ranks)
    peak = max(max(each["peaks"].values()) for each in found)
    name = workload.parallel
    if name == "fsdp":
        name += f", accumulate={workload.accumulate}"
    return (
        f"| {ranks} | {name} | {workload.engine} | {peak / 1e6:.0f} | {total / 1e6:.0f}"
        f" | {peak / total:.3f} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SPREADS))
    parser.add_argument("--engines", nargs="+", default=ENGINE_NAMES, choices=ENGINE_NAMES)
    parser.add_argument("--heap", action="store_true", help="glibc's own ways with small blocks")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    options.device, options.precision, options.threads = "cpu", "fp32", 1
    title = f"{TITLE}, glibc's heap as it is" if options.heap else TITLE
    writer = "benchmarks/rank_memory.py"
    table = tables.heading(title, options, writer=writer, notes=NOTES, columns=COLUMNS)
    for ranks in options.ranks:
        for (parallel, accumulate), engine in product(SPREADS[ranks], options.engines):
            workload = RankWorkload(
                parallel=parallel, accumulate=accumulate, engine=engine, micro_batches=2
            )
            row = row_of(workload, ranks, heap=options.heap)
            print(row, flush=True)
            table += row + "\n"
    tables.write(options.output, table)


if __name__ == "__main__":
    main()
