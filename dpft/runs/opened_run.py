"""A finished run's model, with what it promised and scored: opened from Python, or exported.

``dpft export`` writes the model as a folder to hand on, with the record of what it guarantees.
Merging an adapter is arithmetic on the trained weights, post-processing, so epsilon is the run's.
"""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.config.schema import ExportConfig, TrainConfig
from dpft.errors import InputError
from dpft.files import EXPORT, LEDGER, MODEL, PRIVACY, REPORT, hold_run, share
from dpft.models.loading import quiet_transformers
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.released import recorded_base, write_released
from dpft.reports.promises import guarantee, is_promised
from dpft.reports.report import write_card
from dpft.reports.run_record import RunRecord, data_name, model_title, with_own_scores
from dpft.runs.guarantee import read_finished_run
from dpft.runs.saved_run import saved_run
from dpft.runs.task_model import TrainedModel, trained_model_of_run
from dpft.strict_model import as_json, write_model


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
        """Returns the trained model on the CPU, in eval mode.

        Raises:
            InputError: The model, or the base of what trained, cannot be found.
        """
        quiet_transformers()
        trained = self._trained
        model = trained.load(trained.head(self.config.task))
        model.eval()
        return model

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """Returns the tokenizer that the run trained with.

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
        """Returns the folder, so that a run can be given wherever a folder can."""
        return str(self.folder)

    def __repr__(self) -> str:
        stated = self.record.privacy
        if not is_promised(stated):
            return f"Run({str(self.folder)!r}, not private)"
        epsilon, delta = guarantee(stated)
        bound = f"epsilon={eps_text(epsilon)}, delta={delta_text(delta)}"
        return f"Run({str(self.folder)!r}, {bound}, unit={stated.plan.unit!r})"

    def _repr_markdown_(self) -> str:
        """Returns what a notebook shows of the run."""
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
    """Returns the run in a folder, its training ended and its report written.

    Raises:
        InputError: There is none, it has not ended, or it has a symbolic link in it.
        StateError: A file of it is damaged.
    """
    path = Path(folder)
    config = saved_run(str(path))
    return Run(folder=path, config=config, record=with_own_scores(read_finished_run(path)))


logger = logging.getLogger(__name__)


def export(config: ExportConfig) -> None:
    """Writes the folder: the model, merged or as it was saved, its digests, privacy.json, ledger.

    Raises:
        InputError: There is no such run, the folder is there already, or the weights cannot be
            merged.
    """
    quiet_transformers()
    folder = Path(config.run)
    saved = saved_run(config.run)
    target = new_folder(folder, config.to)
    with hold_run(folder):
        whole = saved.method.saves_whole_model
        write = merged(folder, saved) if config.merge and not whole else copied(folder, saved)
        with whole_or_absent(target) as partial:
            write(partial, target)
            write_released(partial, None if config.merge else recorded_base(folder / MODEL))
            if (folder / PRIVACY).exists():
                record = read_finished_run(folder)
                write_model(partial / PRIVACY, record.privacy)
                if (folder / LEDGER).exists():
                    shutil.copy(folder / LEDGER, partial / LEDGER)
                write_card(record, partial)
            else:
                logger.warning("%s has no %s, so none is exported", folder, PRIVACY)
    logger.info("model: %s", target)


def new_folder(folder: Path, to: str | None) -> Path:
    """Returns the folder to write.

    Raises:
        InputError: It is there, or cannot be made, or is a part of the model to export.
    """
    target = folder / EXPORT if to is None else Path(to).expanduser()
    if target.exists() or target.is_symlink():
        raise InputError(f"to must be a new folder, got {target}, which exists; choose another.")
    above = next(parent for parent in target.parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"to must be a new folder, got {target}, but {above} is a file.")
    if target.resolve().is_relative_to((folder / MODEL).resolve()):
        raise InputError(
            f"to must be outside the model that is exported, got {target}; choose another."
        )
    return target


@contextmanager
def whole_or_absent(target: Path) -> Iterator[Path]:
    """Gives a folder to write that becomes ``target`` if all goes well, and else is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


Write = Callable[[Path, Path], None]
"""Writes the model into the first folder, which will be called the second."""


def copied(folder: Path, saved: TrainConfig) -> Write:
    """Returns what writes the model as the run saved it.

    Raises:
        InputError: The folder holds no model of the run's method.
        StateError: The base that the run's configuration names is at hand, and another one.
    """
    try:
        trained_model_of_run(folder, saved)
    except InputError as error:
        if saved.method.saves_whole_model:
            raise
        # A base that is not at hand is none of the copy, but its card names one.
        logger.warning("whether the copied adapter's base is the run's was not seen: %s", error)

    def write(partial: Path, target: Path) -> None:
        shutil.copytree(folder / MODEL, partial)
        saved.method.relocate(partial, target)

    return write


def merged(folder: Path, saved: TrainConfig) -> Write:
    """Returns what writes the model as one that needs no base; merges before anything is written.

    Raises:
        InputError: The method's weights cannot be merged.
    """
    trained_model = trained_model_of_run(folder, saved)
    head = trained_model.head(saved.task)
    model = saved.method.merge(trained_model.load(head, dequantizes=True))
    if saved.model.is_quantized:
        logger.info(
            "the base's weights are exported in float32, of the values that model.quantization=%s"
            " gave them: about %d times the size that it trained at",
            *(saved.model.quantization, 8 if saved.model.quantization == "nf4" else 4),
        )
    processor = trained_model.processor(saved.task, head)

    def write(partial: Path, target: Path) -> None:
        partial.mkdir()
        model.save_pretrained(partial, safe_serialization=True)
        processor.save_pretrained(partial)
        share(partial)

    return write
