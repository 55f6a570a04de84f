"""Checkpoints: functions that write, find and read them; a checkpoint is complete or absent.

A checkpoint is a folder in ``private/checkpoints``. It is written next to its final path and then
renamed. Tensors are stored as safetensors and all other content as JSON; nothing is pickled.
``state.json`` contains its own checksum and the checksum of every other file. In a sharded model,
every rank writes its own shard, and rank 0 writes the other files (``training_state``).

The secret keys are in a separate file, so that they can be deleted. A checkpoint's keys are deleted
when the next checkpoint is complete, because the noise of every later step can be computed from
them. The last keys are deleted when the run has ended.

A run that resumes with its keys draws the same noise that it would have drawn without the
interruption. If a run and a copy of its folder both resumed, they would add the same noise to two
different sums. The key file therefore records its own file system and inode number. The checkpoint
is written after the key file and records the time of the key file's last change (ctime). A copy has
another inode. A restored backup can have the same inode, because file systems reuse inode numbers,
or because it overwrites the old file. However, no program can set a ctime back. A key file with a
second name (hard link) does not count as the original either. Moving a folder within a file system
changes neither inode nor ctime. A rolled-back disk image or virtual machine cannot be detected.

``ResumePoint`` and the functions below it describe where a run was interrupted, and what must be
unchanged to repeat its steps. A step in the ledger has released its noisy gradient. Repeating the
step with the same noise is safe only if the sum is reproduced bit for bit. The checkpoint therefore
records the environment that the bits depend on. In a different environment, a resumed run draws new
noise and counts each repeated step (docs/dev/design.md, rule 9).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dpft import __version__
from dpft.devices import device_name
from dpft.errors import InputError, StateError
from dpft.parallel.ranks import ALONE, Ranks, in_turn
from dpft.parallel.shards import ShardedModel
from dpft.privacy.journal import KnownLedger, read_run_ledger
from dpft.privacy.ledger import ClipperChoice, LedgerRecord
from dpft.privacy.noise import NOISE_SOURCE
from dpft.privacy.plan import ClippingPlan, PrivacyPlan
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.privacy.sampling import SAMPLING_SOURCE
from dpft.run_folder import (
    CHECKPOINT,
    CHECKPOINTS,
    HISTORY,
    KEYS,
    OPTIMIZER,
    PARTIAL_CHECKPOINT,
    SCHEMA_VERSION,
    STATE,
    WEIGHTS,
    check_version,
    checkpoint_name,
    shard_name,
    sync_folder,
)
from dpft.strict_model import Count, StrictModel, Versioned, as_json, read_model, write_model
from dpft.training.loop import TrainingSet
from dpft.training.training_state import (
    TrainingState,
    check_reachable,
    checksum,
    restore_scheduler,
    restore_tensors,
    write_history,
    write_tensors,
)


class BoundRun(StrictModel):
    """Values that a run is bound to when it resumes; a private run has all except ``clipping``."""

    plan: PrivacyPlan | None = None
    """The plan in the first line of the ledger."""
    clipper: tuple[ClipperChoice, ...] | None = None
    """How the gradients of each phase are clipped, from the first line of the ledger."""
    clipping: ClippingPlan | None = None
    """Sampling and clipping plan of a run that adds no noise."""
    environment: Mapping[str, Any] | None = None
    """All settings that affect the bits of a step's sum."""
    promises: Mapping[str, bool] | None = None
    """Statements of the report that depend only on the configuration."""
    run_id: str | None = None
    """Identifier of the run in its ledger."""
    frozen: Mapping[str, str] | None = None
    """Digests, before the first step, of released values that no step changes."""
    ledger: KnownLedger | None = None
    """State of the ledger when the checkpoint was written."""
    stream: Count = 0
    """Number of steps in the ledger when the noise stream of the next step began."""
    loss_scale: Mapping[str, Any] | None = None
    """State of an adaptive loss scale."""


