"""Private micro-batches beside ordinary ones on one CUDA device: ``make bench-gpu``.

    python -m benchmarks.gpu --shapes gpt2,llama_1b --seconds 3600
    python -m benchmarks.gpu --device cpu --shapes tiny

The rows are measured one after the other, the most important first, in one process that is started
anew where a row fails or takes too long; each row's two configurations are in it together and take
turns. The table is written after each row, and a line of JSON into the file beside it, so that a
run that is killed leaves what it has.
"""

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks import tables
from benchmarks.gpu_rows import GROUPS, SETTINGS, Row, chosen, rows
from benchmarks.interleave import Process, Timings
from benchmarks.memory import OutOfMemory
from benchmarks.workload import Pairs
from dpft.machine import missing_for_compile

RESULTS = Path(__file__).parent / "results-gpu.md"
TITLE = "One device: private micro-batches against ordinary ones"
SECONDS = {"cuda": 490.0, "cpu": 45.0}
"""Of all rows: with what starting and ending takes, below nine minutes, and a minute."""
ROW_SECONDS, COMPILED_SECONDS = 30.0, 120.0
"""Most that a row may take."""
MEASURING = 8.0
"""What a row should take when nothing is compiled."""
LEAST = 10.0
"""No row is begun in less."""
COLUMNS = (
    "row", "time (interquartile range)", "memory", "target (time, memory)", "milliseconds",
    "GiB", "launches", "host reads", "pairs",
)  # fmt: skip
NOTES = """\
{machine}; {date}. Median ratio of interleaved pairs of micro-batches (forward, backward and
accumulation, against forward and backward of the same method without privacy) in one process.
Memory: at most, in a micro-batch from cleared gradients, with weights and AdamW's moments;
{counted}. Host reads: numbers read from the device, and results whose shape depends on data. Both
are of one micro-batch in the steady state, the measured one's and the baseline's. In shards a
micro-batch is timed without the end of its step; bf16 is autocast over float32 weights, in shards
as well. Llama has no biases, so there is no BiTFiT of it. Compiled: by {compiler}."""
COUNTED = {
    "cuda": "of the allocator. Launches: kernels that torch.profiler saw on the device",
    "cpu": "of the tensors there are. Launches: operations dispatched (TorchDispatchMode)",
}


