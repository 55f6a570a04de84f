"""Training records, and their division into records to train on and records to score.

A published task has its own splits. For your own single file, ``eval.held_out`` selects some
records with a secret key. The key stays in the run's ``private/``, so that ``dpft eval run=``
scores the same records.
"""

import hmac
import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpft.commands.ledger_account import saved_run
from dpft.config.schema import EvaluateConfig, TrainConfig
from dpft.data.rows import Check, accept_all
from dpft.data.sources import has_split, has_training_split_alone, load_examples, read_examples
from dpft.data.training_records import PackedRecords, new_key, records_fingerprint, split_held_out
from dpft.errors import InputError
from dpft.run_folder import HELD_OUT_KEY
from dpft.tasks.base import LabeledExample, Record

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """All records that were read, before any of them is skipped."""

    examples: Sequence[Record]
    units: Sequence[str] | None
    """The privacy unit of each record; None if each record is its own unit."""
    faulty: Sequence[str] = ()
    """The unit of each invalid row. Such a row is not a record but counts in sizes and rates;
    private."""
    blank: int = 0
    """Number of records whose texts are empty and whose label is learned; private."""
    cut: int = 0
    """Number of records with a text that was truncated before it was tokenized; private."""

    def only(self, places: Sequence[int]) -> "TrainingData":
        """Return only the records at the given indices."""
        units = None if self.units is None else [self.units[at] for at in places]
        if isinstance(self.examples, PackedRecords):
            return replace(self, examples=self.examples.only(places), units=units)
        return replace(self, examples=[self.examples[at] for at in places], units=units)

    @property
    def num_units(self) -> int:
        """Number of units that were read."""
        if self.units is None:
            return len(self.examples) + len(self.faulty)
        return len({*self.units, *self.faulty})


def read_early(config: TrainConfig) -> TrainingData | None:
    """Return the training records of a new run, before torch is imported.

    Invalid rows are thus reported a second after the command starts, not after the libraries are
    loaded. If there are several processes, each reads the records later. Rows of a source that is
    not local are not read early. Rows that the model must check are only validated here, and are
    read again when the model is loaded.
    """
    if config.parallel.name != "none" or config.task.effective_source != "local":
        return None
    rows = load_training_data(config)
    return None if config.task.is_checked_by_model else rows


def load_training_data(config: TrainConfig, check: Check = accept_all) -> TrainingData:
    """Return the training records, and their units if ``privacy.unit`` is a column.

    ``check`` is the model's ``Encoding.check``. Without ``check``, rows that the model cannot read
    count as records.
    """
    privacy = config.privacy
    units: list[str] = []
    faulty: list[str] = []
    blank = cut = 0
    column = privacy.unit if privacy.has_units else None

    def records() -> Iterator[Record]:
        nonlocal blank, cut
        unit_texts: dict[str, str] = {}  # Equal units share one string.
        for record, unit, is_cut in read_examples(config.task, "train", column, check):
            if record is None:
                faulty.append(unit)
                continue
            if column is not None:
                units.append(unit_texts.setdefault(unit, unit))
            if isinstance(record, LabeledExample) and not any(map(str.strip, record.texts)):
                blank += 1
            cut += is_cut
            yield record

    examples = PackedRecords(records())
    return TrainingData(
        examples=examples,
        units=None if column is None else units,
        faulty=faulty,
        blank=blank,
        cut=cut,
    )


HELD_OUT = "held_out"
"""Name of the held-out records in metrics.json, which otherwise contains the name of the split."""

NOT_EVALUATED = (
    "the data have only a training split; hold out a part of it with eval.held_out=0.1, or add"
    " another split"
)


@dataclass(frozen=True, kw_only=True)
class Division:
    """The division of a run's records; private."""

    kept: Sequence[int]
    """Indices of the records to train on."""
    scored: dict[str, list[Record]]
    """The records to score, by part of the split; empty if nothing is scored."""
    key: bytes | None = None
    """The secret key, if records were held out."""
    fingerprint: str = ""
    """Keyed hash of all records under that key."""

    @property
    def key_text(self) -> str | None:
        """Content of the file that identifies the held-out records; None if there are none."""
        return None if self.key is None else f"{self.key.hex()}\n{self.fingerprint}\n"


