"""A run's canaries in its private folder, where ``dpft audit`` finds them."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dpft.data.canaries import Canary
from dpft.records.canaries import KeptCanaries, KeptCanary
from dpft.records.form import read_record, write_record
from dpft.run_folder import CANARIES, private_audit_path
from dpft.tasks.base import Task
from dpft.tasks.image_records import LabeledImage
from dpft.tasks.records import Example, Record


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
