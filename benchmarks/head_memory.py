"""Peak memory and time with a fused head and without, against ordinary Hugging Face training.

    python -m benchmarks.head_memory --output benchmarks/results.md

A process of its own for each row takes three updates of a GPT-2 with random weights, of one
micro-batch each, the first of them with the clipper's proof; its peak is that of its resident
memory, glibc run as ``memory.ENVIRONMENT`` has it, so that what is held is measured. For times,
glibc as it is, a fused and an unfused micro-batch take turns in two processes.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import tables
from benchmarks.head_worker import HUGGING_FACE, ORDINARY
from benchmarks.interleave import Process, compare
from benchmarks.workload import HeadWorkload

RESULTS = Path(__file__).parent / "results.md"
TITLE = "A fused head: memory and time"
NAMES = {HUGGING_FACE: "ordinary Hugging Face", ORDINARY: "privacy=none"}
ROWS = ((ORDINARY, "full"), ("book_keeping", "full"), ("two_pass", "full"), ("auto", "bitfit"))
COLUMNS = (
    "training", "head", "peak, MB", "to ordinary", "seconds fused / unfused",
    "time to unfused (interquartile range)",
)  # fmt: skip


def peak_of(workload: HeadWorkload) -> int:
    """Returns the most bytes that a process of its own held."""
    with Process(replace(workload, memory_limit_bytes=0)) as process:
        process.wait_until_ready()
        process.time_one()
        return process.finish()


def rows_of(workload: HeadWorkload, ordinary: int, pairs: int) -> list[str]:
    """Returns the rows of an engine, unfused and fused, in Markdown.

    Args:
        workload: Unfused.
        ordinary: Peak of ordinary training, in bytes.
        pairs: Of micro-batches timed in turns; 0 for none.
    """
    name = NAMES.get(workload.engine, f"private, {workload.engine}")
    name += "" if workload.method == "full" else f", {workload.method}"
    rows = []
    for fused in (False, True):
        peak, times = peak_of(replace(workload, fused=fused)), "| - | - |"
        if fused and pairs:
            result = compare(replace(workload, fused=True), workload, pairs=pairs)
            seconds = " / ".join(f"{each:.2f}" for each in result.seconds)
            first, third = result.quartiles
            times = f"| {seconds} | {result.median:.3f} ({first:.3f} to {third:.3f}) |"
        head = "fused" if fused else "whole"
        rows.append(f"| {name} | {head} | {peak / 1e6:.0f} | {peak / ordinary:.3f} {times}")
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tables.add_options(parser, output=RESULTS)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--engines", nargs="+", default=[engine for engine, _ in ROWS])
    options = parser.parse_args(arguments)
    base = HeadWorkload(
        engine=HUGGING_FACE,
        layers=options.layers,
        batch_size=options.batch_size,
        length=options.length,
        **tables.machine_fields(options),
    )
    notes = (
        f"GPT-2 with {options.layers} layers of width 768 and 50,257 tokens (random weights, head"
        f" tied), {options.batch_size} texts of {options.length} tokens, all of them labeled,"
        " AdamW.\nPeak resident memory of a process of its own; `to ordinary` is over the first"
        " row and should be at most 0.85.\nTimes are of a micro-batch, without the optimizer, fused"
        " over whole in turns; at most 1.05 is wanted."
    )
    writer = "benchmarks/head_memory.py"
    table = tables.heading(TITLE, options, writer=writer, notes=notes, columns=COLUMNS)
    ordinary = peak_of(base)
    rows = [f"| {NAMES[HUGGING_FACE]} | whole | {ordinary / 1e6:.0f} | 1.000 | - | - |"]
    print(rows[0], flush=True)
    for engine, method in ROWS:
        if engine in options.engines:
            made = rows_of(replace(base, engine=engine, method=method), ordinary, options.pairs)
            print(*made, sep="\n", flush=True)
            rows += made
    tables.write(options.output, table + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
