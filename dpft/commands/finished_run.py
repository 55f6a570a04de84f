"""The Python object of a finished run, with its epsilon, its scores and its model."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.commands.guarantee import read_finished_run
from dpft.commands.ledger_account import saved_run
from dpft.commands.task_model import TrainedModel, trained_model_of_run
from dpft.config.schema import TrainConfig
from dpft.models.loading import quiet_transformers
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.reports.privacy_json import guarantee, is_promised
from dpft.reports.run_record import RunRecord, data_name, model_title, with_own_scores
from dpft.run_folder import REPORT
from dpft.strict_model import as_json


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """The folder of a run that has ended, read.

    Nothing is kept open: what later commands write into the folder is seen by opening it again.
    """

    folder: Path
    """Where it lies."""
    config: TrainConfig
    """What the run was configured to."""
    record: RunRecord
    """Content of its public files, and of private/metrics.json where that is there."""

    @property
    def epsilon(self) -> float | None:
        """The upper bound that the run's ledger gives; None where there is none to rely on.

        That is a run without privacy, of a test's seed, or whose noise can be computed. Where the
        records made the model's tokenizer, too, it is the bound of both.
        """
        stated = self.record.privacy
        return guarantee(stated)[0] if is_promised(stated) else None

    @property
    def delta(self) -> float | None:
        """The delta that epsilon goes with; None where there is no epsilon."""
        stated = self.record.privacy
        return guarantee(stated)[1] if is_promised(stated) else None

    @property
    def privacy(self) -> Mapping[str, Any]:
        """Everything that epsilon depends on, under the names of privacy.json."""
        privacy: Mapping[str, Any] = as_json(self.record.privacy)
        return privacy

    @property
    def scores(self) -> dict[str, float]:
        """Metric to value after training, on the scales of metrics.json.

        Where more than one split, or part of one, was scored, ``split/metric`` to value. Scores of
        a private split are read from private/metrics.json: they are the owner's, are not covered
        by epsilon, and are not there in a folder that was handed on without private/.
        """
        entries = self.record.after()
        return {
            name if len(entries) == 1 else f"{entry.split}/{name}": float(value)
            for entry in entries
            for name, value in entry.metrics.items()
        }

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Every split and stage, before training too; private ones as ``scores``."""
        return [as_json(entry) for entry in self.record.evaluations]

    @property
    def report(self) -> Path:
        """The report, report.md; report.html lies beside it."""
        return self.folder / REPORT

    def load_model(self) -> PreTrainedModel:
        """Return the trained model on the CPU, in eval mode.

        Raises:
            InputError: The model, or the base of what trained, cannot be found.
        """
        quiet_transformers()
        trained = self._trained
        model = trained.load(trained.head(self.config.task))
        model.eval()
        return model

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer that the run trained with.

        Raises:
            InputError: It cannot be found.
        """
        trained = self._trained
        task = self.config.task
        processor: PreTrainedTokenizerBase = trained.processor(task, trained.head(task))
        return processor

    @cached_property
    def _trained(self) -> TrainedModel:
        return trained_model_of_run(self.folder, self.config)

    def __fspath__(self) -> str:
        """Return the folder, so that a run can be given wherever a folder can."""
        return str(self.folder)

    def __repr__(self) -> str:
        stated = self.record.privacy
        if not is_promised(stated):
            return f"Run({str(self.folder)!r}, not private)"
        epsilon, delta = guarantee(stated)
        bound = f"epsilon={eps_text(epsilon)}, delta={delta_text(delta)}"
        return f"Run({str(self.folder)!r}, {bound}, unit={stated.plan.unit!r})"

    def _repr_markdown_(self) -> str:
        """Return what a notebook shows of the run."""
        config, stated = self.record.config, self.record.privacy
        rows = [("trained", f"{model_title(config, stated)} on {data_name(config.task)}")]
        if is_promised(stated):
            epsilon, delta = guarantee(stated)
            by = f" by {stated.accountant}" if stated.with_tokenizer is None else ""
            bound = f"{eps_text(epsilon)} (upper bound{by})"
            rows.append(
                ("epsilon", f"{bound} at delta = {delta_text(delta)}, of one {stated.plan.unit}")
            )
        else:
            rows.append(("privacy", "none"))
        if all(entry.split_is_public for entry in self.record.after()):
            rows += [(name, f"{value:.4g}") for name, value in self.scores.items()]
        else:
            rows.append(("scores", "of private records: run.scores"))
        lines = [f"| {name} | {value} |" for name, value in [*rows, ("folder", str(self.folder))]]
        return "\n".join(["| dpft run | |", "|---|---|", *lines])


def open_run(folder: "str | Path | Run") -> Run:
    """Return the run in a folder, its training ended and its report written.

    Raises:
        InputError: There is none, it has not ended, or it has a symbolic link in it.
        StateError: A file of it is damaged.
    """
    path = Path(folder)
    config = saved_run(str(path))
    return Run(folder=path, config=config, record=with_own_scores(read_finished_run(path)))