class CheckpointState(Versioned):
    """Content of a checkpoint except its tensors and its secret keys."""

    step: Count
    """Number of steps that the weights had taken."""
    scheduler_step: int
    """Number of steps of the learning rate schedule."""
    run: BoundRun
    """Values that the run is bound to."""
    shards: int | None = None
    """Number of shards that the tensors are split into; absent if they are whole."""
    keys_changed: Count | None = None
    """Time when the file of secret keys was last changed, in nanoseconds."""
    checksums: Mapping[str, str]
    """SHA-256 of each file, by file name."""
    checksum: str | None = None
    """SHA-256 of the rest of this file."""


WAY_OUT = (
    "Restore the checkpoint, or move its folder away to resume from the previous one if it was"
    " kept."
)


def read_state(path: Path, ranks: Ranks = ALONE) -> CheckpointState:
    """Return ``state.json``, after checking its checksum and those of this rank's share of files.

    The file of keys or generator states may be missing, because it is deleted when a run has ended.

    Raises:
        InputError: The checkpoint has another schema version.
        StateError: A file is missing or damaged.
    """
    try:
        written = read_model(path / STATE, CheckpointState)
    except InputError:
        raise
    except (OSError, ValueError, StateError) as error:
        raise StateError(
            f"{path} is not a complete checkpoint: a file is truncated or missing. {WAY_OUT}"
        ) from error
    state = written.replace(checksum=None)
    if _digest(state) != written.checksum or not _names_its_files(state):
        raise _damaged(path / STATE)
    names = sorted(name for name in state.checksums if not is_secret(name))
    checked_names = [names[place] for place in in_turn(len(names), ranks)]
    if ranks.is_rank_0:
        checked_names += [
            name for name in state.checksums if is_secret(name) and (path / name).exists()
        ]
    for name in checked_names:
        _check_file(path / name, state.checksums[name])
    return state


def is_secret(name: str) -> bool:
    """Return whether a file is deleted when the next checkpoint is complete or the run ends.

    These files contain keys, or noise that later noise is correlated with. Together with the
    released values, either would reveal sums of gradients.
    """
    return name == KEYS or name.partition("-")[0].partition(".")[0] == HISTORY.partition(".")[0]


def read_history(path: Path, ranks: Ranks) -> dict[str, Tensor]:
    """Return this rank's noise of earlier steps, as passed to ``save_checkpoint``.

    Raises:
        RunError: The checkpoint is on the disk of another machine.
        StateError: The file is damaged or missing.
    """
    if ranks.size > 1:
        check_reachable(path, ranks)
    name = shard_name(HISTORY, ranks.rank, ranks.size)
    expected = read_model(path / STATE, CheckpointState).checksums.get(name)
    if expected is None:
        return {}
    _check_file(path / name, expected)
    return load_file(path / name)


def _names_its_files(state: CheckpointState) -> bool:
    """Return whether the checksums cover exactly the tensor files that must exist."""
    names = {name for name in state.checksums if not is_secret(name)}
    shards = 1 if state.shards is None else state.shards
    return len(names) == 2 * shards > 0 and names == {
        shard_name(name, place, shards) for name in (WEIGHTS, OPTIMIZER) for place in range(shards)
    }


def _check_file(path: Path, expected: str) -> None:
    """Compare a file with its checksum.

    Raises:
        StateError: The file is missing or damaged.
    """
    try:
        actual = checksum(path)
    except FileNotFoundError as error:
        raise StateError(f"{path}, a file of a checkpoint, is missing. {WAY_OUT}") from error
    if actual != expected:
        raise _damaged(path)


def _damaged(path: Path) -> StateError:
    return StateError(f"{path} is damaged: its checksum differs from the recorded one. {WAY_OUT}")


def _digest(state: CheckpointState) -> str:
    return hashlib.sha256(json.dumps(as_json(state), sort_keys=True).encode()).hexdigest()


_PLACE = "file"


