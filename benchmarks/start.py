"""What a run does from the command to its first noisy step, part by part.

    python -m benchmarks.start --output benchmarks/results.md

Three runs: the demo, 300,000 records of about 50 tokens, and GPT-2's 124M shape with random
weights. A part begins where the run says so to a terminal (``dpft.startup``); the last two are the
first step's gradients, with the clipper's checks on records, and its noise with the ledger's line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.records import arguments, write_records
from benchmarks.run_memory import EVERY_RUN, GPT2, ROOT, shape_of_gpt2

RESULTS = Path(__file__).parent / "results.md"
TITLE = "From the command to the first noisy step"
NOTES = "Seconds by the clock, and in brackets the CPU time of the process."
RECORDS = 300_000
WORDS = 40
"""Of a record: about 50 tokens of the embedded model."""
SHOWN = 0.05
"""Seconds that a part takes in one of the runs, or it has no row."""
COMMAND, GRADIENTS, NOISE = "command line", "first gradients, checks", "noise, ledger"


def watch(words: Sequence[str]) -> None:
    """Run ``dpft train`` until its first noisy step, then writes its parts as a line of JSON."""
    from dpft import startup

    started, marks = time.monotonic(), []

    def mark(part: str) -> None:
        marks.append((part, time.monotonic() - started, time.process_time()))

    show_stage = startup.show_startup_stage

    def show_and_mark(what: str) -> None:
        mark(what)
        if what == startup.PLANNING:
            watch_engine()
        show_stage(what)

    def watch_engine() -> None:
        from dpft.privacy.engine import PrivacyEngine

        draw, finish_step = PrivacyEngine.draw, PrivacyEngine.finish_step

        def drawn(engine: PrivacyEngine, num_units: int) -> list[int]:
            mark(GRADIENTS)
            return draw(engine, num_units)

        def finished(engine: PrivacyEngine) -> None:
            mark(NOISE)
            finish_step(engine)
            mark("")
            print(json.dumps(marks), flush=True)
            os._exit(0)

        PrivacyEngine.draw, PrivacyEngine.finish_step = drawn, finished  # type: ignore[method-assign]

    mark(COMMAND)
    startup.show_startup_stage = show_and_mark
    from dpft.cli.main import main as dpft

    sys.exit(dpft(["train", *words]))


def parts(words: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the seconds of each part of a run's start, by the clock and of its process."""
    command = [sys.executable, "-m", "benchmarks.start", "--watch", *words]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True).stdout
    marks: list[tuple[str, float, float]] = json.loads(answer.splitlines()[-1])
    found: dict[str, tuple[float, float]] = {}
    for (part, *begun), (_, *ended) in zip(marks, marks[1:], strict=False):
        before = found.get(part, (0.0, 0.0))
        found[part] = (before[0] + ended[0] - begun[0], before[1] + ended[1] - begun[1])
    return found


def main(given: Sequence[str] | None = None) -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--watch", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options: Any = parser.parse_args(given)
    if options.watch:
        watch(options.watch)
    options.device, options.precision, options.threads = "cpu", "fp32", 2
    with tempfile.TemporaryDirectory() as scratch:
        records, shape = Path(scratch) / "train.jsonl", shape_of_gpt2(Path(scratch) / "gpt2")
        write_records(records, RECORDS, length=WORDS)
        runs = {
            "demo": ["experiment=demo", "eval.enabled=false"],
            f"{RECORDS:,} records": arguments(records, None),
            "GPT-2": [*EVERY_RUN, *GPT2, f"model.path={shape}"],
        }
        found = {
            name: parts([*words, f"hydra.run.dir={scratch}/{number}"])
            for number, (name, words) in enumerate(runs.items())
        }
    order = dict.fromkeys(part for each in found.values() for part in each)
    columns = ("part", *found)
    table = tables.heading(
        TITLE, options, writer="benchmarks/start.py", notes=NOTES, columns=columns
    )
    for part in order:
        cells = [each.get(part, (0.0, 0.0)) for each in found.values()]
        if max(max(cell) for cell in cells) < SHOWN:
            continue
        table += f"| {part} | {' | '.join(f'{wall:.1f} ({own:.1f})' for wall, own in cells)} |\n"
    sums = [tuple(map(sum, zip(*each.values(), strict=True))) for each in found.values()]
    table += f"| all | {' | '.join(f'{wall:.1f} ({own:.1f})' for wall, own in sums)} |\n"
    print(table)
    tables.write(options.output, table)


if __name__ == "__main__":
    main()
