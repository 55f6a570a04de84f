"""Checkpoints: all of a run's state between two steps, whole or absent.

A checkpoint is a folder under ``private/checkpoints``, written beside its final name and renamed.
Tensors are safetensors, the rest is JSON; nothing is pickled. The secret keys are a file of their
own, so that they can be deleted. A checkpoint's go when the next checkpoint is complete, since the
noise of every later step can be computed from them; the last ones go when the run has ended.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dpft.errors import InputError, RunError, StateError
from dpft.files import SCHEMA_VERSION, check_version, sync_folder, write_json
from dpft.run_folder import (
    CHECKPOINT,
    KEYS,
    OPTIMIZER,
    PARTIAL_CHECKPOINT,
    STATE,
    WEIGHTS,
    checkpoint_name,
)
from dpft.training.key_file import KeyFile, read_key_file, write_key_file
from dpft.training.training_state import (
    TrainingState,
    model_state,
    optimizer_state,
    restore_optimizer,
    restore_scheduler,
)

WAY_OUT = (
    "put the checkpoint back as it was, or move its folder away, to go on from the one before it if"
    " one is kept"
)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a checkpoint says beside its tensors, once its checksums hold."""

    path: Path
    step: int
    run: Mapping[str, Any]
    """What the run was bound to when it was written, ready for JSON."""
    keys_changed: int = 0
    """When the file of secret keys was written, in nanoseconds."""

    @property
    def has_keys(self) -> bool:
        """Whether the secret keys are there; they are deleted when the run has ended."""
        return (self.path / KEYS).exists()

    def read_keys(self) -> KeyFile:
        """Returns the secret keys, or generator states; read anew each time, and not kept here."""
        return read_key_file(self.path / KEYS, changed=self.keys_changed)


def save_checkpoint(
    folder: Path,
    step: int,
    training_state: TrainingState,
    *,
    run: Mapping[str, Any] | None = None,
    generators: Mapping[str, Any] | None = None,
    keep: int = 1,
) -> Path:
    """Writes the state after ``step`` steps, then drops all but the newest ``keep`` checkpoints.

    The older ones that are left lose their secret keys.

    Args:
        folder: The run's ``private/checkpoints``; made if need be.
        step: Steps taken; 0 before the first.
        training_state: Model, optimizer and schedule.
        run: What the run is bound to: plan, environment, lines and head of the ledger.
        generators: Secret keys or generator states, of this step and not of an earlier one.
        keep: Checkpoints to leave.

    Returns:
        The checkpoint's folder.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)
    target = folder / checkpoint_name(step)
    partial = _empty_partial(target)
    _save_tensors(partial / WEIGHTS, model_state(training_state.model))
    _save_tensors(partial / OPTIMIZER, optimizer_state(training_state))
    files, keys_changed = [WEIGHTS, OPTIMIZER], 0
    if generators is not None:
        keys_changed = write_key_file(partial / KEYS, generators)
        files.append(KEYS)
    state: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "step": step,
        "scheduler_step": training_state.scheduler.last_epoch,
        "run": dict(run or {}),
        "keys_changed": keys_changed,
        "checksums": {name: _checksum(partial / name) for name in files},
    }
    write_json(partial / STATE, {**state, "checksum": _digest(state)}, mode=0o600)
    _put_in_place(partial, target)
    _drop_older(folder, keep)
    return target


def _empty_partial(target: Path) -> Path:
    """Makes the folder to write a checkpoint in; removes those that killed processes left."""
    for stale in target.parent.glob(PARTIAL_CHECKPOINT):
        shutil.rmtree(stale)
    partial = target.with_name(f".{target.name}.partial")
    partial.mkdir(mode=0o700)
    return partial


def _put_in_place(partial: Path, target: Path) -> None:
    """Gives a complete checkpoint its name; it is on the disk before, and its name afterwards."""
    sync_folder(partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    sync_folder(target.parent)


def read_checkpoint(path: Path) -> Checkpoint:
    """Returns what a checkpoint says, after holding every file against its checksum.

    Raises:
        StateError: A file is missing or damaged.
    """
    state = _read_state(path)
    changed = int(state.get("keys_changed", 0))
    return Checkpoint(path=path, step=int(state["step"]), run=state["run"], keys_changed=changed)


def restore_checkpoint(path: Path, training_state: TrainingState) -> int:
    """Puts model, optimizer and schedule back to a checkpoint; returns its step.

    Raises:
        StateError: A file is missing, damaged, or of another model.
    """
    state = _read_state(path)
    weights, moments = load_file(path / WEIGHTS), load_file(path / OPTIMIZER)
    own = model_state(training_state.model)
    if {n: t.shape for n, t in own.items()} != {n: t.shape for n, t in weights.items()}:
        raise StateError(
            f"{path} is a checkpoint of another model; put the model that the run began with back."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])
    restore_optimizer(training_state, moments)
    restore_scheduler(training_state, int(state["scheduler_step"]))
    return int(state["step"])


def checkpoints(folder: Path) -> list[Path]:
    """Returns the complete checkpoints in ``private/checkpoints``, oldest first."""
    return sorted(folder.glob(CHECKPOINT)) if folder.is_dir() else []


def delete_generator_states(folder: Path) -> None:
    """Deletes every secret key and generator state for good: the run has ended.

    Checkpoints that a killed process left half-written have them, too.
    """
    for partial in folder.glob(PARTIAL_CHECKPOINT):
        shutil.rmtree(partial)
    for checkpoint in checkpoints(folder):
        _delete_keys(checkpoint)


def _drop_older(folder: Path, keep: int) -> None:
    """Deletes all but the newest ``keep`` checkpoints, and the keys of all but the newest one."""
    complete = checkpoints(folder)
    for old in complete[:-1]:
        _delete_keys(old)
    for old in complete[:-keep]:
        shutil.rmtree(old)


def _delete_keys(checkpoint: Path) -> None:
    (checkpoint / KEYS).unlink(missing_ok=True)
    sync_folder(checkpoint)


def _read_state(path: Path) -> dict[str, Any]:
    """Returns state.json after checking its own checksum and those of the other files.

    The generator states may be gone: they are deleted when a run has ended.

    Raises:
        InputError: It is of another schema version.
        StateError: A file is missing or damaged.
    """
    try:
        state: dict[str, Any] = json.loads((path / STATE).read_text(encoding="utf-8"))
        check_version(state["schema_version"], path / STATE)
        known = state.pop("checksum")
        present = [n for n in state["checksums"] if n != KEYS or (path / n).exists()]
        actual = {name: _checksum(path / name) for name in present}
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(
            f"{path} is not a complete checkpoint: a file is cut or gone; {WAY_OUT}."
        ) from error
    if _digest(state) != known:
        raise _damaged(path / STATE)
    for name, checksum in actual.items():
        if checksum != state["checksums"][name]:
            raise _damaged(path / name)
    return state


def _damaged(path: Path) -> StateError:
    return StateError(f"{path} is damaged: its checksum is not the recorded one; {WAY_OUT}.")


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors to disk.

    Raises:
        RunError: The disk is full, or the folder may not be written to.
    """
    written = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(written, path)
    except SafetensorError as error:
        raise RunError(
            f"{path} could not be written ({error}); a checkpoint before it is whole. Make room,"
            " then go on with the run, or begin it anew if it had none."
        ) from None
    path.chmod(0o600)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
