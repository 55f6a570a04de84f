"""``dpft eval``: scores a run's model, any model folder, or a file of outputs.

With ``human_eval=N`` it writes a sheet for people to rate instead: ``dpft.runs.human_eval``.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from dpft.cli.hydra_record import run_folder, write_hydra_record
from dpft.cli.overrides import given_overrides, inherit, with_task_of_run
from dpft.config.schema import TASK, EvaluateConfig
from dpft.errors import InputError
from dpft.evaluation.eval_config import eval_split_is_public
from dpft.evaluation.evaluate import Evaluation
from dpft.files import SCHEMA_VERSION
from dpft.links import refuse_links
from dpft.models.loading import quiet_transformers
from dpft.reports.run.report import mark, metric_rows
from dpft.runs.crashes import crash_kept
from dpft.runs.evaluation import score_and_write
from dpft.runs.human_eval import rated_runs, write_sheet

CONFIG = EvaluateConfig
POLYMORPHIC = TASK

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
    folder = run_folder() if config.run is None else Path(config.run)
    refuse_links(folder)
    with crash_kept(folder):
        if config.run is not None:
            config = inherit(config, config.run, SECTIONS)
        evaluations = score_and_write(config, folder, write_origin=write_hydra_record)
    show(config, evaluations, public=eval_split_is_public(config.task, config.eval))


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
