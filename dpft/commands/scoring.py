"""Scoring of a model on the evaluation split, and the files of its scores and texts.

Every command that scores a model uses this module. The inputs are a model on its device, an
encoding of records, and the records to score. The outputs are metrics.json and the texts, which go
to ``private/`` if the split is private.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from dpft.commands.progress_bars import batch_progress
from dpft.commands.splits import (
    HELD_OUT,
    NOT_EVALUATED,
    is_unscored,
)
from dpft.config.schema import EvaluateConfig, TrainConfig
from dpft.data.encoding import Encoding
from dpft.errors import InputError
from dpft.evaluation.eval_config import eval_split_is_public, reads_training_split
from dpft.evaluation.evaluate import Evaluation, evaluate_parts
from dpft.evaluation.outputs import ModelOutputs
from dpft.evaluation.predictions import write_predictions, write_samples
from dpft.evaluation.scores import PRIVATE_SPLIT, STAGES, Stage
from dpft.parallel.ranks import ALONE, Ranks
from dpft.reports.run_record import read_evaluations, write_metrics
from dpft.run_folder import PREDICTIONS, SAMPLES, WRONG_IMAGES, private_folder, write_bytes
from dpft.tasks.base import Record
from dpft.training.progress import remove_scores

logger = logging.getLogger(__name__)


def score_stage(
    config: TrainConfig,
    model: PreTrainedModel,
    encoding: Encoding,
    scored: Mapping[str, Sequence[Record]],
    stage: Stage,
    ranks: Ranks = ALONE,
    *,
    shown: bool = True,
) -> list[Evaluation]:
    """Return the scores of a run's model before or after training; empty if nothing is scored.

    Each process scores a share of the records.
    """
    if scored and shown:
        logger.info("evaluating %s", STAGES[stage])
    return score_model(
        config,
        model,
        encoding,
        scored,
        stage=stage,
        extra_positions=config.method.extra_positions,
        ranks=ranks,
        shown=shown,
    )


def score_model(
    config: TrainConfig | EvaluateConfig,
    model: PreTrainedModel,
    encoding: Encoding,
    scored: Mapping[str, Sequence[Record]],
    *,
    stage: Stage = "after",
    extra_positions: int = 0,
    ranks: Ranks = ALONE,
    shown: bool = True,
) -> list[Evaluation]:
    """Return the scores on each part of the evaluation split, and show progress.

    The random state of torch is not changed, because evaluation must not change the random draws of
    training.
    """
    if HELD_OUT in scored:
        # As in training, held-out records that cannot be read are skipped.
        scored = {HELD_OUT: encoding.readable(scored[HELD_OUT])}
        if not scored[HELD_OUT]:
            raise InputError(
                "eval.held_out selected no record that can be read. Correct the records.",
                key="eval.held_out",
                value=config.eval.held_out,
            )
    outputs = ModelOutputs(
        model=model,
        encoding=encoding,
        batch_size=config.eval.batch_size,
        extra_positions=extra_positions,
        ranks=ranks,
    )
    public = eval_split_is_public(config.task, config.eval)
    progress = batch_progress("evaluating", counts=public, shown=shown and ranks.is_rank_0)
    with torch.random.fork_rng(), progress as on_progress:
        return evaluate_parts(
            outputs,
            config.task,
            scored,
            config=config.eval,
            decode=config.decode,
            metrics=config.metrics,
            stage=stage,
            on_progress=on_progress,
        )


def not_evaluated(config: TrainConfig) -> list[Evaluation]:
    """Return a metrics.json entry that states why nothing is scored; else return an empty list."""
    if not is_unscored(config):
        return []
    why = dict.fromkeys(config.task.metrics, NOT_EVALUATED)
    return [
        Evaluation(
            task=config.task.name,
            split=config.eval.split,
            examples=0,
            stage="after",
            metrics={},
            not_computed=why,
            predictions=(),
        )
    ]


def write_scores(
    config: TrainConfig | EvaluateConfig, folder: Path, evaluations: Sequence[Evaluation]
) -> None:
    """Write the scores of one stage and their texts."""
    if not evaluations:
        return
    write_evaluations(
        folder,
        evaluations,
        public=eval_split_is_public(config.task, config.eval),
        publish=config.eval.publish_private_scores,
        training=reads_training_split(config.task, config.eval),
    )


def write_evaluations(
    folder: Path,
    evaluations: Sequence[Evaluation],
    *,
    public: bool,
    publish: bool = False,
    training: bool = False,
) -> None:
    """Write the scores, and the texts of the last stage, in separate files for each scored part.

    All texts go to predictions.jsonl, and some of them to samples.md for people to read. If a split
    was declared public before and is no longer public, the old public files are removed.

    Args:
        folder: An existing run folder.
        evaluations: The evaluations, at least one.
        public: Whether the split may be shown. If not, scores and texts go to ``private/``.
        publish: Whether rounded scores of a private split are published.
        training: Whether the records were trained on. In that case, there are no samples.
    """
    shown = folder if public else private_folder(folder)
    stage = evaluations[-1].stage
    last = [evaluation for evaluation in evaluations if evaluation.stage == stage]
    for evaluation in last:
        part = "" if len(last) == 1 else evaluation.split
        split = (evaluation.task, evaluation.split)
        if not public and any(
            e.split_is_public for e in read_evaluations(folder) if (e.task, e.split) == split
        ):
            # The name of an old file depends on whether the part was scored with other parts.
            remove_scores(folder)
            for name in (PREDICTIONS, SAMPLES, WRONG_IMAGES):
                for part_then in ("", evaluation.split):
                    (folder / file_of_part(name, part_then)).unlink(missing_ok=True)
        if not evaluation.predictions:
            continue
        write_predictions(
            shown / file_of_part(PREDICTIONS, part), evaluation.predictions, private=not public
        )
        if public and evaluation.picture is not None:
            write_bytes(folder / file_of_part(WRONG_IMAGES, part), evaluation.picture)
        if not training:
            write_samples(
                shown / file_of_part(SAMPLES, part),
                evaluation.predictions,
                heading=f"Samples of {evaluation.task}, split {evaluation.split}",
                note="" if public else f"Not to be released: {PRIVATE_SPLIT}.",
                private=not public,
            )
    entries = [evaluation.record(public=public) for evaluation in evaluations]
    write_metrics(folder, entries, public=public, publish=publish)


def file_of_part(file: str, part: str) -> str:
    """Return the file name for a part of a split, or the name itself if the split has one part."""
    return file if not part else f"_{part}.".join(file.split("."))
