"""Python object for a finished run, with its epsilon, its scores and its model."""

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
    """Finished run, as read from its folder.

    The object keeps no file open. To see changes by later commands, open the run again.
    """

    folder: Path
    """Folder of the run."""
    config: TrainConfig
    """Configuration of the run."""
    record: RunRecord
    """Contents of the run's public files, and of private/metrics.json if that file exists."""

    @property
    def epsilon(self) -> float | None:
        """The upper bound from the run's ledger, or None without a reliable bound.

        A run has no reliable bound if it trained without privacy, if a test seed made its noise, or
        if its noise can be computed. If the records were also used for the model's tokenizer, the
        bound covers both.
        """
        stated = self.record.privacy
        return guarantee(stated)[0] if is_promised(stated) else None

    @property
    def delta(self) -> float | None:
        """The delta of the guarantee, or None if epsilon is None."""
        stated = self.record.privacy
        return guarantee(stated)[1] if is_promised(stated) else None

    @property
    def privacy(self) -> Mapping[str, Any]:
        """Everything that epsilon depends on, under the keys of privacy.json."""
        privacy: Mapping[str, Any] = as_json(self.record.privacy)
        return privacy

    @property
    def scores(self) -> dict[str, float]:
        """Metric name to value after training, on the scales of metrics.json.

        If several splits or parts of a split were scored, the keys are ``split/metric``. Scores of
        a private split come from private/metrics.json. They are meant for the owner of the data,
        epsilon does not cover them, and they are missing from a folder without private/.
        """
        entries = self.record.after()
        return {
            name if len(entries) == 1 else f"{entry.split}/{name}": float(value)
            for entry in entries
            for name, value in entry.metrics.items()
        }

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Scores of every split and stage, including scores before training.

        For private splits, see ``scores``.
        """
        return [as_json(entry) for entry in self.record.evaluations]

    @property
    def report(self) -> Path:
        """Path of report.md; report.html is in the same folder."""
        return self.folder / REPORT

    def load_model(self) -> PreTrainedModel:
        """Return the trained model on the CPU, in eval mode.

        Raises:
            InputError: The model, or the base model of its adapter, cannot be found.
        """
        quiet_transformers()
        trained = self._trained
        model = trained.load(trained.head(self.config.task))
        model.eval()
        return model

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer that the run trained with.

        Raises:
            InputError: The tokenizer cannot be found.
        """
        trained = self._trained
        task = self.config.task
        processor: PreTrainedTokenizerBase = trained.processor(task, trained.head(task))
        return processor

    @cached_property
    def _trained(self) -> TrainedModel:
        return trained_model_of_run(self.folder, self.config)

    def __fspath__(self) -> str:
        """Return the folder, so that functions which take a path accept a run."""
        return str(self.folder)

    def __repr__(self) -> str:
        stated = self.record.privacy
        if not is_promised(stated):
            return f"Run({str(self.folder)!r}, not private)"
        epsilon, delta = guarantee(stated)
        bound = f"epsilon={eps_text(epsilon)}, delta={delta_text(delta)}"
        return f"Run({str(self.folder)!r}, {bound}, unit={stated.plan.unit!r})"

    def _repr_markdown_(self) -> str:
        """Return the table that a notebook shows for the run."""
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
    """Return the finished run in a folder.

    Raises:
        InputError: The folder contains no run or a symbolic link, or the run has not finished.
        StateError: A file of the run is damaged.
    """
    path = Path(folder)
    config = saved_run(str(path))
    return Run(folder=path, config=config, record=with_own_scores(read_finished_run(path)))
