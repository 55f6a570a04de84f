"""Write, find and read checkpoints, which are complete or absent.

A checkpoint is a folder under ``private/checkpoints``, written beside its final name and renamed.
Tensors are safetensors, the rest is JSON; nothing is pickled. ``state.json`` has its own checksum
and every file's. Of a model in shards every rank writes its own, and the first rank the rest
(``checkpoint_tensors``).

The secret keys are a file of their own, so that they can be deleted. A checkpoint's go when the
next checkpoint is complete, since the noise of every later step can be computed from them; the last
ones go when the run has ended. A run that goes on with its keys draws the noise it would have
drawn. Two folders that both do so, a run and its copy, would put one noise on two sums. So the key
file records the file system and the number (inode) that it has there, and the checkpoint, which is
written after it, the moment of its last change (ctime). A copy has another inode. A restored backup
may have the old one again, since file systems give numbers out anew, or be written over the old
file: but no program can set a ctime back. A second name for the file (a hard link) is no original
either. Moving a folder within a file system changes nothing. A rolled-back disk image or virtual
machine cannot be told.

``Resume`` and what stands beside it say where a run broke off, and what must be the same for its
steps to be taken once more. A step that stands in the ledger has released its noisy gradient.
Taking it again with the same noise is safe where the sum comes out bit for bit as it was, and
nowhere else: so the environment that bits depend on is written down, and a replay in another one
draws new noise and pays for it (docs/dev/design.md, rule 9).
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
    """What a run is bound to when it goes on; of a private run all but ``clipping``."""

    plan: PrivacyPlan | None = None
    """The plan in the ledger's first line."""
    clipper: tuple[ClipperChoice, ...] | None = None
    """How each phase's gradients are clipped, in the ledger's first line."""
    clipping: ClippingPlan | None = None
    """What is drawn and how it is clipped, of a run that adds no noise."""
    environment: Mapping[str, Any] | None = None
    """What the bits of a step's sum depend on."""
    promises: Mapping[str, bool] | None = None
    """Statements of the report that rest on the configuration alone."""
    run_id: str | None = None
    """What names the run in its ledger."""
    frozen: Mapping[str, str] | None = None
    """Digests, before the first step, of what is released and nothing moves."""
    ledger: KnownLedger | None = None
    """The ledger as it was then."""
    stream: Count = 0
    """How many steps were in it when the stream of noise began that the next step is in."""
    loss_scale: Mapping[str, Any] | None = None
    """Where an adapted loss scale stands."""


class CheckpointState(Versioned):
    """All of a checkpoint but its tensors and its secret keys."""

    step: Count
    """Steps that the weights had taken."""
    scheduler_step: int
    """Steps of the learning rate's schedule."""
    run: BoundRun
    """What the run is bound to."""
    shards: int | None = None
    """Into how many shards its tensors are cut; absent where they are whole."""
    keys_changed: Count | None = None
    """When the file of secret keys was last changed, in nanoseconds."""
    checksums: Mapping[str, str]
    """File to SHA-256."""
    checksum: str | None = None
    """Of all the rest of this file."""


WAY_OUT = (
    "Restore the checkpoint, or move its folder away to resume from the previous one if it was"
    " kept."
)


def read_state(path: Path, ranks: Ranks = ALONE) -> CheckpointState:
    """Return ``state.json`` once its checksum, and those of a rank's share of the files, hold.

    The generator states may be gone: they are deleted when a run has ended.

    Raises:
        InputError: It is of another schema version.
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
    """Return whether a checkpoint's file goes when the next one is complete, or the run ends.

    Such are keys, and the noise that later noise hangs together with: beside what was released,
    either would give sums of gradients away.
    """
    return name == KEYS or name.partition("-")[0].partition(".")[0] == HISTORY.partition(".")[0]


def read_history(path: Path, ranks: Ranks) -> dict[str, Tensor]:
    """Return this rank's noise of earlier steps, as ``save_checkpoint`` was given it.

    Raises:
        RunError: The checkpoint is on another machine's disk.
        StateError: The file is damaged, or gone.
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
    """Tell whether the checksums are of all files of tensors that there must be, and no others."""
    names = {name for name in state.checksums if not is_secret(name)}
    shards = 1 if state.shards is None else state.shards
    return len(names) == 2 * shards > 0 and names == {
        shard_name(name, place, shards) for name in (WEIGHTS, OPTIMIZER) for place in range(shards)
    }


