"""``dpft eval``: scores a run's model, any model folder, or a file of outputs.

With ``human_eval=N`` it writes a sheet for people to rate instead: ``dpft.cli.human_eval``.
"""

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from dpft.cli.assembly import quiet_transformers
from dpft.cli.crashes import crash_kept
from dpft.cli.held_out import records_to_score
from dpft.cli.human_eval import rated_runs, write_sheet
from dpft.cli.hydra_record import run_folder, write_hydra_record
from dpft.cli.inherited import given_overrides, inherit, with_task_of_run
from dpft.cli.parts import check_lengths, written_tokens
from dpft.cli.progress import batch_progress
from dpft.cli.scores import write_evaluations
from dpft.cli.trained import TrainedModel, saved_run, trained_model_of_run
from dpft.config.schema import TASK, EvaluateConfig
from dpft.data.sources import load_examples
from dpft.errors import InputError
from dpft.evaluation.eval_config import eval_split_is_public, reads_training_split
from dpft.evaluation.evaluate import Evaluation, evaluate_parts, inputs_of, score_predictions
from dpft.evaluation.metrics.base import metric_specs
from dpft.evaluation.predictions import read_predictions
from dpft.files import SCHEMA_VERSION, hold_lock, private_folder
from dpft.links import refuse_links
from dpft.models.architecture import read_architecture
from dpft.models.loading import new_names
from dpft.reports.records import read_evaluations, read_record
from dpft.reports.run import CONFIGURATION, METRICS, PRIVACY, mark, metric_rows, write_report

CONFIG = EvaluateConfig
POLYMORPHIC = TASK
logger = logging.getLogger(__name__)

# What a run decides and ``run=`` therefore takes from it, unless an override says otherwise.
SECTIONS = ("task", "model", "eval", "decode", "metrics")


def expand(overrides: list[str]) -> list[str]:
    """Returns the overrides, with the task of the run that ``run=`` names chosen first.

    Raises:
        InputError: There is no such run, or another model is given with it.
    """
    expanded = with_task_of_run(overrides)
    models = sorted(key for key in given_overrides(overrides) if key.partition(".")[0] == "model")
    if expanded != overrides and models:
        raise InputError(
            f"at most one of run and {models[0]} may be given, got both; run=RUN scores the "
            "run's own model, and without run= any other model is scored."
        )
    return expanded


def run(config: EvaluateConfig) -> None:
    """Scores, writes the scores, predictions and samples, and prints the scores.

    With ``human_eval`` it writes a rating sheet instead.
    """
    quiet_transformers()
    if config.human_eval is not None:
        write_sheet([inherit(config, folder, SECTIONS) for folder in rated_runs(config)])
        return
    refuse_links(folder_of(config))
    with ExitStack() as stack:
        stack.enter_context(crash_kept(folder_of(config)))
        if config.run is not None:
            config = inherit(config, config.run, SECTIONS)
            folder = Path(str(config.run))
            stack.enter_context(hold_lock(private_folder(folder) / "lock"))
            check_readable(folder)
        evaluations = score(config)
        public = eval_split_is_public(config.task, config.eval)
        write(config, evaluations, public=public)
    show(config, evaluations, public=public)


def check_readable(folder: Path) -> None:
    """Refuses, before anything is scored, files of a run that could not be written anew.

    Raises:
        InputError: One is of another schema version.
        StateError: One is damaged.
    """
    read_evaluations(folder / METRICS)
    if (folder / PRIVACY).exists():
        read_record(folder)


def write(config: EvaluateConfig, evaluations: Sequence[Evaluation], *, public: bool) -> None:
    """Writes metrics.json, the texts and, into a run's folder, the report anew."""
    folder = folder_of(config)
    folder.mkdir(parents=True, exist_ok=True)
    if config.run is None:
        write_hydra_record(folder)
    training = reads_training_split(config.task, config.eval)
    warn_of_replaced(folder, evaluations)
    write_evaluations(folder, evaluations, public=public, training=training)
    if (folder / PRIVACY).exists() and (folder / CONFIGURATION).exists():
        write_report(folder)
    logger.info("scores and predictions: %s", folder)


