"""``dpft eval``: scores a run's model, any model folder, or a file of outputs."""

import dataclasses
import json
import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from dpft.cli.assembly import check_lengths, quiet_transformers
from dpft.cli.hydra_record import run_folder, write_hydra_record
from dpft.cli.scores import write_evaluations
from dpft.config import schema
from dpft.config.keys import plain
from dpft.config.load import load, load_saved
from dpft.config.schema import TASK, EvaluateConfig, TrainConfig
from dpft.data.sources import load_examples
from dpft.errors import InputError
from dpft.evaluation.evaluate import (
    Evaluation,
    eval_split_is_public,
    evaluate_model,
    score_predictions,
)
from dpft.evaluation.groups import group_examples
from dpft.evaluation.metrics.base import metric_spec
from dpft.evaluation.predictions import read_predictions
from dpft.files import SCHEMA_VERSION, hold_lock, private_folder
from dpft.models.checks import check_model
from dpft.models.loading import load_config, load_model, load_tokenizer
from dpft.privacy.ledger import read_ledger
from dpft.reports.run import CONFIGURATION, PRIVACY, mark, metric_rows, write_report
from dpft.training.session import LEDGER

CONFIG = EvaluateConfig
POLYMORPHIC = TASK
logger = logging.getLogger(__name__)

# What a run decides and ``run=`` therefore takes from it, unless an override says otherwise.
SECTIONS = ("task", "model", "eval", "decode")


def expand(overrides: list[str]) -> list[str]:
    """Returns the overrides, with the task of the run that ``run=`` names chosen first.

    Raises:
        InputError: There is no such run, or another model is given with it.
    """
    given = dict(override.lstrip("+~").partition("=")[::2] for override in overrides)
    folder = given.get("run", "null")
    if folder in ("", "null"):
        return overrides
    models = sorted(key for key in given if key.partition(".")[0] == "model")
    if models:
        raise InputError(
            f"at most one of run and {models[0]} may be given, got both; run=RUN scores the "
            "run's own model, and without run= any other model is scored."
        )
    return [f"task={saved_configuration(folder)['task']['name']}", *overrides]


def run(config: EvaluateConfig) -> None:
    """Scores, writes metrics.json and predictions.jsonl, and prints the scores."""
    quiet_transformers()
    with ExitStack() as stack:
        if config.run is not None:
            config = configuration_of_run(config, config.run)
            stack.enter_context(hold_lock(private_folder(Path(str(config.run))) / "lock"))
        evaluation = score(config)
        public = eval_split_is_public(config.task, config.eval)
        folder = run_folder() if config.run is None else Path(config.run)
        write(folder, evaluation, public=public, own_folder=config.run is None)
    show(config, evaluation, public=public)


def write(folder: Path, evaluation: Evaluation, *, public: bool, own_folder: bool) -> None:
    """Writes metrics.json, the predictions and, into a run's folder, the report anew."""
    folder.mkdir(parents=True, exist_ok=True)
    if own_folder:
        write_hydra_record(folder)
    write_evaluations(folder, [evaluation], public=public)
    if (folder / PRIVACY).exists() and (folder / CONFIGURATION).exists():
        write_report(folder)
    logger.info("scores and predictions: %s", folder)


def score(config: EvaluateConfig) -> Evaluation:
    """Returns the scores of a file of outputs, or of a model."""
    for name in config.task.metrics:
        metric_spec(name)
    if config.predictions is None:
        check_lengths(config, load_config(config.model))
    examples = load_examples(config.task, config.eval.split)
    if config.predictions is not None:
        inputs = [group.input for group in group_examples(examples)]
        texts = read_predictions(
            Path(config.predictions), inputs, repair=config.task.repair, limit=config.eval.limit
        )
        return score_predictions(config.task, examples, texts, config=config.eval)
    device = config.train.prepare()
    tokenizer = load_tokenizer(config.model)
    model = load_model(config.model, seed=0)
    check_model(model)
    model.to(device)  # type: ignore[arg-type]
    return evaluate_model(
        model, tokenizer, config.task, examples, config=config.eval, decode=config.decode
    )


def show(config: EvaluateConfig, evaluation: Evaluation, *, public: bool) -> None:
    """Prints the scores, as a table or as one JSON object like metrics.json."""
    entry = mark(evaluation.record(), public)
    if config.output == "json":
        content = {"schema_version": SCHEMA_VERSION, "evaluations": [entry]}
        print(json.dumps(content, indent=2, sort_keys=True))
        return
    print(f"{entry['task']}, split {entry['split']}, {entry['examples']} distinct inputs")
    for name, (value,) in metric_rows([entry]):
        print(f"{name:<12}{value:>12.4f}")
    for name, why in entry["not_computed"].items():
        print(f"{name:<12}not computed: {why}")
    if not public:
        print(entry["note"])


def configuration_of_run(config: EvaluateConfig, folder: str) -> EvaluateConfig:
    """Returns the run's own task, model and settings, changed where an override says so."""
    saved = saved_configuration(folder)
    sections = {name: saved[name] for name in SECTIONS}
    given = plain(config)
    for override in HydraConfig.get().overrides.task[1:]:
        path = override.partition("=")[0].lstrip("+~").split(".")
        if path[0] in sections:
            _copy(path, given, sections)
    sections["model"] |= {"path": str(Path(folder) / "model"), "init": "pretrained"}
    whole = given | sections
    merged = load(OmegaConf.create(whole), EvaluateConfig, polymorphic=POLYMORPHIC)
    return dataclasses.replace(merged, run=folder)


def saved_configuration(folder: str) -> dict[str, Any]:
    """Returns config.yaml of a run's folder as plain values.

    Raises:
        InputError: There is no such folder, or its training has not ended.
    """
    path = Path(folder) / CONFIGURATION
    if not path.is_file():
        missing = f"has no {CONFIGURATION}" if Path(folder).is_dir() else "does not exist"
        raise InputError(
            f"run must be the folder of a dpft run, got {folder!r}, which {missing}; give the "
            "folder that `dpft train` named, such as outputs/DATE/TIME."
        )
    ledger = Path(folder) / LEDGER
    ended = not ledger.exists() or read_ledger(ledger).closed
    if not ended or not (Path(folder) / "model").is_dir():
        raise InputError(
            f"run must be the folder of a run whose training has ended, got {folder!r}, whose "
            "training has not; wait for it, or train anew."
        )
    config = load_saved(path, TrainConfig, polymorphic=schema.POLYMORPHIC)
    saved: dict[str, Any] = plain(config)
    return saved


def _copy(path: list[str], source: dict[str, Any], target: dict[str, Any]) -> None:
    """Copies the value at a key path from one configuration to another."""
    for name in path[:-1]:
        source, target = source[name], target[name]
    target[path[-1]] = source[path[-1]]
