"""Time of whole steps of ``dpft train``: private against ``privacy=none``.

    python -m benchmarks.whole_runs --pairs 10 --rows tiny --data E2E --output benchmarks/results.md

A step is all that a run does between two updates: the draw, collation, micro-batches, noise,
journal, ledger, optimizer, the check of the weights and diagnostics. Two runs take their steps in
turns, each in a process of its own. Steps are small, so that some are taken in minutes; what grows
with the records is scaled to those of a usual step, 1024. GPT-2's shape has random weights and the
embedded model's tokenizer. The row ``report`` times the whole command instead, 30 steps from its
start to its report.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GPT2Config

from benchmarks import tables
from benchmarks.interleave import ROOT, Process
from benchmarks.run_worker import COLLATION, MICRO_BATCHES
from benchmarks.workload import WholeRun
from dpft.models.source import EMBEDDED_MODEL

RESULTS = Path(__file__).parent / "results.md"
RECORDS = 1024
"""Of the step that measured ones are scaled to."""
PRIVATE = ("privacy.eps=null", "privacy.noise_multiplier=1", "privacy.delta=1e-5")
ORDINARY = ("privacy=none",)
REPORT_ROW, REPORT_GOAL = "report", "(goal: at most 1.1)"
REPORT = (
    "model=tiny", "train.steps=30", "train.expected_batch_size=256", "eval.enabled=false",
)  # fmt: skip
"""Words of the command that is timed from its start to its report."""
ENDLESS = "train.steps=1000000"
"""The benchmark ends a run, not its plan."""


@dataclass(frozen=True)
class Row:
    """Two runs whose steps are compared, and what is hoped of the ratio."""

    name: str
    words: tuple[str, ...]
    """Of both."""
    target: str = ""


@dataclass(frozen=True)
class Steps:
    """What the steps of two runs took, pair by pair, and the measured run's first step.

    Attributes:
        measured: As ``benchmarks.run_worker`` answers them.
        baseline: As many.
        first: The measured run's first step.
    """

    measured: Sequence[Mapping[str, Any]]
    baseline: Sequence[Mapping[str, Any]]
    first: Mapping[str, Any]

    @property
    def ratios(self) -> list[float]:
        """Seconds of a measured step over those of the baseline's, each of 1024 records."""
        pairs = zip(self.measured, self.baseline, strict=True)
        return [seconds_of_step(a) / seconds_of_step(b) for a, b in pairs]

    @property
    def share_outside(self) -> float:
        """Median share of a measured step of 1024 records that is outside of micro-batches."""
        return statistics.median(share_outside(step) for step in self.measured)

    @property
    def checks(self) -> float:
        """Seconds of micro-batches that the first step takes beyond later ones of its records."""
        each = (inside(step) / max(1, step["records"]) for step in self.measured)
        return inside(self.first) - statistics.median(each) * float(self.first["records"])

    @property
    def median_and_quartiles(self) -> str:
        """Of the ratios, in words."""
        ratios = self.ratios
        spread = statistics.quantiles(ratios, n=4, method="inclusive") if ratios[1:] else ratios * 3
        return f"{spread[1]:.3f} ({spread[0]:.3f} to {spread[2]:.3f})"

    @property
    def records_a_second(self) -> str:
        """Of both runs, in words."""
        medians = (
            statistics.median(map(seconds_of_step, s)) for s in (self.measured, self.baseline)
        )
        return " / ".join(f"{RECORDS / median:.1f}" for median in medians)


def inside(step: Mapping[str, Any]) -> float:
    """Return the seconds of a step's micro-batches."""
    return float(step["parts"].get(MICRO_BATCHES, 0.0))


def outside_of_step(step: Mapping[str, Any]) -> float:
    """Return the seconds outside of micro-batches of a step, had it 1024 records.

    Collation grows with the records; what is left does not.
    """
    collation = float(step["parts"].get(COLLATION, 0.0))
    fixed = float(step["seconds"]) - inside(step) - collation
    return fixed + collation * RECORDS / max(1, step["records"])


def seconds_of_step(step: Mapping[str, Any]) -> float:
    """Return the seconds of a step, had it 1024 records."""
    return outside_of_step(step) + inside(step) * RECORDS / max(1, step["records"])


def share_outside(step: Mapping[str, Any]) -> float:
    """Return the share of a step of 1024 records that is outside of micro-batches."""
    return outside_of_step(step) / seconds_of_step(step)


def rows(shape: Path) -> dict[str, Row]:
    """Return private runs against ordinary ones."""
    small = ("model=tiny", "train.expected_batch_size=128", "train.micro_batch_size=32")
    large = (*_gpt2(shape), "train.expected_batch_size=16", "train.micro_batch_size=8")
    return {
        "tiny": Row("embedded model, 1.8 M parameters", small, "1.15"),
        "gpt2": Row("GPT-2's shape, 124 M parameters", large, "1.10"),
    }


