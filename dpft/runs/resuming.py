"""``dpft train resume=RUN`` and restarted processes: what a run that goes on is bound to.

Everything that epsilon rests on stays as it was: task, model, method, privacy, the steps and the
records. What changes speed alone may be set anew; where it changes bits, steps are not replayed
(``dpft.training.resume``).

Processes that torchrun or Slurm start anew with the same words resume their run. torchrun's agent
keeps the run's folder for the processes that it restarts. Whoever reaches the agent's port can
write there, without a password: so the word is believed only where it leads to a folder of this
user's, and a run is resumed only if it was begun by the very same words. A job that Slurm requeues
keeps its name and its folder: its run goes on where a job of that name began it, in a folder of
this user's, by the very same words. A second start by hand has another name, or none.
"""

import hashlib
import hmac
import json
import os
import secrets as entropy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from dpft.config.keys import copy_key, plain
from dpft.config.load import from_values, load_saved
from dpft.config.schema import POLYMORPHIC, TrainCommand, TrainConfig
from dpft.data.raw_rows import held_splits
from dpft.data.token_rows import fingerprint
from dpft.errors import DpftError, InputError, StateError
from dpft.files import refuse_links
from dpft.models.source import ModelConfig
from dpft.parallel.parallel_config import world
from dpft.parallel.processes import is_restarted, remember, remembered
from dpft.parallel.submitted import submitted_job
from dpft.privacy.mechanisms.base import Chosen, Mechanism, MechanismConfig
from dpft.privacy.plan import PrivacyPlan, write_plan
from dpft.privacy.planning import make_plan
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.records.form import read_record, write_record
from dpft.records.kept import Fingerprint
from dpft.reports.run_record import read_own_evaluations
from dpft.run_folder import (
    AUDIT_KEY,
    BASE_MODEL,
    CHECKPOINTS,
    CONFIGURATION,
    FINGERPRINT,
    HELD_OUT_KEY,
    SYNTHESIS,
    TUNING,
    UNIT_KEY,
    is_base_model,
    private_path,
)
from dpft.runs.composition import spent_before, tokenizer_of
from dpft.runs.exit_codes import say
from dpft.runs.folder import has_begun, read_begun
from dpft.runs.held_out import held_out_key
from dpft.runs.run_plan import RunPlan, method_phases, plan_without_noise, public_size
from dpft.runs.witnessing import refuse_witness_of_file
from dpft.training.checkpoint import checkpoints
from dpft.training.loop import TrainingSet
from dpft.training.resume import ResumePoint

MAY_CHANGE = (
    *("train.device", "train.num_threads", "train.micro_batch_size", "train.precision"),
    *("train.micro_batch_tokens", "train.pad_to_multiple_of", "train.compile"),
    "train.fused_head",
    *("train.checkpoint_every", "train.keep", "privacy.engine", "privacy.clipper_memory_mb"),
    *("privacy.resume_overspend", "privacy.witness", "tracking", "parallel"),
)
"""Keys that a run may go on with otherwise; besides those of ``SECTIONS``."""
SECTIONS = ("eval", "decode", "metrics", "tracking", "parallel")


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """A run's keys, from its private folder."""

    unit_key: bytes
    held_out_key: bytes | None
    audit_key: bytes
    """Of which canaries and their coins are made."""


def resumed_configuration(
    folder: str, composed: Mapping[str, Any], overridden: Iterable[str]
) -> TrainCommand:
    """Returns the configuration of a run that goes on, with what may change.

    Args:
        folder: The run's.
        composed: What the command line composes to, as plain values.
        overridden: Dotted keys of ``composed`` that take the place of the run's own.

    Raises:
        InputError: There is no such run, it has a symbolic link in its folder, or an override
            changes what it is bound to.
    """
    refuse_links(Path(folder))
    if (Path(folder) / TUNING).exists():
        raise InputError(
            f"resume must be the folder of a run, got {folder!r}, which is of dpft tune; go on with"
            f" it by dpft tune resume={folder}."
        )
    path = Path(folder) / CONFIGURATION
    if not path.is_file():
        raise InputError(
            f"resume must be the folder of a dpft run, got {folder!r}, which has no"
            f" {CONFIGURATION}; give the folder that the run named, such as outputs/DATE/TIME."
        )
    config = load_saved(path, TrainConfig, polymorphic=POLYMORPHIC)
    saved = plain(replace(config, model=kept_here(config.model, Path(folder))))
    refuse_witness_of_file(saved["privacy"], given=False)
    for key in overridden:
        if key.partition(".")[0] in ("resume", "launch"):
            continue
        _check_may_change(key, saved)
        copy_key(key.split("."), composed, saved)
    merged = {**saved, "resume": folder}
    if "launch" in composed:
        merged["launch"] = composed["launch"]
    return from_values(merged, TrainCommand, polymorphic=POLYMORPHIC)


def kept_here(model: ModelConfig, folder: Path) -> ModelConfig:
    """Returns a model that a run keeps, at the path it has now: the folder may have been moved.

    Args:
        model: A run's; any other is returned as it is.
        folder: The run's, or the search's.
    """
    kept = folder / BASE_MODEL
    is_kept = is_base_model(model.path or "") and kept.is_dir()
    return replace(model, path=str(kept)) if is_kept else model


