"""Time of a step of one process of two threads, against two processes of one thread each.

The two are replicas (``parallel=ddp``) or hold the model in shards (``parallel=fsdp``).

    python -m benchmarks.processes --pairs 5 --data E2E --output benchmarks/results.md

Both runs have the same test seed, so that their steps draw the same records of E2E, 64 in
expectation, and are taken in turns: GPT-2's shape with random weights and the embedded tokenizer.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks import tables
from benchmarks.whole_runs import ENDLESS, write_shape

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results.md"
TITLE = "Processes: a step of two ranks of one thread against one process of two"
NOTES = (
    "GPT-2's shape (124 M parameters, random weights), records of E2E, an expected batch of 64 in"
    " micro-batches of 8.\nMedian ratio of interleaved steps of the same records by the clock, with"
    " interquartile range; bytes that the first rank\nhands to the network in a step, how many"
    " collective operations it calls, and its resident memory at the most."
)
COLUMNS = (
    "parallel", "time (interquartile range)", "target", "seconds", "sent, MB a step",
    "collectives a step", "peak memory of a process, GB", "pairs",
)  # fmt: skip
ROWS = {
    "ddp": (("parallel=ddp",), 1.10),
    "fsdp": (("parallel=fsdp",), 1.25),
    "fsdp, accumulate=sharded": (("parallel=fsdp", "parallel.accumulate=sharded"), 1.25),
}
"""The words of each row, and what it should not exceed."""
WARM_UP = 1


class Run:
    """A run whose first rank takes a step when it is told to; alive until left."""

    def __init__(self, words: Sequence[str], *, processes: int, threads: int) -> None:
        launched = [sys.executable, "-m"]
        if processes > 1:
            launched += ["torch.distributed.run", f"--nproc_per_node={processes}", "-m"]
        self._process = subprocess.Popen(
            [*launched, "benchmarks.rank_worker", *words, f"train.num_threads={threads}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # The first rank waits for it, and ends the others.
        self._process.wait()

    def hear(self) -> dict[str, Any]:
        """Return what the next step took.

        Raises:
            RuntimeError: The run failed.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a run ended with {self._process.wait()}.")
        step: dict[str, Any] = json.loads(line)
        return step

    def take_step(self) -> dict[str, Any]:
        """Take a step and return what it took."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self.hear()


def measure(words: Sequence[str], row: str, *, pairs: int) -> str:
    """Return a row of the table in Markdown."""
    own, target = ROWS[row]
    with (
        Run(words, processes=1, threads=2) as one,
        Run([*words, *own], processes=2, threads=1) as two,
    ):
        for run in (one, two):
            run.hear()
        steps = [(two.take_step(), one.take_step()) for _ in range(WARM_UP + pairs)][WARM_UP:]
    ratios = [a["seconds"] / b["seconds"] for a, b in steps]
    first, middle, third = statistics.quantiles(ratios, n=4, method="inclusive")
    pairs_of = zip(*steps, strict=True)
    seconds = [statistics.median(step["seconds"] for step in each) for each in pairs_of]
    sent = statistics.median(step["sent_bytes"] for step, _ in steps)
    calls = statistics.median(step["collectives"] for step, _ in steps)
    memory = [max(step["peak_bytes"] for step in each) / 1e9 for each in zip(*steps, strict=True)]
    return (
        f"| {row} | {middle:.3f} ({first:.3f} to {third:.3f}) | {target:.2f}"
        f" | {' / '.join(f'{each:.1f}' for each in seconds)} | {sent / 1e6:.1f} | {calls:.0f}"
        f" | {' / '.join(f'{each:.2f}' for each in memory)} | {pairs} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--data", type=Path, help="folder with E2E; else the embedded sample")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    options.device, options.precision, options.threads = "cpu", "fp32", 2
    writer = "benchmarks/processes.py"
    table = tables.heading(TITLE, options, writer=writer, notes=NOTES, columns=COLUMNS)
    source = "task.source=embedded"
    if options.data is not None:
        source = f"task.data_dir={options.data.resolve()}"
    with tempfile.TemporaryDirectory() as name:
        shape = Path(name)
        write_shape(shape)
        words = [
            "task=e2e", source, "model=gpt2", f"model.path={shape}", "model.init=random",
            "train.expected_batch_size=64", "train.micro_batch_size=8", ENDLESS,
            "privacy.eps=null", "privacy.noise_multiplier=1", "privacy.delta=1e-5",
            "privacy.noise_seed=1",
        ]  # fmt: skip
        for name in options.rows:
            row = measure(words, name, pairs=options.pairs)
            print(row, flush=True)
            table += row + "\n"
    tables.write(options.output, table)


if __name__ == "__main__":
    main()
