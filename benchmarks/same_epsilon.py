"""Averages of weights and optimizers at the same epsilon, on SST-2 and E2E.

``make same-epsilon DATA=DIR`` runs it: DIR has the folders sst2 and e2e with
train|validation|test.jsonl.gz of each. Every optimizer is tried at three learning rates, a factor
of about three apart, at two budgets and some seeds; each run scores its last weights and an average
of them. A run that is there is not taken again, so a table that broke off goes on. Writes
benchmarks/same_epsilon.md.
"""

import argparse
import itertools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.reports.run_record import read_evaluations

RATES = {
    "sst2": {"adamw": "3e-3 1e-2 3e-2", "adam_bc": "1e-3 3e-3 1e-2", "muon": "1e-3 3e-3 1e-2"},
    "e2e": {"adamw": "2e-3 4e-3 8e-3", "adam_bc": "6e-4 1.3e-3 2.6e-3", "muon": "2e-3 4e-3 8e-3"},
}
"""Data to optimizer to learning rates: around the recipe's, of adam_bc around a third of that."""
BUDGETS = (3, 8)
AVERAGES = ("tail", "ema")
METRICS = {"sst2": ("accuracy",), "e2e": ("bleu", "perplexity")}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run."""

    data: str
    optimizer: str
    rate: str
    average: str
    eps: int
    seed: int

    @property
    def name(self) -> str:
        """Returns the name of its folder."""
        return "-".join(map(str, vars(self).values()))

    def words(self, options: argparse.Namespace) -> list[str]:
        """Returns the arguments of its ``dpft train``."""
        own = {
            "sst2": ["experiment=glue_minilm", "method=lora", f"model.path={options.model}"],
            "e2e": ["experiment=e2e_tiny", "decode=greedy", "eval.limit=200"],
        }[self.data]
        return [
            *own,
            f"task.data_dir={options.data / self.data}",
            "eval.split_is_public=true",
            f"optimizer={self.optimizer}",
            f"train.learning_rate={self.rate}",
            f"train.average={self.average}",
            f"train.seed={self.seed}",
            f"privacy.eps={self.eps}",
            f"hydra.run.dir={options.runs / self.name}",
        ]


def rows(seeds: int) -> list[Row]:
    """Returns every run; the exponential average is taken of AdamW alone, beside its tail."""
    found = []
    for data, optimizers in RATES.items():
        for eps, seed, (optimizer, rates) in itertools.product(
            BUDGETS, range(seeds), optimizers.items()
        ):
            for rate, average in itertools.product(rates.split(), AVERAGES):
                if average == "tail" or optimizer == "adamw":
                    found.append(
                        Row(
                            data=data, optimizer=optimizer, rate=rate, average=average,
                            eps=eps, seed=seed,
                        )
                    )  # fmt: skip
    return found


def line(row: Row, folder: Path) -> str:
    """Returns a run's line of the table: the scores of its last weights, then of their average."""
    scores = {entry.stage: entry.metrics for entry in read_evaluations(folder)}
    cells = [
        f"{metric} {scores['last'][metric]:.4g} / {scores['after'][metric]:.4g}"
        for metric in METRICS[row.data]
    ]
    return (
        f"| {row.data} | {row.optimizer} | {row.rate} | {row.average} | {row.eps} | {row.seed} |"
        f" {', '.join(cells)} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains every row that is not there, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("outputs/same-epsilon"))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/same_epsilon.md"))
    options = parser.parse_args(arguments)
    lines = [
        "| data | optimizer | learning rate | average | ε | seed | last weights / average |",
        "|---|---|---:|---|---:|---:|---|",
    ]
    for row in rows(options.seeds):
        folder = options.runs / row.name
        if not (folder / "report.md").exists():
            subprocess.run([sys.executable, "-m", "dpft", "train", *row.words(options)], check=True)
        lines.append(line(row, folder))
        print(lines[-1], flush=True)
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