def restored_plan(
    config: TrainConfig, resume_point: ResumePoint, count_units: Callable[[], int]
) -> RunPlan:
    """Returns the plan that a run was bound to, once its configuration is known to say the same.

    The noise multiplier is the one that was calibrated then, on whatever machine.

    Raises:
        InputError: The configuration says otherwise, as one that was edited does.
    """
    size = public_size(config, count_units)
    steps = config.train.planned_steps(size.num_examples, of=size.noun)
    phases = method_phases(config, steps, size.num_examples)
    guarantee, began = config.privacy.guarantee, resume_point.checkpoint.run
    if (guarantee is None) != (began.plan is None):
        name = "none" if began.plan is None else "dp"
        _refuse_edited(f"privacy={name}, as the run began", config.privacy.name)
    if guarantee is None:
        plan = plan_without_noise(config, size, steps, phases)
        clipping = None if plan.unnoised is None else write_plan(plan.unnoised)
        if json.loads(json.dumps(clipping)) != began.clipping:
            _refuse_edited(
                "the draws and the clipping that the run began with",
                f"others (privacy.max_grad_norm={getattr(config.privacy, 'max_grad_norm', None)})",
            )
        return plan
    bound = resume_point.plan()
    own = make_plan(
        replace(guarantee, eps=None, total_eps=None, noise_multiplier=bound.noise_multiplier),
        num_examples=size.num_examples,
        expected_batch_size=config.train.batch_size(size.num_examples),
        phases=phases,
        record=config.task.unit_definition,
        delta_rule=config.task.default_delta,
        tokenizer=spent_before(tokenizer_of(config)),
        mechanism=_of_plan(config.mechanism, bound.mechanism),
    )
    _check_asked(guarantee, bound)
    if replace(bound, calibration=None, delta_source=own.delta_source) != own:
        changed = [key for key, value in vars(own).items() if value != getattr(bound, key)]
        names = ", ".join(key for key in changed if key != "calibration")
        _refuse_edited("the plan that the run is bound to", f"another {names}")
    return RunPlan(size=size, steps=steps, phases=phases, privacy=bound)


def _of_plan(config: MechanismConfig, bound: Mechanism) -> MechanismConfig:
    """Returns what chooses the mechanism of a plan: another machine may round it apart.

    Raises:
        InputError: The configuration is of another one.
    """
    same = type(bound) is config.makes
    if not same or (config.is_settled and config.settled(bound) != config):
        _refuse_edited(f"the mechanism of its plan, {bound.name}", f"{config}")
    return Chosen(name=bound.name, mechanism=bound)


def _check_asked(guarantee: DifferentialPrivacy, bound: PrivacyPlan) -> None:
    """Refuses an epsilon or a noise multiplier that was edited since the noise was calibrated.

    Raises:
        InputError: One was.
    """
    calibration = bound.calibration
    asked = None if calibration is None else calibration.target
    if asked is not None and guarantee.eps != asked:
        _refuse_edited(f"privacy.eps={asked:g}, which the run began with", f"{guarantee.eps}")
    given = guarantee.noise_multiplier
    if given is not None and given != bound.noise_multiplier:
        expected = f"privacy.noise_multiplier={bound.noise_multiplier:g}, which the run began with"
        _refuse_edited(expected, f"{given:g}")


def _refuse_edited(expected: str, got: str) -> NoReturn:
    raise InputError(
        f"resume must go on with {expected}, got {got}; put {CONFIGURATION} and the records back as"
        " they were, or begin a new run."
    )


def read_secrets(folder: Path) -> Secrets:
    """Returns a run's keys.

    Raises:
        StateError: One cannot be read.
    """
    unit = _read_key(folder / UNIT_KEY)
    held_out = held_out_key(folder)[0] if (folder / HELD_OUT_KEY).exists() else None
    audit = _read_key(folder / AUDIT_KEY)
    return Secrets(unit_key=unit or b"", held_out_key=held_out, audit_key=audit or b"")


def save_fingerprint(folder: Path, training_set: TrainingSet) -> None:
    """Writes, for the owner alone, by what the run will know its records again."""
    key = entropy.token_bytes(32)
    known = fingerprint(training_set.examples, training_set.units, key)
    kept = Fingerprint(key=key.hex(), hmac=known)
    write_record(private_path(folder, FINGERPRINT), kept, mode=0o600)


def same_records(folder: Path, training_set: TrainingSet) -> None:
    """Refuses to go on with other records than the run began with.

    Raises:
        InputError: They are others.
        StateError: The fingerprint cannot be read.
    """
    path = folder / FINGERPRINT
    try:
        known = read_record(path, Fingerprint)
        key = bytes.fromhex(known.key)
    except (OSError, ValueError, DpftError) as error:
        raise StateError(
            f"{path} cannot be read, so that these records cannot be told from others; put it back"
            " as it was, or begin a new run."
        ) from error
    if not hmac.compare_digest(
        fingerprint(training_set.examples, training_set.units, key), known.hmac
    ):
        raise InputError(
            "resume must go on with the training records that the run began with, got others; put"
            " them back as they were, or begin a new run."
        )