def _check_file(path: Path, expected: str) -> None:
    """Hold a file against its checksum.

    Raises:
        StateError: It is gone or damaged.
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
    """What a key file says."""

    content: Mapping[str, Any]
    """What was written; secret."""
    original: bool
    """Whether it is the file that was written, and no copy of it."""


def write_key_file(path: Path, content: Mapping[str, Any]) -> int:
    """Write a new file, for its owner alone, and wait until it is on disk.

    Returns:
        When it was last changed, for ``read_key_file``, in nanoseconds.
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
    """Return what ``write_key_file`` wrote, ``changed`` what it returned; the file must be whole.

    Raises:
        InputError: It is of another schema version.
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
    """What a checkpoint says beside its tensors, once its checksums hold."""

    path: Path
    step: int
    run: BoundRun
    """What the run was bound to when it was written."""
    keys_changed: int = 0
    """When the file of secret keys was written, in nanoseconds."""
    histories: tuple[str, ...] = ()
    """Names of the files of noise that later noise hangs together with."""

    @property
    def has_keys(self) -> bool:
        """Whether the secret keys are there; they are deleted when the run has ended."""
        return (self.path / KEYS).exists()

    @property
    def has_history(self) -> bool:
        """Whether each of these files is there; they are deleted with the keys."""
        return all((self.path / name).exists() for name in self.histories)

    def read_keys(self) -> KeyFile:
        """Return the secret keys, or generator states; read anew each time, and not kept here."""
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
    """Write the state after ``step`` steps, then drops all but the newest ``keep`` checkpoints.

    The older ones that are left lose their secret keys. Every rank calls this: of a model in shards
    each writes its own, and a whole one is written by rank 0. Rank 0 alone has what the run is
    bound to, and the keys or generator states of this step. ``history`` is this rank's noise that
    later noise hangs together with; None on every rank: no noise does.

    Returns:
        The checkpoint's folder.

    Raises:
        RunError: A rank could not write; the checkpoint before is whole.
        SaidElsewhere: Another rank could not, and rank 0 says why.
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
    """Make the folder to write a checkpoint in; remove those that killed processes left."""
    partial.parent.mkdir(mode=0o700, exist_ok=True)
    sync_folder(partial.parent.parent)
    for stale in partial.parent.glob(PARTIAL_CHECKPOINT):
        shutil.rmtree(stale)
    partial.mkdir(mode=0o700)


def read_checkpoint(path: Path) -> Checkpoint:
    """Return what a checkpoint says, after holding every file against its checksum.

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
    """Put model, optimizer and schedule back to a checkpoint; return its step.

    In how many shards it was written does not matter. Every rank of a model in shards calls this,
    reads what is its own, and holds its share of the files against their checksums.

    Raises:
        InputError: It is of another version.
        StateError: A file is missing, damaged, or of another model.
        RunError: A rank cannot reach the folder.
        SaidElsewhere: So it is on another rank, and the first one says why.
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
    """Delete every secret key and generator state for good: the run has ended.

    Checkpoints that a killed process left half-written have them, too.
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
"""Of an installed package, read once: its metadata are a file."""
PACKAGES = ("numpy", "peft", "transformers")
"""Packages besides torch that compute a part of a sum."""


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """Where a run that broke off goes on from; also where one that has ended stands."""

    checkpoint: Checkpoint
    """The newest one."""
    ledger: LedgerRecord | None
    """None for a run without privacy."""

    @property
    def has_ended(self) -> bool:
        """Whether its last step is taken and its secrets are gone."""
        if self.ledger is not None:
            return self.ledger.closed
        return not self.checkpoint.has_keys

    @property
    def run_id(self) -> str | None:
        """What names a private run in its ledger."""
        return self.checkpoint.run.run_id

    def plan(self) -> PrivacyPlan:
        """Return the plan that the run was bound to.

        Raises:
            StateError: The checkpoint's is not that of the ledger, or none.
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
    """Return where the run in a folder stands.

    Raises:
        InputError: It has no checkpoint, so no step was taken; or an earlier version wrote its
            ledger.
        StateError: Its newest checkpoint or its ledger is damaged, or checkpoints, journal and
            ledger do not agree.
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
    """Return what the bits of a step's sum depend on, ready for JSON.

    ``settings`` are what moves the weights that later sums are of: method, optimizer, learning
    rate. The ranks' sums are added up in their order.
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
"""Statements of a report that rest on a configuration key alone, not on the plan, by that key."""


def promises(privacy: DifferentialPrivacy) -> dict[str, bool]:
    """Return the statements of ``PROMISES`` as the configuration makes them, ready for JSON."""
    return {
        "reproducible": privacy.noise_seed is not None,
        "show_diagnostics": privacy.show_diagnostics,
    }


def check_promises(resume_point: ResumePoint, privacy: DifferentialPrivacy) -> None:
    """Reject a run whose configuration was edited since it began, in a key of ``PROMISES``.

    Raises:
        InputError: A noise seed or shown losses were added or removed.
    """
    began, now = resume_point.checkpoint.run.promises or {}, promises(privacy)
    changed = [PROMISES[name] for name, value in now.items() if began.get(name) != value]
    if changed:
        raise InputError(
            f"resume must continue the run with its original settings, but {' and '.join(changed)}"
            " changed. Restore its config.yaml.",
            key=changed[0],
        )
