"""What a checkpoint says of itself: ``state.json``, with its own checksum and every file's."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpft.errors import InputError, StateError
from dpft.files import SCHEMA_VERSION, check_version, write_json
from dpft.parallel.ranks import ALONE, Ranks
from dpft.parallel.shares import in_turn
from dpft.run_folder import KEYS, OPTIMIZER, STATE, WEIGHTS, shard_name
from dpft.training.tensor_files import checksum

WAY_OUT = (
    "put the checkpoint back as it was, or move its folder away, to go on from the one before it if"
    " one is kept"
)


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Writes ``state.json``, the last file of a checkpoint."""
    versioned = {"schema_version": SCHEMA_VERSION, **state}
    write_json(folder / STATE, {**versioned, "checksum": _digest(versioned)}, mode=0o600)


def read_state(path: Path, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Returns ``state.json`` once its checksum, and those of a rank's share of the files, hold.

    The generator states may be gone: they are deleted when a run has ended.

    Raises:
        InputError: It is of another schema version.
        StateError: A file is missing or damaged.
    """
    try:
        state: dict[str, Any] = json.loads((path / STATE).read_text(encoding="utf-8"))
        check_version(state["schema_version"], path / STATE)
        known = state.pop("checksum")
        if _digest(state) != known or not _names_its_files(state):
            raise _damaged(path / STATE)
        names = sorted(n for n in state["checksums"] if n != KEYS)
        own = [names[place] for place in in_turn(len(names), ranks)]
        if ranks.is_first and KEYS in state["checksums"] and (path / KEYS).exists():
            own.append(KEYS)
        for name in own:
            _check_file(path / name, state["checksums"][name])
    except (InputError, StateError):
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(
            f"{path} is not a complete checkpoint: a file is cut or gone; {WAY_OUT}."
        ) from error
    return state


def _names_its_files(state: Mapping[str, Any]) -> bool:
    """Tells whether the checksums are of all files of tensors that there must be, and no others."""
    names = {name for name in state["checksums"] if name != KEYS}
    shards = int(state.get("shards", 1))
    return len(names) == 2 * shards > 0 and names == {
        shard_name(name, place, shards) for name in (WEIGHTS, OPTIMIZER) for place in range(shards)
    }


def _check_file(path: Path, known: str) -> None:
    """Holds a file against its checksum.

    Raises:
        StateError: It is gone or damaged.
    """
    try:
        actual = checksum(path)
    except FileNotFoundError as error:
        raise StateError(f"{path} is gone, a file of a checkpoint; {WAY_OUT}.") from error
    if actual != known:
        raise _damaged(path)


def _damaged(path: Path) -> StateError:
    return StateError(f"{path} is damaged: its checksum is not the recorded one; {WAY_OUT}.")


def _digest(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
