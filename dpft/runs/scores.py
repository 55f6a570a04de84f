"""Where the scores of an evaluation go: public files, or private ones for a private split."""

from collections.abc import Sequence
from pathlib import Path

from dpft.evaluation.evaluate import Evaluation
from dpft.evaluation.predictions import write_predictions
from dpft.evaluation.samples import write_samples
from dpft.files import private_folder
from dpft.reports.run.report import METRICS, PRIVATE_SPLIT, write_metrics
from dpft.reports.run.run_record import read_evaluations

PREDICTIONS, SAMPLES = "predictions.jsonl", "samples.md"
TEXTS_OF_EVALUATIONS = ("predictions*.jsonl", "samples*.md")
"""Patterns of the files with an evaluation's texts: one each, or one for each part of a split."""


def write_evaluations(
    folder: Path, evaluations: Sequence[Evaluation], *, public: bool, training: bool = False
) -> None:
    """Writes metrics.json and the texts of the last stage, files for each part scored.

    Texts go to predictions.jsonl and, some of them to be read, to samples.md. What stands in public
    from when the same split was said to be public is removed once it no longer is.

    Args:
        folder: A run's folder; it exists.
        evaluations: At least one.
        public: Whether the split may be shown; if not, texts go to private/.
        training: Whether records were trained on; of those there are no samples.
    """
    shown = folder if public else private_folder(folder)
    last = [each for each in evaluations if each.stage == evaluations[-1].stage]
    for evaluation in last:
        part = "" if len(last) == 1 else evaluation.split
        if not public and was_public(folder / METRICS, evaluation):
            # It may have been scored with other parts then, or alone.
            for name in (PREDICTIONS, SAMPLES):
                for part_then in ("", evaluation.split):
                    (folder / named(name, part_then)).unlink(missing_ok=True)
        if not evaluation.predictions:
            continue
        write_predictions(
            shown / named(PREDICTIONS, part), evaluation.predictions, private=not public
        )
        if not training:
            write_samples(
                shown / named(SAMPLES, part),
                evaluation.predictions,
                heading=f"Samples of {evaluation.task}, split {evaluation.split}",
                note="" if public else f"Not to be released: {PRIVATE_SPLIT}.",
                private=not public,
            )
    entries = [evaluation.record() for evaluation in evaluations]
    write_metrics(folder / METRICS, entries, public=public)


def named(file: str, part: str) -> str:
    """Returns the name of the file for a part of a split; the file itself without one."""
    return file if not part else f"_{part}.".join(file.split("."))


def was_public(metrics: Path, evaluation: Evaluation) -> bool:
    """Returns whether metrics.json has scores of the same split as a public one."""
    entries = read_evaluations(metrics)
    split = (evaluation.task, evaluation.split)
    return any(
        entry["split_is_public"] for entry in entries if (entry["task"], entry["split"]) == split
    )