def _gpt2(shape: Path) -> tuple[str, ...]:
    return "model=gpt2", f"model.path={shape}", "model.init=random"


def measure(row: Row, data: Path | None, *, threads: int, pairs: int) -> Steps:
    """Take steps of two runs in turns.

    Raises:
        RuntimeError: A run failed.
    """
    common = ("task=e2e", _source(data), *row.words, ENDLESS)
    runs = [WholeRun(words=(*common, *own), threads=threads) for own in (PRIVATE, ORDINARY)]
    with Process(runs[0]) as measured, Process(runs[1]) as baseline:
        first = measured.wait_until_ready()["warm_up"][0]
        baseline.wait_until_ready()
        steps = [(measured.measure_one(), baseline.measure_one()) for _ in range(pairs)]
        measured.finish()
        baseline.finish()
    return Steps([a for a, _ in steps], [b for _, b in steps], first)


def train_seconds(words: Sequence[str], *, threads: int) -> tuple[float, float]:
    """Return the seconds of ``dpft train``: CPU time of all its processes, and by the clock."""

    def cpu() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    with tempfile.TemporaryDirectory() as folder:
        begun, begun_cpu = time.perf_counter(), cpu()
        subprocess.run(
            [sys.executable, "-m", "dpft", "train", *words, f"hydra.run.dir={folder}/run"],
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            check=True,
        )
        return cpu() - begun_cpu, time.perf_counter() - begun


def measure_report(data: Path | None, *, threads: int, pairs: int) -> str:
    """Time whole commands in turns, print their ratios, and return a row of the table."""
    words = ("task=e2e", _source(data), *REPORT, f"train.num_threads={threads}")
    runs = [
        [train_seconds((*words, *own), threads=threads) for own in (("privacy.eps=3",), ORDINARY)]
        for _ in range(pairs)
    ]
    ratios = [
        statistics.median(private[clock] / ordinary[clock] for private, ordinary in runs)
        for clock in (0, 1)
    ]
    for name, ratio in zip(("CPU time", "clock"), ratios, strict=True):
        print(f"dpft train, 30 steps, from command to report: {name} = {ratio:.3f}  {REPORT_GOAL}")
    rates = (statistics.median(run[which][1] for run in runs) for which in (0, 1))
    seconds = " / ".join(f"{rate:.1f} s" for rate in rates)
    both = f"{ratios[0]:.3f} (clock {ratios[1]:.3f})"
    name = "30 steps of 256 records, from command to report"
    return f"| {name} | {both} | 1.10 | - | - | {seconds} | {pairs} |"


def _source(data: Path | None) -> str:
    return "task.source=embedded" if data is None else f"task.data_dir={data.resolve()}"


def line(row: Row, steps: Steps) -> str:
    """Return a row of the table of private against ordinary steps in Markdown."""
    return (
        f"| {row.name} | {steps.median_and_quartiles} | {row.target} | {steps.share_outside:.1%} "
        f"| {steps.checks:.2f} | {steps.records_a_second} | {len(steps.ratios)} |"
    )


TITLE = "Whole runs: steps of dpft train against privacy=none"
NOTES = (
    "Records of E2E. Median ratio of interleaved steps, with interquartile range, on the CPU in"
    " its own processor time.\nWhat grows with the records of a step (micro-batches, collation)"
    " is scaled to 1024 of them; what is outside of\nmicro-batches is a share of such a private"
    " step; the clipper checks the first two micro-batches of the first step."
    "\nFrom the command to the report: CPU time of all processes, and time by the clock."
)
COLUMNS = (
    "row", "time (interquartile range)", "target", "outside micro-batches",
    "first step's checks, s", "records a second", "pairs",
)  # fmt: skip


def write_shape(folder: Path) -> None:
    """Write a model's folder of GPT-2's shape without weights, with the embedded tokenizer."""
    for file in EMBEDDED_MODEL.glob("*token*"):
        shutil.copy(file, folder)
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    GPT2Config(**tokens).save_pretrained(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the rows asked for and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--rows", help="short names, with commas between; else all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path, help="folder with E2E; else the embedded sample")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    options.device, options.precision = "cpu", "fp32"
    writer = "benchmarks/whole_runs.py"
    table = tables.heading(TITLE, options, writer=writer, notes=NOTES, columns=COLUMNS)
    with tempfile.TemporaryDirectory() as name:
        shape = Path(name)
        write_shape(shape)
        known = rows(shape)
        names = [REPORT_ROW, *known]
        for key in options.rows.split(",") if options.rows else names:
            if key not in names:
                parser.error(f"--rows must be some of {', '.join(names)}, got {key!r}")
            how = {"threads": options.threads, "pairs": options.pairs}
            if key == REPORT_ROW:
                written = measure_report(options.data, **how)
            else:
                written = line(known[key], measure(known[key], options.data, **how))
            print(written, flush=True)
            table += written + "\n"
            tables.write(options.output, table)


if __name__ == "__main__":
    main()