@dataclass(frozen=True, kw_only=True)
class KeyFile:
    """Content of a key file, and whether the file is the original or a copy."""

    content: Mapping[str, Any]
    """The written content; secret."""
    original: bool
    """Whether the file is the one that was written, not a copy."""


def write_key_file(path: Path, content: Mapping[str, Any]) -> int:
    """Write a new file that only its owner can read, and wait until it is on disk.

    Returns:
        Time of the file's last change in nanoseconds, for ``read_key_file``.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        place = _place(os.fstat(file.fileno()))
        whole = {"schema_version": SCHEMA_VERSION, _PLACE: place, **content}
        file.write(json.dumps(whole, indent=2, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_ctime_ns


def read_key_file(path: Path, *, changed: int) -> KeyFile:
    """Return the content that ``write_key_file`` wrote; the file must be complete.

    Args:
        path: Path of the key file.
        changed: The time that ``write_key_file`` returned.

    Raises:
        InputError: The file has another schema version.
    """
    with path.open(encoding="utf-8") as file:
        written = dict(json.load(file))
        status = os.fstat(file.fileno())
    check_version(written.pop("schema_version"), path)
    in_place = written.pop(_PLACE, None) == _place(status)
    untouched = status.st_ctime_ns == changed and status.st_nlink == 1
    return KeyFile(content=written, original=in_place and untouched)


def _place(status: os.stat_result) -> dict[str, int]:
    return {"device": status.st_dev, "inode": status.st_ino}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Content of a checkpoint except its tensors, after its checksums were verified."""

    path: Path
    step: int
    run: BoundRun
    """Values that must be the same when the run resumes from this checkpoint."""
    keys_changed: int = 0
    """Time when the file of secret keys was written, in nanoseconds."""
    histories: tuple[str, ...] = ()
    """Names of the files with earlier noise, with which later noise is correlated."""

    @property
    def has_keys(self) -> bool:
        """Whether the secret keys exist; they are deleted when the run has ended."""
        return (self.path / KEYS).exists()

    @property
    def has_history(self) -> bool:
        """Whether each file in ``histories`` exists; they are deleted together with the keys."""
        return all((self.path / name).exists() for name in self.histories)

    def read_keys(self) -> KeyFile:
        """Read the secret keys or generator states from disk; this object does not store them."""
        return read_key_file(self.path / KEYS, changed=self.keys_changed)