class Worker:
    """The process that measures, started where there is none and ended where it failed."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs, self._process = pairs, ExitStack()
        self._running: Process | None = None
        self.machine = "?"
        """What computes, once it has been started."""

    def start(self) -> Process:
        """Returns the process, ready.

        Raises:
            RuntimeError: It cannot be started.
        """
        if self._running is None:
            self._running = self._process.enter_context(Process(self._pairs))
            self.machine = self._running.wait_until_ready()["machine"]
        return self._running

    def end(self) -> None:
        """Ends the process; the next row has one of its own."""
        self._process.close()
        self._running = None


def measure(row: Row, worker: Worker, *, pairs: int, seconds: float) -> dict[str, Any]:
    """Returns what a worker says of a row, or why it says nothing, under ``said``."""
    is_compiled = row.measured.compiler is not None
    limit = min(seconds, COMPILED_SECONDS if is_compiled else ROW_SECONDS)
    said = row.missing or _lacks_compiler(row)
    if said is None and seconds < LEAST:
        said = "out of the time budget"
    if said is not None:
        return {"said": said}
    question = {
        "measured": vars(row.measured),
        "baseline": vars(row.baseline),
        "pairs": pairs,
        "seconds": limit if is_compiled else min(limit, MEASURING),
    }
    try:
        return worker.start().ask(question, limit=limit)
    except TimeoutError:
        said = f"out of time: more than {limit:.0f} s"
    except OutOfMemory:
        said = "out of memory"
    except RuntimeError as error:
        said = f"failed: {str(error).splitlines()[-1][:200]}"
    worker.end()
    return {"said": said}


def table_line(row: Row, found: dict[str, Any]) -> str:
    """Returns a row of the table in Markdown."""
    if "said" in found:
        cells = [row.name, found["said"], "-", row.target, "-", "-", "-", "-", "0"]
        return f"| {' | '.join(cells)} |"
    timings = Timings(private=found["private"], ordinary=found["ordinary"])
    own, baseline = found["costs"]
    milliseconds = [1000 * statistics.median(each) for each in (timings.private, timings.ordinary)]
    memory, ratio = _beside([each["peak_bytes"] for each in (own, baseline)], unit=2**30)
    launches, more = _beside([each["launches"] for each in (own, baseline)])
    cells = [
        _name(row, found),
        timings.spread,
        ratio,
        row.target,
        " / ".join(f"{each:.3g}" for each in milliseconds),
        memory,
        f"{launches} = {more}",
        f"{own['host_reads']} / {baseline['host_reads']}",
        str(len(timings.ratios)),
    ]
    return f"| {' | '.join(cells)} |"


def heading(options: argparse.Namespace, machine: str, compiler: str) -> str:
    """Returns what stands above the table."""
    notes = NOTES.format(
        machine=machine,
        date=datetime.date.today(),
        counted=COUNTED[options.device],
        compiler=compiler,
    )
    writer = "`make bench-gpu` (benchmarks/gpu.py)"
    return tables.heading(TITLE, options, writer=writer, notes=notes, columns=COLUMNS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the rows asked for and writes the table; returns the exit code."""
    options = _options(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            f"benchmarks.gpu needs a CUDA device, and torch {torch.__version__} finds none; on a"
            " CPU run it with --device cpu --shapes tiny.",
            file=sys.stderr,
        )
        return 2
    compiler = "inductor" if options.device == "cuda" else "aot_eager"
    asked = rows(options.shapes, device=options.device, threads=options.threads, compiler=compiler)
    lines, deadline = "", time.monotonic() + options.seconds
    log = options.output.with_suffix(".jsonl")
    log.write_text("", encoding="utf-8")
    worker = Worker(Pairs(device=options.device, threads=options.threads))
    try:
        for row in asked:
            left = deadline - time.monotonic()
            found = measure(row, worker, pairs=options.pairs, seconds=left)
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"row": row.name, **found}) + "\n")
            line = table_line(row, found)
            print(line, flush=True)
            lines += line + "\n"
            tables.write(options.output, heading(options, worker.machine, compiler) + lines)
    finally:
        worker.end()
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=25, help="of a row at most; two at least")
    parser.add_argument("--seconds", type=float, help=f"for all rows together; {SECONDS}")
    known = ", ".join((*SETTINGS, *GROUPS))
    parser.add_argument("--shapes", default="all", help=f"separated by commas: {known}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    options.precision = "bf16 and fp32"
    if options.seconds is None:
        options.seconds = SECONDS[options.device]
    try:
        options.shapes = chosen(options.shapes)
    except KeyError as error:
        parser.error(f"--shapes must be some of {known}, got {error.args[0]!r}")
    return options


def _lacks_compiler(row: Row) -> str | None:
    if row.measured.compiler != "inductor":
        return None
    missing = missing_for_compile(row.measured.device)
    return missing and f"not compiled: lacks {missing}"


def _name(row: Row, found: dict[str, Any]) -> str:
    is_plain = row.measured.compiler is not None and not found["ran_compiled"]
    return f"{row.name}: dpft ran it uncompiled" if is_plain else row.name


def _beside(values: Sequence[int | None], *, unit: int = 1) -> tuple[str, str]:
    """Returns two numbers in a unit, and their ratio; ``-`` for what was not counted."""
    written = [
        "-" if each is None else f"{each / unit:.3g}" if unit > 1 else str(each) for each in values
    ]
    own, other = values
    ratio = "-" if own is None or not other else f"{own / other:.2f}"
    return " / ".join(written), ratio


if __name__ == "__main__":
    sys.exit(main())