def warn_of_replaced(folder: Path, evaluations: Sequence[Evaluation]) -> None:
    """Says which scores of a run give way to new ones, which other settings may have made."""
    fresh = {(one.task, one.split, one.stage) for one in evaluations}
    known = [(e["task"], e["split"], e["stage"]) for e in read_evaluations(folder / METRICS)]
    for split in sorted({key[1] for key in known if key in fresh}):
        logger.warning(
            "the run's scores and texts of split %s, and its report, are replaced; scores made"
            " with other settings of eval or decode are not comparable with those before training",
            split,
        )


def folder_of(config: EvaluateConfig) -> Path:
    """Returns the folder to write to: the run's, or Hydra's for any other model."""
    return run_folder() if config.run is None else Path(config.run)


def score(config: EvaluateConfig) -> list[Evaluation]:
    """Returns the scores of a file of outputs, or of a model, for each part of the split."""
    metric_specs(config.task.metrics)
    parts = config.task.parts(config.eval.split)
    if config.predictions is not None:
        return [score_file(config, config.predictions, parts)]
    trained_model = trained_model_of(config)
    head = trained_model.head(config.task)
    check_lengths(
        config.task,
        trained_model.architecture,
        max_new_tokens=written_tokens(config.task, config.decode),
        extra_positions=trained_model.extra_positions,
    )
    encoding = trained_model.encoding(config.task, head)
    if trained_model.method is None and new_names(trained_model.architecture, head):
        logger.warning("the checkpoint has no trained classification head: a random one is scored")
    held_out = records_to_score(config)
    device = config.train.prepare()
    model = trained_model.load(head)
    model.to(device)  # type: ignore[arg-type]
    with batch_progress() as on_progress:
        return evaluate_parts(
            model,
            encoding,
            config.task,
            held_out,
            config=config.eval,
            decode=config.decode,
            metrics=config.metrics,
            extra_positions=trained_model.extra_positions,
            on_progress=on_progress,
        )


def score_file(config: EvaluateConfig, predictions: str, parts: Sequence[str]) -> Evaluation:
    """Returns the scores of a file of outputs.

    Raises:
        InputError: The split has several parts, and a file holds the outputs for one.
    """
    if len(parts) > 1:
        raise InputError(
            f"predictions are scored on one part of a split, got eval.split={config.eval.split},"
            f" which has {' and '.join(parts)}; set task.split_parts.{config.eval.split}=[PART]."
        )
    if config.eval.held_out is not None:
        raise InputError(
            "predictions are scored on a split that is stored as one, got eval.held_out, which"
            " holds records out of another; give their file by task.data_dir and eval.split."
        )
    examples = load_examples(config.task, parts[0])
    texts = read_predictions(
        Path(predictions),
        inputs_of(config.task, examples),
        repair=config.task.repair,
        limit=config.eval.limit,
    )
    return score_predictions(
        config.task,
        examples,
        texts,
        config=config.eval,
        metrics=config.metrics,
        split=parts[0],
    )


def trained_model_of(config: EvaluateConfig) -> TrainedModel:
    """Returns the model to score."""
    if config.run is None:
        architecture = read_architecture(config.model)
        return TrainedModel(architecture=architecture, tokens=config.task.special_tokens)
    return trained_model_of_run(Path(config.run), saved_run(config.run))


def show(config: EvaluateConfig, evaluations: Sequence[Evaluation], *, public: bool) -> None:
    """Prints the scores, as a table or as one JSON object like metrics.json."""
    entries = [mark(evaluation.record(), public) for evaluation in evaluations]
    if config.output == "json":
        content = {"schema_version": SCHEMA_VERSION, "evaluations": entries}
        print(json.dumps(content, indent=2, sort_keys=True))
        return
    for entry in entries:
        print(f"{entry['task']}, split {entry['split']}, {entry['examples']} distinct inputs")
        for name, (value,) in metric_rows([entry]):
            print(f"{name:<22}{value:>12.4f}")
        for name, why in entry["not_computed"].items():
            print(f"{name:<22}not computed: {why}")
        if not public:
            print(entry["note"])
