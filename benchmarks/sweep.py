"""One table of a sweep's runs: ``python -m benchmarks.sweep outputs/multirun/DATE/TIME``.

It has a row for each run. ``dpft report`` averages runs that differ only in their seeds.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tables import markdown_table
from dpft.commands.guarantee import read_finished_run
from dpft.reports.privacy_json import PrivateRun
from dpft.reports.run_record import RunRecord, find_runs

COLUMNS = ("method", "learning rate", "ε", "noise multiplier", "trainable", "share")


def table(runs: Sequence[RunRecord]) -> str:
    """Return the runs as a Markdown table, a column for each metric after fine-tuning."""
    scores = [run.evaluations[-1].metrics for run in runs]
    metrics = list(dict.fromkeys(name for found in scores for name in found))
    rows = [
        [*_promise(run), *(_score(found.get(name)) for name in metrics)]
        for run, found in zip(runs, scores, strict=True)
    ]
    return markdown_table([*COLUMNS, *metrics], rows)


def _promise(run: RunRecord) -> list[str]:
    privacy, config, parameters = run.privacy, run.config, run.privacy.parameters
    return [
        config.method.name,
        f"{config.train.learning_rate:g}",
        f"{privacy.epsilon:.3f}" if isinstance(privacy, PrivateRun) else "not private",
        f"{privacy.plan.noise_multiplier:.3f}" if isinstance(privacy, PrivateRun) else "",
        f"{parameters.trainable:,}",
        f"{parameters.trainable / parameters.total:.2%}",
    ]


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def main() -> None:
    """Print the table of one sweep or of several, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    finished, _ = find_runs(parser.parse_args().folders)
    print(table([read_finished_run(folder) for folder in finished]))


if __name__ == "__main__":
    main()
