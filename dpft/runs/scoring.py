"""A prepared run's model, scored before and after training."""

import logging

from dpft.evaluation.evaluate import Evaluation
from dpft.parallel.ranks import ALONE, Ranks
from dpft.records.scores import Stage
from dpft.runs.evaluation import evaluate
from dpft.runs.prepared_run import Prepared

logger = logging.getLogger(__name__)


def score(prepared: Prepared, stage: Stage, ranks: Ranks = ALONE) -> list[Evaluation]:
    """Returns the scores of a run's model before or after training; none where nothing is scored.

    Args:
        prepared: The run.
        stage: "before" or "after" training.
        ranks: The run's processes, each of which reads a share of the records.
    """
    scored = prepared.division.scored
    if scored:
        logger.info("evaluating %s fine-tuning", stage)
    return evaluate(
        prepared.config,
        prepared.model,
        prepared.encoding,
        scored,
        stage=stage,
        extra_positions=prepared.config.method.extra_positions,
        ranks=ranks,
    )