def save_checkpoint(
    folder: Path,
    step: int,
    training_state: TrainingState,
    *,
    run: BoundRun | None = None,
    generators: Mapping[str, Any] | None = None,
    keep: int = 1,
    shards: ShardedModel | None = None,
    history: Mapping[str, Tensor] | None = None,
    ranks: Ranks = ALONE,
) -> Path:
    """Write the state after ``step`` steps; keep only the newest ``keep`` checkpoints.

    The secret keys of the older remaining checkpoints are deleted. Every rank calls this function.
    In a sharded model each rank writes its own shard; otherwise rank 0 writes the model.

    Args:
        folder: The folder for checkpoints, ``private/checkpoints``.
        step: Number of steps that the weights have taken.
        training_state: The state to save.
        run: Values that must be unchanged when the run resumes; only rank 0 has them.
        generators: The keys or generator states of this step; only rank 0 has them.
        keep: Number of checkpoints to keep.
        shards: The sharded model; None if the model is not sharded.
        history: This rank's earlier noise with which later noise is correlated; None on every rank
            if the noise of different steps is independent.
        ranks: All processes of the run.

    Returns:
        The folder of the checkpoint.

    Raises:
        RunError: A rank could not write; the previous checkpoint is complete.
        SaidElsewhere: Another rank could not write, and rank 0 reports the error.
    """
    ranks = ranks if shards is None else shards.ranks
    target = folder / checkpoint_name(step)
    partial = target.with_name(f".{target.name}.partial")
    ranks.on_rank_0(_make_empty, partial)
    if shards is None:
        checksums = ranks.on_rank_0(write_tensors, partial, training_state, None) or {}
    else:
        checksums = write_tensors(partial, training_state, shards)
    if history is not None:
        checksums |= write_history(partial, history, ranks)

    def complete() -> None:
        keys_changed = 0
        if generators is not None:
            keys_changed = write_key_file(partial / KEYS, generators)
            checksums[KEYS] = checksum(partial / KEYS)
        state = CheckpointState(
            step=step,
            scheduler_step=training_state.scheduler.last_epoch,
            run=run or BoundRun(),
            shards=1 if shards is None else shards.grid.shard_size,
            keys_changed=keys_changed,
            checksums=checksums,
        )
        write_model(partial / STATE, state.replace(checksum=_digest(state)), mode=0o600)
        sync_folder(partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        sync_folder(target.parent)
        kept = checkpoints(folder)
        for old in kept[:-1]:
            _delete_keys(old)
        for old in kept[:-keep]:
            shutil.rmtree(old)

    ranks.on_rank_0(complete)
    return target


def _make_empty(partial: Path) -> None:
    """Create an empty folder for a new checkpoint; remove unfinished ones of killed processes."""
    partial.parent.mkdir(mode=0o700, exist_ok=True)
    sync_folder(partial.parent.parent)
    for stale in partial.parent.glob(PARTIAL_CHECKPOINT):
        shutil.rmtree(stale)
    partial.mkdir(mode=0o700)


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the content of a checkpoint after comparing every file with its checksum.

    Raises:
        StateError: A file is missing or damaged.
    """
    state = read_state(path)
    return Checkpoint(
        path=path,
        step=state.step,
        run=state.run,
        keys_changed=state.keys_changed or 0,
        histories=tuple(name for name in state.checksums if is_secret(name) and name != KEYS),
    )


def restore_checkpoint(
    path: Path, training_state: TrainingState, *, shards: ShardedModel | None = None
) -> int:
    """Restore model, optimizer and schedule from a checkpoint; return its step.

    The checkpoint may have been written with any number of shards. Every rank of a sharded model
    calls this function. Each rank reads its own part, and checks its share of the files against
    their checksums.

    Raises:
        InputError: The checkpoint has another schema version.
        StateError: A file is missing, damaged, or belongs to another model.
        RunError: A rank cannot access the folder.
        SaidElsewhere: Another rank failed, and rank 0 reports the error.
    """
    ranks = ALONE if shards is None else shards.ranks
    with ranks.failing_together():
        if ranks.size > 1:
            check_reachable(path, ranks)
        state = read_state(path, ranks)
    with ranks.failing_together():
        restore_tensors(path, training_state, state.shards or 1)
        restore_scheduler(training_state, state.scheduler_step)
    return state.step


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in ``private/checkpoints``, oldest first."""
    return sorted(folder.glob(CHECKPOINT)) if folder.is_dir() else []


def delete_generator_states(folder: Path) -> None:
    """Delete all secret keys and generator states permanently, after the run has ended.

    Partial checkpoints of killed processes contain secrets too, and are removed as well.
    """
    for partial in folder.glob(PARTIAL_CHECKPOINT):
        shutil.rmtree(partial)
    for checkpoint in checkpoints(folder):
        _delete_keys(checkpoint)


def _delete_keys(checkpoint: Path) -> None:
    for path in list(checkpoint.iterdir()):
        if is_secret(path.name):
            path.unlink(missing_ok=True)
    sync_folder(checkpoint)


version = cache(metadata.version)
"""Return the version of an installed package; cached, because it is read from a metadata file."""
PACKAGES = ("numpy", "peft", "transformers")
"""Packages other than torch that affect the computation of a sum."""


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """The point from which an interrupted run resumes; also the final state of a finished run."""

    checkpoint: Checkpoint
    """The newest checkpoint."""
    ledger: LedgerRecord | None
    """The ledger; None for a run without privacy."""

    @property
    def has_ended(self) -> bool:
        """Whether the last step of the run is taken and its secrets are deleted."""
        if self.ledger is not None:
            return self.ledger.closed
        return not self.checkpoint.has_keys

    @property
    def run_id(self) -> str | None:
        """Identifier of a private run in its ledger."""
        return self.checkpoint.run.run_id

    def plan(self) -> PrivacyPlan:
        """Return the plan that the run followed, and must still follow when it resumes.

        Raises:
            StateError: The checkpoint has no plan, or its plan differs from the plan in the ledger.
        """
        plan = self.checkpoint.run.plan
        bound = None if self.ledger is None else self.ledger.plan
        if plan is None or bound not in (None, plan):
            raise StateError(
                f"{self.checkpoint.path} must have the plan of the ledger's first line, but the"
                " two differ because one of them was edited. Restore it.",
            )
        return plan


def find_resume_point(folder: Path) -> ResumePoint:
    """Return the point from which the run in a folder resumes.

    Raises:
        InputError: The folder has no checkpoint, so no step was taken; or an earlier version wrote
            its ledger.
        StateError: The newest checkpoint or the ledger is damaged, or checkpoints, replay log and
            ledger do not match.
    """
    complete_checkpoints = checkpoints(folder / CHECKPOINTS)
    if not complete_checkpoints:
        raise InputError(
            f"resume must be the folder of a run that has taken a step, but {str(folder)!r} has no"
            " checkpoint. Start it again with hydra.run.dir=DIR.",
            key="resume",
            value=str(folder),
        )
    checkpoint = read_checkpoint(complete_checkpoints[-1])
    return ResumePoint(checkpoint=checkpoint, ledger=read_run_ledger(folder))


def environment(
    training_set: TrainingSet,
    *,
    engine: str,
    precision: str = "fp32",
    settings: Sequence[Any] = (),
    ranks: Ranks = ALONE,
    shards: ShardedModel | None = None,
) -> dict[str, Any]:
    """Return all settings that affect the bits of a step's sum, as values for JSON.

    ``settings`` are the method, the optimizer and the learning rate, which determine the weights of
    later steps. The sums of the ranks are added in the order of the ranks.
    """
    device = training_set.device
    sharding = {} if shards is None else {"sharding": shards.sharding}
    return {
        "device": f"{device.type} {device_name(device)}".strip(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "dpft": __version__,
        "engine": engine,
        "micro_batch_size": training_set.micro_batch_size,
        "micro_batch_tokens": training_set.micro_batch_tokens,
        "noise": NOISE_SOURCE,
        "padded_to": training_set.layout.pad_to_multiple_of,
        "packages": {name: version(name) for name in PACKAGES},
        "precision": precision,
        "processes": ranks.described | sharding,
        "sampling": SAMPLING_SOURCE,
        "settings": hashlib.sha256(repr(settings).encode()).hexdigest(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


PROMISES = {
    "reproducible": "privacy.noise_seed",
    "show_diagnostics": "privacy.show_diagnostics",
}
"""Statements of a report that do not depend on the plan, each with the one configuration key that
determines it."""


def promises(privacy: DifferentialPrivacy) -> dict[str, bool]:
    """Return the statements of ``PROMISES`` for a configuration, as values for JSON."""
    return {
        "reproducible": privacy.noise_seed is not None,
        "show_diagnostics": privacy.show_diagnostics,
    }


def check_promises(resume_point: ResumePoint, privacy: DifferentialPrivacy) -> None:
    """Reject a run if a configuration key of ``PROMISES`` was edited since the run began.

    Raises:
        InputError: A noise seed was added or removed, or ``privacy.show_diagnostics`` changed.
    """
    began, now = resume_point.checkpoint.run.promises or {}, promises(privacy)
    changed = [PROMISES[name] for name, value in now.items() if began.get(name) != value]
    if changed:
        raise InputError(
            f"resume must continue the run with its original settings, but {' and '.join(changed)}"
            " changed. Restore its config.yaml.",
            key=changed[0],
        )