def has_scores(folder: Path, stage: str) -> bool:
    """Returns whether scores of that stage are there, those of private splits in private/."""
    entries = [entry for entry in read_own_evaluations(folder) if entry.stage == stage]
    return bool(entries) and all(entry.examples is not None for entry in entries)


@contextmanager
def hint_of_resume(folder: Path) -> Iterator[None]:
    """Says, when the block breaks off, how to go on with the run or the search in a folder.

    It says nothing where there is nothing to go on, nor where the folder was refused as corrupted:
    the refusal says what to do.
    """
    try:
        yield
    except StateError:
        raise
    except BaseException:
        command = "tune" if (folder / TUNING).exists() else "train"
        if command == "tune" or checkpoints(folder / CHECKPOINTS):
            here = Path.cwd()
            short = folder.relative_to(here) if folder.is_relative_to(here) else folder
            say(f"to go on: {_way_to_go_on(command, str(short))}")
        raise


def _way_to_go_on(command: str, folder: str) -> str:
    above = Path(folder).parent
    if (above / SYNTHESIS).exists():
        return f"dpft synthesize resume={above}"
    if held_splits():
        return f"dpft.{command}(['resume={folder}'], rows=...)"
    there = world()
    if there is None or there.size == 1:
        return f"dpft {command} resume={folder}"
    if there.on_one_node:
        return f"dpft train resume={folder} launch=local launch.processes={there.size}"
    if submitted_job() is not None:
        return (
            f"dpft train --multirun resume={folder}, with hydra/launcher and hydra.launcher.KEY as"
            " before; a requeued job does so by itself"
        )
    return f"torchrun, as before, -m dpft train resume={folder}"


def _check_may_change(key: str, saved: dict[str, Any]) -> None:
    section = key.partition(".")[0]
    if key in MAY_CHANGE or (section in SECTIONS and "." in key):
        if key.startswith("privacy.") and not _has_privacy_key(key, saved["privacy"]):
            raise InputError(f"resume goes on with a run without privacy, which has no {key}.")
        return
    others = (key for key in MAY_CHANGE if key not in SECTIONS)
    raise InputError(
        f"resume goes on as the run was begun, so {key} cannot change; besides"
        f" {', '.join(SECTIONS)} only {', '.join(others)} can."
    )


def _has_privacy_key(key: str, saved: Mapping[str, Any]) -> bool:
    """Returns whether a key means anything to a run: without noise it does where that clips."""
    if saved["name"] != "none":
        return True
    return key.partition(".")[2] in saved and saved.get("max_grad_norm") is not None


def _read_key(path: Path) -> bytes | None:
    if not path.exists():
        return None
    try:
        return bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise StateError(
            f"{path} is damaged: it must hold a key in hexadecimal; put it back as it was, or begin"
            " a new run."
        ) from error


FOLDER = "folder"
"""Name under which the agent keeps the run's folder."""


def keep_folder(folder: Path) -> None:
    """Tells torchrun's agent, for a restart, where a run that begins has its folder."""
    remember(FOLDER, str(folder.absolute()))


def folder_of_run(command: TrainCommand, folder: Path) -> Path:
    """Returns the folder of the run that the processes are in, the same after a restart.

    Args:
        command: As it was given.
        folder: What this process would call it; its name may be the time of the restart.

    Raises:
        InputError: The run has begun in a folder that is not there, or not this user's.
    """
    known = remembered(FOLDER) if command.resume is None and is_restarted() else None
    if known is None:
        return folder
    path = Path(known)
    if not path.is_dir() or path.stat().st_uid != os.getuid():
        raise InputError(
            f"the run that torchrun starts anew must have its folder here, and {path} is not one of"
            " yours; put it where the first process runs, or on a disk that all machines share."
        )
    return path


def restarted_command(command: TrainCommand, folder: Path) -> TrainCommand:
    """Returns the command to carry out: to go on, where a restart finds that the run has begun.

    Args:
        command: As it was given, to begin a run or to go on with one.
        folder: The run's.

    Raises:
        InputError: As ``resumed_configuration``, or the run there was begun by other words.
    """
    if command.resume is not None or not has_begun(folder):
        return command
    if not is_restarted() and not is_requeued(folder):
        return command
    if read_begun(folder).asked != digest_of(command.settings()):
        raise InputError(
            f"the run that is started anew must be the one in {folder}, which was begun by"
            " other words; start it by its own words, or go on with it by resume=RUN."
        )
    goes_on = resumed_configuration(str(folder), {}, ())
    return replace(goes_on, parallel=command.parallel)


def is_requeued(folder: Path) -> bool:
    """Returns whether the job that this process is in has begun the run in a folder before."""
    job = submitted_job()
    return job is not None and folder.stat().st_uid == os.getuid() and read_begun(folder).job == job


def digest_of(config: TrainConfig) -> str:
    """Returns what tells a configuration from any other, as it was asked for."""
    words = json.dumps(plain(config), sort_keys=True, default=str)
    return hashlib.sha256(words.encode()).hexdigest()
