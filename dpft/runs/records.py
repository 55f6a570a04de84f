"""The training records: how many of whom there are, and how they reach the loop."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dpft.config.schema import TrainConfig
from dpft.data.collation import Layout
from dpft.data.encoding import Encoding
from dpft.data.sources import load_examples, load_with_units
from dpft.data.units import bounded_units, group_by_unit
from dpft.errors import InputError
from dpft.files import write_text
from dpft.privacy.keys import secret_key
from dpft.run_folder import UNIT_KEY, private_path
from dpft.tasks.records import Record
from dpft.training.loop import TrainingSet


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Every record that was read, before any of them is left out."""

    examples: Sequence[Record]
    units: Sequence[str] | None
    """The privacy unit of each; None: each is one of its own."""

    def only(self, places: Sequence[int]) -> "TrainingData":
        """Returns the records at some places alone."""
        units = None if self.units is None else [self.units[at] for at in places]
        return TrainingData(examples=[self.examples[at] for at in places], units=units)

    @property
    def num_units(self) -> int:
        """How many units were read."""
        return len(self.examples) if self.units is None else len(group_by_unit(self.units))


def load_training_data(config: TrainConfig) -> TrainingData:
    """Returns the training records, and whose they are where ``privacy.unit`` is a column.

    Raises:
        InputError: As ``load_examples`` and ``load_with_units``.
    """
    privacy = config.privacy
    if privacy.has_units:
        examples, units = load_with_units(config.task, "train", privacy.unit)
        return TrainingData(examples=examples, units=units)
    return TrainingData(examples=load_examples(config.task, "train"), units=None)


def make_training_set(
    config: TrainConfig,
    data: TrainingData,
    encoding: Encoding,
    device: torch.device,
    *,
    unit_key: bytes,
) -> TrainingSet:
    """Returns what the loop trains on: the records that have anything to learn, by unit.

    Whether a record is left out depends on that record alone.

    Args:
        config: Of the run.
        data: All records.
        encoding: How they become rows.
        device: Where the model is.
        unit_key: Decides which records of a unit of too many are kept.

    Raises:
        InputError: No record has anything to learn.
    """
    rows = encoding.rows(data.examples)
    usable = [row.has_label for row in rows]
    if not any(usable):
        raise InputError(
            f"the training records of task {config.task.name} must have an answer to learn, and"
            " every one of them is empty; check the task's columns and templates."
        )
    units = None
    guarantee = config.privacy.guarantee
    if data.units is not None and guarantee is not None:
        units = bounded_units(
            data.units, usable=usable, records_per_unit=guarantee.records_per_unit, key=unit_key
        )
    else:
        rows = [row for row in rows if row.has_label]
    return TrainingSet(
        examples=rows,
        micro_batch_size=config.train.most_rows,
        micro_batch_tokens=config.train.micro_batch_tokens,
        compile=config.train.compile,
        layout=training_layout(config, encoding.layout, device),
        device=device,
        precision=config.train.precision,
        units=units,
        excluded=usable.count(False),
    )


def training_layout(config: TrainConfig, layout: Layout, device: torch.device) -> Layout:
    """Returns how rows lie in a micro-batch: as in any batch, and padded as training asks for."""
    bucket = config.train.bucket(device)
    return replace(layout, pad_to_multiple_of=bucket, max_length=config.task.longest)


def unit_key(config: TrainConfig) -> bytes:
    """Returns a fresh secret key for ``make_training_set``, or the one of a test's seed."""
    return secret_key("units", config.privacy.noise_seed)


def save_unit_key(folder: Path, key: bytes) -> None:
    """Writes the key into a run's private folder."""
    write_text(private_path(folder, UNIT_KEY), key.hex() + "\n", mode=0o600)
