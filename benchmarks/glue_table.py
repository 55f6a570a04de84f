"""SST-2 with real pre-trained weights: one budget, four methods, with and without privacy.

``make glue-table DATA=DIR`` runs it: every run takes the steps of conf/experiment/glue_minilm.yaml
on all 67,349 training records of DIR, which holds train|validation.jsonl.gz, and is scored on the
872 of validation. Writes benchmarks/glue_table.md.
"""

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.sweep import table
from dpft.commands.guarantee import read_finished_run
from dpft.config.load import load_saved
from dpft.config.schema import TrainConfig
from dpft.data.sources import load_examples

LEARNING_RATES = {"full": "1e-3", "lora": "1e-2", "bitfit": "1e-2", "linear_probe": "5e-2"}
"""Method to its learning rate, the same with and without privacy."""
PRIVACY = {"eps3": "privacy.eps=3", "eps8": "privacy.eps=8", "none": "privacy=none"}
SIZE = "privacy.num_examples=67349"


def overrides(method: str, privacy: str, options: argparse.Namespace) -> list[str]:
    """Return the arguments of one ``dpft train``."""
    return [
        "experiment=glue_minilm",
        f"model.path={options.model}",
        f"task.data_dir={options.data}",
        f"method={method}",
        f"train.learning_rate={LEARNING_RATES[method]}",
        PRIVACY[privacy],
        SIZE,
        "eval.split_is_public=true",
        f"hydra.run.dir={options.runs / f'{method}-{privacy}'}",
    ]


def run(method: str, privacy: str, options: argparse.Namespace) -> float:
    """Train once, unless that was done already; return the minutes it took, 0 if none."""
    if (options.runs / f"{method}-{privacy}" / "metrics.json").exists():
        return 0.0
    start = time.monotonic()
    command = [sys.executable, "-m", "dpft", "train", *overrides(method, privacy, options)]
    subprocess.run(command, check=True)
    return (time.monotonic() - start) / 60


def majority_share(folder: Path) -> float:
    """Return the share of the commonest class in the split that was scored."""
    config = load_saved(folder / "config.yaml", TrainConfig)
    labels = Counter(example.label for example in load_examples(config.task, config.eval.split))
    return max(labels.values()) / labels.total()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train every row and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("outputs/glue-table"))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/glue_table.md"))
    options = parser.parse_args(arguments)
    names = [(method, privacy) for method in LEARNING_RATES for privacy in PRIVACY]
    for method, privacy in names:
        print(f"{method} {privacy}: {run(method, privacy, options):.1f} minutes", flush=True)
    folders = [options.runs / f"{method}-{privacy}" for method, privacy in names]
    share = majority_share(folders[0])
    note = f"\nMajority class of the validation split: {share:.3f}.\n"
    options.output.write_text(table([read_finished_run(folder) for folder in folders]) + note)


if __name__ == "__main__":
    main()
