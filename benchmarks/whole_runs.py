"""Time of whole steps of ``dpft train``: private against ``privacy=none``.

    python -m benchmarks.whole_runs --pairs 10 --rows tiny --data E2E --output benchmarks/results.md

A step is all that a run does between two updates: the draw, collation, micro-batches, noise,
journal, ledger, optimizer, the check of the weights and diagnostics. Two runs take their steps in
turns, each in a process of its own. Steps are small, so that some are taken in minutes; what grows
with the records is scaled to those of a usual step, 1024. GPT-2's shape has random weights and the
embedded model's tokenizer.
"""

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GPT2Config

from benchmarks import tables
from benchmarks.interleave import Process
from benchmarks.run_worker import COLLATION, MICRO_BATCHES
from benchmarks.workload import WholeRun
from dpft.models.source import EMBEDDED_MODEL

RESULTS = Path(__file__).parent / "results.md"
RECORDS = 1024
"""Of the step that measured ones are scaled to."""
PRIVATE = ("privacy.eps=null", "privacy.noise_multiplier=1", "privacy.delta=1e-5")
ORDINARY = ("privacy=none",)
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
    def proof(self) -> float:
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
    """Returns the seconds of a step's micro-batches."""
    return float(step["parts"].get(MICRO_BATCHES, 0.0))


def outside_of_step(step: Mapping[str, Any]) -> float:
    """Returns the seconds outside of micro-batches of a step, had it 1024 records.

    Collation grows with the records; what is left does not.
    """
    collation = float(step["parts"].get(COLLATION, 0.0))
    fixed = float(step["seconds"]) - inside(step) - collation
    return fixed + collation * RECORDS / max(1, step["records"])


def seconds_of_step(step: Mapping[str, Any]) -> float:
    """Returns the seconds of a step, had it 1024 records."""
    return outside_of_step(step) + inside(step) * RECORDS / max(1, step["records"])


def share_outside(step: Mapping[str, Any]) -> float:
    """Returns the share of a step of 1024 records that is outside of micro-batches."""
    return outside_of_step(step) / seconds_of_step(step)


def rows(shape: Path) -> dict[str, Row]:
    """Returns private runs against ordinary ones."""
    small = ("model=tiny", "train.expected_batch_size=128", "train.micro_batch_size=32")
    large = (*_gpt2(shape), "train.expected_batch_size=16", "train.micro_batch_size=8")
    return {
        "tiny": Row("embedded model, 1.8 M parameters", small, "1.15"),
        "gpt2": Row("GPT-2's shape, 124 M parameters", large, "1.10"),
    }


def _gpt2(shape: Path) -> tuple[str, ...]:
    return "model=gpt2", f"model.path={shape}", "model.init=random"


def measure(row: Row, data: Path | None, *, threads: int, pairs: int) -> Steps:
    """Takes steps of two runs in turns.

    Raises:
        RuntimeError: A run failed.
    """
    source = "task.source=embedded" if data is None else f"task.data_dir={data.resolve()}"
    common = ("task=e2e", source, *row.words, ENDLESS)
    runs = [WholeRun(words=(*common, *own), threads=threads) for own in (PRIVATE, ORDINARY)]
    with Process(runs[0]) as measured, Process(runs[1]) as baseline:
        first = measured.wait_until_ready()["warm_up"][0]
        baseline.wait_until_ready()
        steps = [(measured.measure_one(), baseline.measure_one()) for _ in range(pairs)]
        measured.finish()
        baseline.finish()
    return Steps([a for a, _ in steps], [b for _, b in steps], first)


def line(row: Row, steps: Steps) -> str:
    """Returns a row of the table of private against ordinary steps in Markdown."""
    return (
        f"| {row.name} | {steps.median_and_quartiles} | {row.target} | {steps.share_outside:.1%} "
        f"| {steps.proof:.2f} | {steps.records_a_second} | {len(steps.ratios)} |"
    )


TITLE = "Whole runs: steps of dpft train against privacy=none"
NOTES = (
    "Records of E2E. Median ratio of interleaved steps, with interquartile range, on the CPU in"
    " its own processor time.\nWhat grows with the records of a step (micro-batches, collation)"
    " is scaled to 1024 of them; what is outside of\nmicro-batches is a share of such a private"
    " step; the first step also proves the clipper."
)
COLUMNS = (
    "row", "time (interquartile range)", "target", "outside micro-batches",
    "first step's proof, s", "records a second", "pairs",
)  # fmt: skip


def write_shape(folder: Path) -> None:
    """Writes a model's folder of GPT-2's shape without weights, with the embedded tokenizer."""
    for file in EMBEDDED_MODEL.glob("*token*"):
        shutil.copy(file, folder)
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    GPT2Config(**tokens).save_pretrained(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the rows asked for and writes the table."""
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
        for key in options.rows.split(",") if options.rows else known:
            if key not in known:
                parser.error(f"--rows must be some of {', '.join(known)}, got {key!r}")
            steps = measure(known[key], options.data, threads=options.threads, pairs=options.pairs)
            written = line(known[key], steps)
            print(written, flush=True)
            table += written + "\n"
            tables.write(options.output, table)


if __name__ == "__main__":
    main()
