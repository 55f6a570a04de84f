"""``dpft eval``: scores a run's model, any model folder, or a file of outputs.

With ``human_eval=N`` it writes a sheet for people to rate instead: ``dpft.runs.human_eval``.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dpft.cli.subcommand import run_folder, write_hydra_record
from dpft.config.schema import EvaluateConfig
from dpft.evaluation.eval_config import eval_split_is_public
from dpft.files import PRIVATE_REPORT
from dpft.records.form import json_text
from dpft.records.scores import Metrics

if TYPE_CHECKING:
    from dpft.evaluation.evaluate import Evaluation


def run(configs: Sequence[EvaluateConfig]) -> None:
    """Scores, writes the scores, predictions and samples, and prints what may be shown of them.

    Args:
        configs: What is scored; or, with ``human_eval``, the runs of the sheet that is written.
    """
    from dpft.models.loading import quiet_transformers

    quiet_transformers()
    config = configs[0]
    if config.human_eval is not None:
        from dpft.runs.human_eval import write_sheet

        write_sheet(configs)
        return
    from dpft.runs.evaluation import score_and_write

    folder = run_folder() if config.run is None else Path(config.run)
    evaluations = score_and_write(config, folder, write_request=write_hydra_record)
    show(config, evaluations, folder)


def show(config: EvaluateConfig, evaluations: "Sequence[Evaluation]", folder: Path) -> None:
    """Prints the scores, as a table or as one JSON object like metrics.json without texts.

    Of a private split it says where they are. Rounded to two digits they are shown where that was
    asked for, and in the table on a terminal, which its owner alone reads.
    """
    from dpft.reports.pages import score
    from dpft.reports.run_record import shown

    public = eval_split_is_public(config.task, config.eval)
    is_table = config.output != "json"
    rounded = config.eval.publish_private_scores or (is_table and sys.stdout.isatty())
    entries = tuple(
        replace(
            shown(evaluation.record(public=public), rounded=rounded), samples=None, confusion=None
        )
        for evaluation in evaluations
    )
    if not is_table:
        print(json_text(Metrics(evaluations=entries)))
        return
    for entry, evaluation in zip(entries, evaluations, strict=True):
        counted = f", {entry.examples} distinct inputs" if public else ""
        print(f"{entry.task}, split {entry.split}{counted}")
        for name, value in entry.metrics.items():
            print(f"{name:<22}{score(value, entry.digits):>12}")
        reasons = evaluation.not_computed if sys.stdout.isatty() else entry.not_computed
        for name, why in reasons.items():
            print(f"{name:<22}not computed: {why}")
        if not public:
            print(entry.note)
    if not public:
        print(f"scores: {folder / PRIVATE_REPORT}")
