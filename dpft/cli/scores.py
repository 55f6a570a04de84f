"""Where the scores of an evaluation go: public files, or private ones for a private split."""

from collections.abc import Sequence
from pathlib import Path

from dpft.evaluation.evaluate import Evaluation
from dpft.evaluation.predictions import write_predictions
from dpft.files import private_folder
from dpft.reports.run import METRICS, write_metrics

PREDICTIONS = "predictions.jsonl"
ALL_PREDICTIONS = "predictions*.jsonl"
"""Pattern of the files of predictions: one, or one for each part of a split."""


def write_evaluations(folder: Path, evaluations: Sequence[Evaluation], *, public: bool) -> None:
    """Writes metrics.json and the predictions of the last stage, a file for each part scored.

    Args:
        folder: A run's folder; it exists.
        evaluations: At least one.
        public: Whether the split may be shown; if not, predictions go to private/.
    """
    shown = folder if public else private_folder(folder)
    last = [each for each in evaluations if each.stage == evaluations[-1].stage]
    for evaluation in filter(lambda each: each.predictions, last):
        name = PREDICTIONS if len(last) == 1 else f"predictions_{evaluation.split}.jsonl"
        write_predictions(shown / name, evaluation.predictions, private=not public)
    entries = [evaluation.record() for evaluation in evaluations]
    write_metrics(folder / METRICS, entries, public=public)