def divide(
    config: TrainConfig,
    data: TrainingData,
    key: bytes | None = None,
    check: Check = accept_all,
) -> Division:
    """Return the training records without the held-out records, and the records to score.

    Args:
        config: The configuration of the run.
        data: Every record of the training split, in its order.
        key: The key of a resumed run; None draws a new key.
        check: As in ``load_training_data``.

    Raises:
        InputError: Records are to be held out although there are others to score, one side is
            empty, or the evaluation split cannot be read.
    """
    if config.eval.held_out is None:
        scored = {}
        if is_unscored(config):
            logger.warning("no evaluation: %s", NOT_EVALUATED)
        elif config.eval.enabled:
            parts = config.task.parts(config.eval.split)
            scored = {part: load_examples(config.task, part, check) for part in parts}
        return Division(kept=range(len(data.examples)), scored=scored)
    if has_split(config.task, config.eval.split):
        raise InputError(
            f"eval.held_out has no use here, because the data contains a {config.eval.split} split"
            " to score. Remove the key, or provide only the training split.",
            key="eval.held_out",
            value=config.eval.held_out,
        )
    key = key or new_key()
    kept, held = _sides(data, config.eval.held_out, key)
    scored = {HELD_OUT: list(data.only(held).examples)} if config.eval.enabled else {}
    return Division(kept=kept, scored=scored, key=key, fingerprint=known_by(data, key))


def records_to_score(config: EvaluateConfig, check: Check = accept_all) -> dict[str, list[Record]]:
    """Return the records to score, by part of the split; ``check`` is as in ``load_training_data``.

    Raises:
        InputError: The records cannot be read, were held out differently, or have changed, or the
            key of the held-out records is missing.
    """
    if config.eval.held_out is None:
        parts = config.task.parts(config.eval.split)
        return {part: load_examples(config.task, part, check) for part in parts}
    if config.run is None:
        raise InputError(
            "eval.held_out needs run=RUN, the run that held the records out. To score other"
            " records, remove the key and set task.data_dir=DIR.",
            key="eval.held_out",
            value=config.eval.held_out,
        )
    trained = saved_run(config.run)
    if trained.eval.held_out != config.eval.held_out:
        raise InputError(
            f"eval.held_out must be {trained.eval.held_out} as in the run, got"
            f" {config.eval.held_out}, which selects records that the run trained on. Remove the"
            " key.",
            key="eval.held_out",
            value=config.eval.held_out,
        )
    data = load_training_data(trained.replace(task=config.task), check)
    key, before = held_out_key(Path(config.run))
    if not hmac.compare_digest(known_by(data, key), before):
        raise InputError(
            "eval.held_out needs the records of the run, in the same order and with the same"
            " templates, because otherwise it could select training records. Restore the records,"
            " or score other records with eval.held_out=null and task.data_dir=DIR.",
            key="eval.held_out",
            value=config.eval.held_out,
        )
    _, held = _sides(data, config.eval.held_out, key)
    return {HELD_OUT: list(data.only(held).examples)}


def is_unscored(config: TrainConfig) -> bool:
    """Return whether a run has only training records and no other records were requested."""
    asked = config.eval.split != config.task.eval_split or config.eval.held_out is not None
    return config.eval.enabled and not asked and has_training_split_alone(config.task)


def _sides(data: TrainingData, fraction: float, key: bytes) -> tuple[Sequence[int], Sequence[int]]:
    kept, held = split_held_out(_units(data), fraction, key)
    if not kept or not held:
        use, way = ("train on", "Lower") if not kept else ("score", "Raise")
        raise InputError(
            f"eval.held_out={fraction} leaves no record to {use}. {way} it, or use more records.",
            key="eval.held_out",
            value=fraction,
        )
    return array("q", kept), held


def _units(data: TrainingData) -> Iterable[str]:
    """Return the unit of each record; a record that is its own unit is named by its index."""
    return map(str, range(len(data.examples))) if data.units is None else data.units


def known_by(data: TrainingData, key: bytes) -> str:
    """Return a fingerprint of the records and their units, which must stay as secret as the key."""
    return records_fingerprint(data.examples, _units(data), key)


def held_out_key(run: Path) -> tuple[bytes, str]:
    """Return the key that selected a run's held-out records, and its fingerprint of all records."""
    path = run / HELD_OUT_KEY
    try:
        key, before = path.read_text(encoding="ascii").split("\n")[:2]
        return bytes.fromhex(key), before
    except (OSError, ValueError):
        raise InputError(
            f"{path} must contain the key by which records were held out, but it cannot be read."
            " Without the key, held-out records cannot be distinguished from training records.",
            key=str(path),
        ) from None
