"""The training records as they are read, and whose they are; known before torch is imported.

A faulty row is refused a second after the command, not after the libraries that take ten: what
``read_early`` reads, the first ``load_training_data`` of the same records hands out. Canaries that
join the records are written into the run's private folder, where ``dpft audit`` finds them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dpft.config.schema import TrainConfig
from dpft.data.canaries import Canary
from dpft.data.sources import read_examples
from dpft.data.training_records import PackedRecords
from dpft.records.canaries import KeptCanaries, KeptCanary
from dpft.records.form import read_record, write_record
from dpft.run_folder import CANARIES, private_audit_path
from dpft.tasks.base import Task, TextualTask
from dpft.tasks.records import Example, LabeledExample, LabeledImage, Record


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Every record that was read, before any of them is left out."""

    examples: Sequence[Record]
    units: Sequence[str] | None
    """The privacy unit of each; None: each is one of its own."""
    faulty: Sequence[str] = ()
    """The unit of each faulty row, which is no record but counts in sizes and rates; private."""
    blank: int = 0
    """Records whose texts are empty and whose label is learned; private."""
    cut: int = 0
    """Records of which a text was cut before it was tokenized; private."""

    def only(self, places: Sequence[int]) -> "TrainingData":
        """Returns the records at some places alone."""
        units = None if self.units is None else [self.units[at] for at in places]
        if isinstance(self.examples, PackedRecords):
            return replace(self, examples=self.examples.only(places), units=units)
        return replace(self, examples=[self.examples[at] for at in places], units=units)

    @property
    def num_units(self) -> int:
        """How many units were read."""
        if self.units is None:
            return len(self.examples) + len(self.faulty)
        return len({*self.units, *self.faulty})


_early: ContextVar[list[tuple[TrainConfig, TrainingData]] | None] = ContextVar(
    "early", default=None
)


@contextmanager
def read_early(config: TrainConfig) -> Iterator[None]:
    """Reads a local training split, which the block then takes from ``load_training_data``.

    Args:
        config: Of a run that begins. Of one with several processes nothing is read: each of them
            reads for itself, and only the first one speaks.

    Raises:
        InputError: As ``load_training_data``.
    """
    if config.parallel.name != "none" or config.task.effective_source != "local":
        yield
        return
    token = _early.set([(config, load_training_data(config))])
    try:
        yield
    finally:
        _early.reset(token)


def load_training_data(config: TrainConfig) -> TrainingData:
    """Returns the training records, and whose they are where ``privacy.unit`` is a column.

    Raises:
        InputError: As ``read_examples``.
    """
    early = _early.get()
    if early and _reads_the_same(early[0][0], config):
        return early.pop()[1]
    privacy = config.privacy
    units: list[str] = []
    faulty: list[str] = []
    blank = cut = 0
    column = privacy.unit if privacy.has_units else None

    def records() -> Iterator[Record]:
        nonlocal blank, cut
        known: dict[str, str] = {}  # Equal units are one text.
        for record, unit, is_cut in read_examples(config.task, "train", column):
            if record is None:
                faulty.append(unit)
                continue
            if column is not None:
                units.append(known.setdefault(unit, unit))
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


def _reads_the_same(early: TrainConfig, config: TrainConfig) -> bool:
    """Returns whether two configurations read the same records, the length apart."""
    before, task = early.task, config.task
    if isinstance(before, TextualTask) and isinstance(task, TextualTask):
        task = replace(task, max_length=before.max_length)
    return before == task and early.privacy.unit == config.privacy.unit


def write_canaries(folder: Path, canaries: Sequence[Canary], task: Task) -> None:
    """Writes them for the owner alone, with the texts that a reader can search for."""
    kept = tuple(
        KeptCanary(**asdict(canary), included=canary.included, texts=_texts(canary.record(task)))
        for canary in canaries
    )
    path = private_audit_path(folder, CANARIES)
    write_record(path, KeptCanaries(canaries=kept), mode=0o600)


def read_canaries(folder: Path) -> list[Canary]:
    """Returns a run's canaries; none where it was trained without.

    Raises:
        InputError: The file is of another schema version.
        StateError: The file is damaged.
    """
    path = folder / CANARIES
    if not path.exists():
        return []
    return [
        Canary(
            kind=kept.kind,
            read=kept.read,
            learned=kept.learned,
            number=kept.number,
            copies=kept.copies,
            unit=kept.unit,
        )
        for kept in read_record(path, KeptCanaries).canaries
    ]


def _texts(record: Record) -> tuple[str, ...]:
    if isinstance(record, Example):
        return record.prompt, record.target
    assert not isinstance(record, LabeledImage)  # canaries are words
    return tuple(record.texts)
