"""``dpft eval``: scores a run's model, any model folder, or a file of outputs.

With ``human_eval=N`` it writes a sheet for people to rate instead: ``dpft.runs.human_eval``.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpft.cli.hydra_record import run_folder, write_hydra_record
from dpft.config.schema import TASK, EvaluateConfig
from dpft.evaluation.eval_config import eval_split_is_public
from dpft.files import SCHEMA_VERSION
from dpft.runs.configuring import evaluate_configuration as configuration
from dpft.runs.configuring import evaluate_overrides as expand

if TYPE_CHECKING:
    from dpft.evaluation.evaluate import Evaluation

CONFIG = EvaluateConfig
POLYMORPHIC = TASK

__all__ = ["CONFIG", "POLYMORPHIC", "configuration", "expand", "run"]


def run(configs: Sequence[EvaluateConfig]) -> None:
    """Scores, writes the scores, predictions and samples, and prints the scores.

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
    show(config, evaluations, public=eval_split_is_public(config.task, config.eval))


def show(config: EvaluateConfig, evaluations: "Sequence[Evaluation]", *, public: bool) -> None:
    """Prints the scores, as a table or as one JSON object like metrics.json."""
    from dpft.reports.run.report import mark, metric_rows

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
