"""``dpft eval``: open the folder, score, and write and print the scores.

The command scores the model of a run, any other model, or a file of outputs. If several processes
(ranks) run the command, each of them executes this module.
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from dpft.commands.exit_codes import crash_kept
from dpft.commands.guarantee import privacy_of, read_finished_run
from dpft.commands.ledger_account import saved_run
from dpft.commands.rank_agreement import check_alike, check_same_model
from dpft.commands.run_cost import loading_device, shard_model
from dpft.commands.scoring import score_model, write_scores
from dpft.commands.splits import (
    records_to_score,
)
from dpft.commands.task_model import TrainedModel, trained_model_of_run, written_tokens
from dpft.config.hydra_compose import Composed
from dpft.config.keys import in_shell
from dpft.config.schema import EvaluateConfig
from dpft.data.sources import load_examples
from dpft.errors import InputError
from dpft.evaluation.eval_config import eval_split_is_public
from dpft.evaluation.evaluate import Evaluation, inputs_of, score_predictions
from dpft.evaluation.metrics.base import metric_specs
from dpft.evaluation.predictions import read_predictions
from dpft.evaluation.scores import PRIVATE_MARK, Metrics
from dpft.models.architecture import read_architecture
from dpft.models.loading import quiet_transformers
from dpft.parallel import rank_environment
from dpft.parallel.processes import own_device, started
from dpft.parallel.rank_environment import without_logging
from dpft.reports.rendering import score
from dpft.reports.report import write_report
from dpft.reports.run_record import read_evaluations, read_own_evaluations, shown
from dpft.run_folder import (
    CONFIGURATION,
    PRIVACY,
    PRIVATE,
    PRIVATE_REPORT,
    hold_run,
    refuse_links,
)
from dpft.strict_model import json_text

logger = logging.getLogger(__name__)


def evaluate(
    config: EvaluateConfig, folder: Path, *, composed: Composed | None = None
) -> list[Evaluation]:
    """Score, write scores and texts, and update the report of a run.

    Args:
        config: What to score.
        folder: The folder of the run, or a new folder for any other model.
        composed: The composition by Hydra, written into ``.hydra/`` of a new folder.

    Returns:
        The scores of each part of the split. Only rank 0 has their values.

    Raises:
        InputError: The configuration is invalid, or another process writes to the run's folder.
        StateError: A file of the run is damaged.
    """
    quiet_transformers()
    with ExitStack() as stack:
        # 1. The processes and the folder.
        ranks = stack.enter_context(started(config.parallel))
        if not ranks.is_rank_0:
            stack.enter_context(without_logging())
        check_alike(config, ranks)
        ranks.on_rank_0(open_scored_folder, config, folder, stack)

        # 2. The scores: of a file of outputs, or of a model on its device.
        if config.predictions is not None:
            evaluations = [score_file(config, config.predictions)]
        else:
            with ranks.failing_together():
                metric_specs(config.task.metrics)
                trained_model = model_to_score(config)
                encoding = trained_model.encoding(
                    config.task, max_new_tokens=written_tokens(config.task, config.decode)
                )
                if trained_model.has_random_head(config.task):
                    logger.warning(
                        "the checkpoint has no trained classification head; scoring a randomly"
                        " initialized head"
                    )
                scored = records_to_score(config, encoding.check)
                device = own_device(config.train.prepare(), ranks)
                model = trained_model.on_device(
                    config.task, loading_device(config.parallel, device)
                )
            check_same_model(model, scored, ranks)
            shard_model(model, config.parallel, device, ranks)
            evaluations = score_model(
                config,
                model,
                encoding,
                scored,
                extra_positions=trained_model.extra_positions,
                ranks=ranks,
            )

        # 3. The files. The other ranks have finished and do not wait for this step.
        if ranks.is_rank_0:
            if config.run is None:
                folder.mkdir(parents=True, exist_ok=True)
                if composed is not None:
                    composed.write_record(folder)
            _warn_of_replaced_scores(folder, evaluations)
            if config.run is not None:
                alarm = saved_run(config.run).privacy.alarm
                if alarm is not None:
                    logger.warning("%s", alarm)
            write_scores(config, folder, evaluations)
            if (folder / PRIVACY).exists() and (folder / CONFIGURATION).exists():
                write_report(folder, privacy_of(folder))
            public = eval_split_is_public(config.task, config.eval)
            logger.info("scores and predictions: %s", folder if public else folder / PRIVATE)
    return evaluations


def open_scored_folder(config: EvaluateConfig, folder: Path, stack: ExitStack) -> None:
    """Lock a run's folder until ``stack`` closes, or check that the folder contains no run.

    Raises:
        InputError: Scores of another model would be written to a run's folder, another process
            writes to the run's folder, or the folder contains a link.
        StateError: A file of the run is damaged.
    """
    refuse_links(folder)
    stack.enter_context(crash_kept(folder))
    if config.run is not None:
        stack.enter_context(hold_run(folder))
        # Reject damaged files, which could not be updated, before scoring anything.
        read_own_evaluations(folder)
        if (folder / PRIVACY).exists():
            read_finished_run(folder)
    elif (folder / CONFIGURATION).exists():
        raise InputError(
            f"{folder} is the folder of a run, so scores of another model would overwrite those of"
            " the run. Choose another folder, or score the model of the run.",
            key=str(folder),
            hint=in_shell("run", folder),
        )


def score_file(config: EvaluateConfig, predictions: str) -> Evaluation:
    """Return the scores of a file of outputs.

    Raises:
        InputError: The split has several parts, but a file contains the outputs of only one part.
    """
    metric_specs(config.task.metrics)
    parts = config.task.parts(config.eval.split)
    if len(parts) > 1:
        raise InputError(
            "eval.split must have only one part to score predictions, but"
            f" eval.split={config.eval.split} has {' and '.join(parts)}.",
            key="eval.split",
            value=config.eval.split,
            hint=f"'task.split_parts.{config.eval.split}=[{parts[0]}]'",
        )
    if config.eval.held_out is not None:
        raise InputError(
            "eval.held_out cannot be used with predictions, because dpft scores predictions on a"
            " split that is stored in a separate file. Store the records in such a file, and set"
            " task.data_dir and eval.split.",
            key="eval.held_out",
            value=config.eval.held_out,
        )
    examples = load_examples(config.task, parts[0])
    texts = read_predictions(
        Path(predictions),
        inputs_of(config.task, examples),
        repair=config.task.repair,
        limit=config.eval.limit,
    )
    return score_predictions(
        config.task, examples, texts, config=config.eval, metrics=config.metrics, split=parts[0]
    )


def model_to_score(config: EvaluateConfig) -> TrainedModel:
    """Return the model of a run, or the model that ``model=`` names."""
    if config.run is None:
        architecture = read_architecture(config.model)
        return TrainedModel(architecture=architecture, tokens=config.task.special_tokens)
    return trained_model_of_run(Path(config.run), saved_run(config.run))


def _warn_of_replaced_scores(folder: Path, evaluations: Sequence[Evaluation]) -> None:
    new = {(entry.task, entry.split, entry.stage) for entry in evaluations}
    old = {(entry.task, entry.split, entry.stage) for entry in read_evaluations(folder)}
    for split in sorted({split for _, split, _ in new & old}):
        logger.warning(
            "replacing the run's scores and texts of split %s, and its report. Scores are only"
            " comparable with those before training if the records and the settings of eval and"
            " decode are the same.",
            split,
        )


def show_scores(config: EvaluateConfig, evaluations: Sequence[Evaluation], folder: Path) -> None:
    """Print the scores, without texts, as a table or as one JSON object like metrics.json.

    Scores of a private split are printed and marked, because the output of this command belongs to
    its operator. In a submitit job, stdout is a log file, so it shows only the scores that
    metrics.json contains.
    """
    public = eval_split_is_public(config.task, config.eval)
    is_logged = rank_environment.submitted_task() is not None
    entries = []
    for evaluation in evaluations:
        entry = evaluation.record(public=public).replace(samples=None, confusion=None)
        if is_logged:
            entry = shown(entry, rounded=config.eval.publish_private_scores)
        elif not public:
            entry = entry.replace(note=PRIVATE_MARK)
        entries.append(entry)
    if config.output == "json":
        print(json_text(Metrics(evaluations=tuple(entries))))
        return
    for entry in entries:
        counted = "" if entry.examples is None else f", {entry.examples} distinct inputs"
        print(f"{entry.task}, split {entry.split}{counted}")
        if entry.note is not None:
            print(entry.note)
        for name, value in entry.metrics.items():
            print(f"{name:<22}{score(value, entry.digits):>12}")
        for name, why in entry.not_computed.items():
            print(f"{name:<22}not computed: {why}")
    if not public:
        print(f"scores: {folder / PRIVATE_REPORT}")
