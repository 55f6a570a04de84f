"""One table of a sweep's runs: ``python -m benchmarks.sweep outputs/multirun/DATE/TIME``."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


def read_run(folder: Path) -> dict[str, Any]:
    """Returns what a run's public files say: method, promise, parameters and its last scores."""
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    privacy = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    entries = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["evaluations"]
    return {
        "method": config["method"]["name"],
        "learning rate": f"{config['train']['learning_rate']:g}",
        "ε": f"{privacy['epsilon']:.3f}" if "epsilon" in privacy else "not private",
        "noise multiplier": f"{privacy['noise_multiplier']:.3f}" if "epsilon" in privacy else "",
        "trainable": f"{privacy['trainable_parameters']:,}",
        "share": f"{privacy['trainable_parameters'] / privacy['total_parameters']:.2%}",
        "before": entries[0]["metrics"],
        "after": entries[-1]["metrics"],
    }


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Returns the runs as a Markdown table, a column for each metric after fine-tuning."""
    metrics = list(dict.fromkeys(name for run in runs for name in run["after"]))
    columns = [name for name in runs[0] if name not in ("before", "after")]
    header = [*columns, *metrics]
    rows = [
        [*(run[name] for name in columns), *(_score(run["after"].get(name)) for name in metrics)]
        for run in runs
    ]
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows]) + "\n"


def sweep_folders(folder: Path) -> list[Path]:
    """Returns the folders of a sweep's finished runs, in the order of their numbers."""
    found = [path.parent for path in folder.glob("*/metrics.json")]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def main() -> None:
    """Print the table of one sweep or of several, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    options = parser.parse_args()
    print(table([read_run(run) for folder in options.folders for run in sweep_folders(folder)]))


if __name__ == "__main__":
    main()
