"""The demo many times in a row: the spread of its BLEU, and whether its first texts loop.

    python -m benchmarks.demo_runs --runs 20 --output benchmarks/results.md

Each run is ``dpft train experiment=demo``; noise and records are drawn anew each time, the
initialization is the shipped model's. Those that are done are kept in ``--work``. It fails where
the worst BLEU is below ``WORST`` or one of the first texts loops.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from benchmarks import tables
from benchmarks.kept_runs import kept_run, score, seconds_of

TITLE = "The demo, many times"
RESULTS = Path(__file__).parent / "results.md"
WORST = 40.0
"""BLEU that no demo shall be below."""
FIRST = 3
"""Texts that a new user sees first."""
LONGEST = 4
"""Words of the longest part whose repetition counts as a loop."""
TIMES = 3
"""How often in a row a part stands in a loop."""
SCORES = ("bleu", "rouge_l", "perplexity")
COLUMNS = ("", "min", "median", "max")


def loops(text: str) -> bool:
    """Tell whether one to ``LONGEST`` words stand ``TIMES`` times in a row."""
    words = text.split()
    for size in range(1, LONGEST + 1):
        for start in range(len(words) - TIMES * size + 1):
            parts = {tuple(words[start + k * size : start + (k + 1) * size]) for k in range(TIMES)}
            if len(parts) == 1:
                return True
    return False


def texts_of(run: Path) -> Iterator[str]:
    """Yield what the trained model wrote for each test input."""
    with (run / "predictions.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["prediction"]


def spread(name: str, values: Sequence[float]) -> str:
    """Return a row of the table."""
    found = (min(values), median(values), max(values))
    return f"| {name} | {' | '.join(f'{value:.4g}' for value in found)} |\n"


def main() -> None:
    """Run the demos and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/demos"))
    parser.add_argument("--runs", type=int, default=20)
    tables.add_options(parser, output=RESULTS)
    options = parser.parse_args()
    words = ("train", "experiment=demo", f"train.num_threads={options.threads}")
    runs = []
    for number in range(options.runs):
        runs.append(kept_run(options.work.resolve() / f"demo-{number:02}", *words))
        bleu = score(runs[-1], "bleu")
        print(f"{runs[-1].name}: BLEU {bleu:.4g}, {seconds_of(runs[-1]):.0f} s", flush=True)
    looping = [
        (run.name, text) for run in runs for text in islice(texts_of(run), FIRST) if loops(text)
    ]
    looping_of_all = sum(loops(text) for run in runs for text in texts_of(run))
    notes = (
        f"{len(runs)} runs of `dpft train experiment=demo` in a row, 150 test inputs each. Of the"
        f" first {FIRST} texts of each run {len(looping)} loop, of all texts {looping_of_all}: a"
        f" loop is one to {LONGEST} words that stand {TIMES} times in a row."
    )
    scores = {name: [score(run, name) for run in runs] for name in SCORES}
    writer = "`python -m benchmarks.demo_runs`, `benchmarks/demo_runs.py`,"
    table = tables.heading(TITLE, options, writer=writer, notes=notes, columns=COLUMNS)
    rows = "".join(spread(name, values) for name, values in scores.items())
    tables.write(options.output, table + rows)
    if looping or min(scores["bleu"]) < WORST:
        sys.exit(f"a demo looks broken: BLEU {min(scores['bleu']):.4g}, loops: {looping}")


if __name__ == "__main__":
    main()
