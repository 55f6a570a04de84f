"""What a run leaves beside its model: scores before and after, the privacy record, the report."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from dpft.cli.assembly import RunPlan
from dpft.cli.progress import batch_progress
from dpft.cli.scores import write_evaluations
from dpft.config.schema import TrainConfig
from dpft.data.encoding import Encoding
from dpft.evaluation.eval_config import eval_split_is_public, reads_training_split
from dpft.evaluation.evaluate import Evaluation, evaluate_parts
from dpft.files import write_json
from dpft.methods.base import ParameterCounts
from dpft.privacy.completeness import NO_STEPS, read_run_ledger
from dpft.privacy.ledger import check_ledger
from dpft.privacy.witness import read_handed
from dpft.reports.privacy import (
    account_for_run,
    non_private_record,
    parameter_record,
    privacy_record,
)
from dpft.reports.run import PRIVACY, write_report
from dpft.reports.witness import with_witness
from dpft.training.resume import find_resume_point

logger = logging.getLogger(__name__)


def evaluate(
    config: TrainConfig,
    model: PreTrainedModel,
    encoding: Encoding,
    held_out: Mapping[str, Sequence[Any]],
    stage: str,
) -> list[Evaluation]:
    """Returns the scores on each part of the evaluation split; none where evaluation is off."""
    if held_out:
        logger.info("evaluating %s fine-tuning", stage)
    with torch.random.fork_rng(), batch_progress() as on_progress:
        return evaluate_parts(
            model,
            encoding,
            config.task,
            held_out,
            config=config.eval,
            decode=config.decode,
            metrics=config.metrics,
            stage=stage,
            extra_positions=config.method.extra_positions,
            on_progress=on_progress,
        )


def report(
    config: TrainConfig,
    plan: RunPlan,
    folder: Path,
    counts: ParameterCounts,
    evaluations: Sequence[Evaluation],
) -> None:
    """Writes predictions, metrics, the privacy record and the report."""
    write_scores(config, folder, evaluations)
    guarantee = config.privacy.guarantee
    if plan.privacy is None or guarantee is None:
        privacy = parameter_record(counts) | non_private_record(
            num_examples=plan.size.num_examples,
            expected_batch_size=config.train.expected_batch_size,
            steps=plan.steps,
        )
    else:
        ledger = read_run_ledger(folder) or NO_STEPS
        check_ledger(ledger, plan.privacy)
        privacy = privacy_record(
            plan.privacy,
            account_for_run(plan.privacy, ledger, guarantee.accountant),
            ledger,
            counts,
            reproducible=guarantee.noise_seed is not None,
            size_source=plan.size.source,
            self_check=guarantee.self_check,
            steps_kept=find_resume_point(folder).checkpoint.step,
        )
        privacy = with_witness(privacy, read_handed(folder), ledger.lines)
    write_json(folder / PRIVACY, privacy)
    write_report(folder)


def write_scores(config: TrainConfig, folder: Path, evaluations: Sequence[Evaluation]) -> None:
    """Writes the scores of one stage, and their texts."""
    if not evaluations:
        return
    public = eval_split_is_public(config.task, config.eval)
    training = reads_training_split(config.task, config.eval)
    write_evaluations(folder, evaluations, public=public, training=training)
