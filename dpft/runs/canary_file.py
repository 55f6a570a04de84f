"""A run's canaries in its private folder, where ``dpft audit`` finds them."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpft.data.canaries import Canary
from dpft.errors import InputError, StateError
from dpft.files import SCHEMA_VERSION, check_version, write_json
from dpft.run_folder import CANARIES, private_audit_path
from dpft.tasks.base import Task
from dpft.tasks.image_records import LabeledImage
from dpft.tasks.records import Example, Record


def write_canaries(folder: Path, canaries: Sequence[Canary], task: Task) -> None:
    """Writes them for the owner alone, with the texts that a reader can search for."""
    entries = [
        {**asdict(canary), "included": canary.included, "texts": _texts(canary.record(task))}
        for canary in canaries
    ]
    content = {"schema_version": SCHEMA_VERSION, "canaries": entries}
    write_json(private_audit_path(folder, CANARIES), content, mode=0o600)


def read_canaries(folder: Path) -> list[Canary]:
    """Returns a run's canaries; none where it was trained without.

    Raises:
        InputError: The file is of another schema version.
        StateError: The file is damaged.
    """
    path = folder / CANARIES
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        check_version(content["schema_version"], path)
        return [_canary(entry) for entry in content["canaries"]]
    except FileNotFoundError:
        return []
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(
            f"{path} is damaged: it must hold the run's canaries; put it back as it was."
        ) from error


def _canary(entry: dict[str, Any]) -> Canary:
    return Canary(
        kind=str(entry["kind"]),
        read=tuple(map(str, entry["read"])),
        learned=tuple(map(str, entry["learned"])),
        number=int(entry["number"]),
        copies=int(entry["copies"]),
        unit=str(entry["unit"]),
    )


def _texts(record: Record) -> list[str]:
    if isinstance(record, Example):
        return [record.prompt, record.target]
    assert not isinstance(record, LabeledImage)  # canaries are words
    return list(record.texts)
