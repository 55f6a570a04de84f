"""Banded against independent noise on real data, with what is left of both in a score.

    python -m benchmarks.mechanisms --data DIR --model DIR

E2E with the embedded model, all of whose weights train, and SST-2 with the head of a pre-trained
encoder, by SGD with momentum and by AdamW, at three epsilons. Each mechanism and optimizer takes
the learning rate, of three, that scores best at epsilon 3 with the first seed; the other runs take
that. A run that is there is not taken again, so that the tables can be made in pieces.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import markdown_table
from dpft.reports.run.run_record import read_run

EPSILONS, SEEDS = (1, 3, 8), (0, 1, 2)
MECHANISMS = {"dp_sgd": ["mechanism=dp_sgd"], "banded": ["mechanism=banded"]}
"""Of banded the bands are auto: those of least noise on average over the weights of all steps."""
STEPS = ["train.steps=40", "train.epochs=null", "privacy.self_check=false", "scheduler=linear"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Data, a model and the learning rates that are tried."""

    title: str
    words: tuple[str, ...]
    metric: str
    better: str
    """lower or higher."""
    rates: dict[str, tuple[str, ...]]
    """By optimizer."""


def settings(data: Path, model: Path) -> dict[str, Setting]:
    """Returns both settings by their short names."""
    return {
        "e2e": Setting(
            title="E2E, embedded model, all weights, perplexity of 200 validation records",
            words=(
                "experiment=e2e_tiny", f"task.data_dir={data / 'e2e'}", "eval.split=validation",
                "task.metrics=[perplexity]", "eval.limit=200", "train.expected_batch_size=64",
            ),
            metric="perplexity",
            better="lower",
            rates={"sgd": ("1", "4", "16"), "adamw": ("1e-3", "4e-3", "1.6e-2")},
        ),
        "sst2": Setting(
            title="SST-2, head of a pre-trained encoder of 22 M parameters, validation accuracy",
            words=(
                "experiment=glue_minilm", f"task.data_dir={data / 'sst2'}", f"model.path={model}",
                "method=linear_probe", "train.expected_batch_size=256",
                "privacy.num_examples=67349", "eval.split_is_public=true",
            ),
            metric="accuracy",
            better="higher",
            rates={"sgd": ("1", "4", "16"), "adamw": ("1e-2", "4e-2", "1.6e-1")},
        ),
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training."""

    setting: str
    optimizer: str
    mechanism: str
    rate: str
    eps: int
    seed: int

    def folder(self, runs: Path) -> Path:
        """Returns where it lies."""
        name = f"{self.optimizer}-{self.mechanism}-{self.rate}-eps{self.eps}-seed{self.seed}"
        return runs / self.setting / name


def score(run: Run, setting: Setting, options: argparse.Namespace) -> float:
    """Returns the score of a run, once it was taken."""
    folder = run.folder(options.runs)
    if not (folder / "metrics.json").exists():
        momentum = ["optimizer.momentum=0.9"] if run.optimizer == "sgd" else []
        words = [
            *setting.words, *STEPS, *MECHANISMS[run.mechanism], f"optimizer={run.optimizer}",
            *momentum, f"train.learning_rate={run.rate}", f"privacy.eps={run.eps}",
            f"train.seed={run.seed}", f"hydra.run.dir={folder}",
        ]  # fmt: skip
        subprocess.run([sys.executable, "-m", "dpft", "train", *words], check=True)
    return read_run(folder).evaluations[-1].metrics[setting.metric]


def best_rate(
    name: str, setting: Setting, optimizer: str, mechanism: str, options: argparse.Namespace
) -> str:
    """Returns the learning rate that scores best at epsilon 3 with the first seed."""

    def by(rate: str) -> float:
        run = Run(setting=name, optimizer=optimizer, mechanism=mechanism, rate=rate, eps=3, seed=0)
        found = score(run, setting, options)
        return found if setting.better == "lower" else -found

    return min(setting.rates[optimizer], key=by)


def cell(scores: Sequence[float]) -> str:
    """Returns mean and range of some scores."""
    mean = statistics.fmean(scores)
    return f"{mean:.4g} ({min(scores):.4g} to {max(scores):.4g})"


def table(name: str, setting: Setting, options: argparse.Namespace) -> str:
    """Returns a setting's rows, each with both mechanisms side by side."""
    rows = []
    for optimizer in setting.rates:
        rates = {m: best_rate(name, setting, optimizer, m, options) for m in MECHANISMS}
        for eps in options.eps:
            cells = []
            for mechanism, rate in rates.items():
                runs = [
                    Run(setting=name, optimizer=optimizer, mechanism=mechanism, rate=rate,
                        eps=eps, seed=seed)
                    for seed in options.seeds
                ]  # fmt: skip
                found = [score(run, setting, options) for run in runs]
                cells.append(f"{cell(found)}, lr {rate}")
                if mechanism == "banded":
                    privacy = json.loads(
                        (runs[0].folder(options.runs) / "privacy.json").read_text()
                    )
                    cells.append(str(privacy["mechanism"]["bands"]))
            rows.append([optimizer, str(eps), *cells])
    header = ("optimizer", "ε", "independent noise", "banded noise", "bands")
    return f"## {setting.title}\n\n{markdown_table(header, rows)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Take every run that is not there yet and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("outputs/mechanisms"))
    parser.add_argument("--eps", type=int, nargs="+", default=EPSILONS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--only", choices=("e2e", "sst2"))
    options = parser.parse_args(arguments)
    for name, setting in settings(options.data, options.model).items():
        if options.only in (None, name):
            print(table(name, setting, options), flush=True)


if __name__ == "__main__":
    main()
