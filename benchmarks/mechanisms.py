"""Banded against independent noise on real data, with what is left of both in a score.

    python -m benchmarks.mechanisms --data DIR --model DIR

E2E with the embedded model, all of whose weights train, and SST-2 with the head of a pre-trained
encoder, by SGD with momentum and by AdamW, at three epsilons. Each mechanism and optimizer takes
the learning rate, of four, that scores best at epsilon 3 with the first seed; the other runs take
that. A run that is there is not taken again, so that the tables can be made in pieces. Each run is
a process of one thread; ``--jobs`` says how many at a time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import markdown_table
from dpft.commands.guarantee import read_finished_run

EPSILONS, SEEDS = (1, 3, 8), (0, 1, 2)
MECHANISMS = {"dp_sgd": ["mechanism=dp_sgd"], "banded": ["mechanism=banded"]}
"""Of banded the bands are auto: those of least noise on average over the weights of all steps."""
STEPS = ["train.steps=40", "train.epochs=null", "scheduler=linear"]


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
    """Return both settings by their short names."""
    return {
        "e2e": Setting(
            title="E2E, embedded model, all weights, perplexity of 200 validation records",
            words=(
                "experiment=e2e_tiny", f"task.data_dir={data / 'e2e'}", "eval.split=validation",
                "task.metrics=[perplexity]", "eval.limit=200", "eval.split_is_public=true",
                "train.expected_batch_size=64",
            ),
            metric="perplexity",
            better="lower",
            rates={
                "sgd": ("0.25", "1", "4", "16"), "adamw": ("1e-3", "4e-3", "1.6e-2", "6.4e-2"),
            },
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
            rates={
                "sgd": ("1", "4", "16", "64"),
                "adamw": ("1e-2", "4e-2", "1.6e-1", "6.4e-1"),
            },
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
        """Return where it lies."""
        name = f"{self.optimizer}-{self.mechanism}-{self.rate}-eps{self.eps}-seed{self.seed}"
        return runs / self.setting / name


def take(run: Run, setting: Setting, folder: Path, device: str) -> None:
    """Train and scores a run, unless it was taken."""
    if (folder / "metrics.json").exists():
        return
    momentum = ["optimizer.momentum=0.9"] if run.optimizer == "sgd" else []
    words = [
        *setting.words, *STEPS, *MECHANISMS[run.mechanism], f"optimizer={run.optimizer}",
        *momentum, f"train.learning_rate={run.rate}", f"privacy.eps={run.eps}",
        f"train.seed={run.seed}", f"hydra.run.dir={folder}", f"train.device={device}",
    ]  # fmt: skip
    log = folder.parent / f"{folder.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        subprocess.run(
            [sys.executable, "-m", "dpft", "train", *words],
            check=True, stdout=output, stderr=output, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def take_all(
    runs: Sequence[Run], settings: dict[str, Setting], options: argparse.Namespace
) -> None:
    """Train and scores runs, ``options.jobs`` of them at a time."""
    with ThreadPoolExecutor(options.jobs) as pool:
        for taken in [
            pool.submit(take, run, settings[run.setting], run.folder(options.runs), options.device)
            for run in runs
        ]:
            taken.result()


def score(run: Run, setting: Setting, options: argparse.Namespace) -> float:
    """Return the score of a run that was taken."""
    return read_finished_run(run.folder(options.runs)).evaluations[-1].metrics[setting.metric]


def searches(settings: dict[str, Setting]) -> list[Run]:
    """Return the runs by which learning rates are chosen: epsilon 3, the first seed."""
    return [
        Run(setting=name, optimizer=optimizer, mechanism=mechanism, rate=rate, eps=3, seed=0)
        for name, setting in settings.items()
        for optimizer, rates in setting.rates.items()
        for mechanism in MECHANISMS
        for rate in rates
    ]


def best_rate(
    name: str, setting: Setting, optimizer: str, mechanism: str, options: argparse.Namespace
) -> str:
    """Return the learning rate that scores best in the search."""
    sign = 1 if setting.better == "lower" else -1
    tried = [
        run
        for run in searches({name: setting})
        if (run.optimizer, run.mechanism) == (optimizer, mechanism)
    ]
    return min(tried, key=lambda run: sign * score(run, setting, options)).rate


def repeats(name: str, setting: Setting, options: argparse.Namespace) -> list[Run]:
    """Return the runs of the tables, each at its best learning rate."""
    return [
        Run(setting=name, optimizer=optimizer, mechanism=mechanism, rate=rate, eps=eps, seed=seed)
        for optimizer in setting.rates
        for mechanism in MECHANISMS
        for rate in [best_rate(name, setting, optimizer, mechanism, options)]
        for eps in options.eps
        for seed in options.seeds
    ]


def cell(scores: Sequence[float]) -> str:
    """Return mean and range of some scores."""
    mean = statistics.fmean(scores)
    return f"{mean:.4g} ({min(scores):.4g} to {max(scores):.4g})"


def search_table(name: str, setting: Setting, options: argparse.Namespace) -> str:
    """Return what each learning rate scored in the search."""
    found = {
        (run.optimizer, run.rate, run.mechanism): f"{score(run, setting, options):.4g}"
        for run in searches({name: setting})
    }
    rows = [
        [optimizer, rate, *(found[optimizer, rate, mechanism] for mechanism in MECHANISMS)]
        for optimizer, rates in setting.rates.items()
        for rate in rates
    ]
    return markdown_table(("optimizer", "learning rate", "independent", "banded"), rows)


def table(name: str, setting: Setting, options: argparse.Namespace) -> str:
    """Return a setting's rows, each with both mechanisms side by side."""
    runs = repeats(name, setting, options)
    rows = []
    for optimizer in setting.rates:
        for eps in options.eps:
            cells = []
            for mechanism in MECHANISMS:
                those = [
                    run
                    for run in runs
                    if (run.optimizer, run.mechanism, run.eps) == (optimizer, mechanism, eps)
                ]
                scores = [score(run, setting, options) for run in those]
                cells.append(f"{cell(scores)}, lr {those[0].rate}")
            privacy = json.loads((those[0].folder(options.runs) / "privacy.json").read_text())
            rows.append([optimizer, str(eps), *cells, str(privacy["plan"]["mechanism"]["bands"])])
    header = ("optimizer", "ε", "independent noise", "banded noise", "bands")
    return (
        f"## {setting.title}\n\n{markdown_table(header, rows)}\n\n"
        f"{search_table(name, setting, options)}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Take every run that is not there yet and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("outputs/mechanisms"))
    parser.add_argument("--eps", type=int, nargs="+", default=EPSILONS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--only", choices=("e2e", "sst2"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    taken = {
        name: setting
        for name, setting in settings(options.data, options.model).items()
        if options.only in (None, name)
    }
    take_all(searches(taken), taken, options)
    for name, setting in taken.items():
        take_all(repeats(name, setting, options), taken, options)
        print(table(name, setting, options), flush=True)


if __name__ == "__main__":
    main()
