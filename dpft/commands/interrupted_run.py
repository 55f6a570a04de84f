"""Interrupted runs: read one, and check that its plan, records and base model did not change.

Task, model, method, privacy, steps and records must stay the same. Settings that affect only speed
may change. If such a setting changes the computed bits, steps are not replayed
(``dpft.training.checkpoint``).

With ``resume=auto``, a command resumes the run in its folder, or begins a run there. Therefore
torchrun and Slurm can restart the command with the same arguments. The command resumes a run only
if it began with the same settings.
"""

import hmac
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from dpft.commands.composition import spent_before, tokenizer_of
from dpft.commands.exit_codes import say
from dpft.commands.ledger_account import check_model
from dpft.commands.new_run import Fingerprint, Secrets, digest_of, has_begun, read_begun
from dpft.commands.run_plan import RunPlan, method_phases, plan_without_noise, public_size
from dpft.commands.splits import (
    held_out_key,
)
from dpft.config.keys import AUTO, copy_key, in_shell
from dpft.config.load import from_values, load_saved, plain
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.data.encoding import fingerprint
from dpft.data.raw_rows import held_splits
from dpft.errors import DpftError, InputError, StateError
from dpft.models.source import ModelConfig
from dpft.parallel.parallel_config import was_restarted, world
from dpft.parallel.rank_environment import submitted_task
from dpft.parallel.shards import ShardedModel, whole_reader
from dpft.privacy.mechanisms.base import Chosen, Mechanism, MechanismConfig
from dpft.privacy.plan_building import make_plan
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.privacy.release_guard import digests_of
from dpft.reports.run_record import read_own_evaluations
from dpft.run_folder import (
    AUDIT_KEY,
    BASE_MODEL,
    CHECKPOINTS,
    CONFIGURATION,
    FINGERPRINT,
    HELD_OUT_KEY,
    KEYS,
    PRIVACY,
    REPORT,
    SYNTHESIS,
    TUNING,
    UNIT_KEY,
    hold_run,
    is_base_model,
    refuse_links,
    what_lacks,
)
from dpft.strict_model import read_model
from dpft.training.checkpoint import ResumePoint, check_promises, checkpoints, find_resume_point
from dpft.training.loop import TrainingSet

logger = logging.getLogger(__name__)


MAY_CHANGE = (
    *("train.device", "train.num_threads", "train.micro_batch_size", "train.precision"),
    *("train.micro_batch_tokens", "train.pad_to_multiple_of"),
    *("train.checkpoint_every", "train.keep", "privacy.engine"),
    *("privacy.resume_overspend", "tracking", "parallel"),
)
"""Keys that may change when a run is resumed, in addition to the keys of ``SECTIONS``."""
SECTIONS = ("eval", "decode", "metrics", "tracking", "parallel")


def open_interrupted(folder: Path, stack: ExitStack) -> ResumePoint:
    """Lock the folder of an interrupted run, and return the point to resume from.

    Args:
        folder: The folder of the run.
        stack: Holds the lock.

    Raises:
        InputError: The folder contains no run, or another process holds the lock.
        StateError: The checkpoint, the ledger or the scores are damaged.
    """
    stack.enter_context(hold_run(folder))
    resume_point = find_resume_point(folder)
    if resume_point.has_ended:
        check_model(folder, resume_point.ledger)  # The model is final; only scoring may follow.
    if not is_reported(folder, resume_point):
        read_own_evaluations(folder)
    return resume_point


def is_reported(folder: Path, resume_point: ResumePoint | None) -> bool:
    """Return whether a run has ended and its report exists; called on rank 0."""
    assert resume_point is not None
    return resume_point.has_ended and (folder / REPORT).exists() and (folder / PRIVACY).exists()


def bound_noise(resume_point: ResumePoint | None) -> float | None:
    """Return the noise multiplier of an interrupted run, or None without privacy."""
    assert resume_point is not None
    if resume_point.checkpoint.run.plan is None:
        return None
    return resume_point.plan().noise_multiplier


def check_same_base(
    model: nn.Module, shards: ShardedModel | None, resume_point: ResumePoint | None
) -> None:
    """Reject the frozen weights if they changed since the run began.

    The checkpoint restores the frozen weights as well. The released model, however, is used with
    the weights that the configuration names.

    Raises:
        StateError: A tensor of the model has changed, although no step changes it.
    """
    assert resume_point is not None
    before = resume_point.checkpoint.run.frozen
    if not before:
        return
    digests = whole_digests(model, shards)
    others = [name for name in before if digests.get(name) != before[name]]
    if others:
        raise StateError(
            f"{resume_point.checkpoint.path} is a checkpoint of another model: {others[0]} differs"
            " from the one that model.path or model now gives. Restore the model that the run"
            " began with."
        )


def whole_digests(model: nn.Module, shards: ShardedModel | None) -> dict[str, str]:
    """Return the digests of a model's state, gathered from all ranks if the model is sharded."""
    return digests_of(model, read=None if shards is None else whole_reader(shards))


def check_ended(
    resume_point: ResumePoint | None, plan: RunPlan, guarantee: DifferentialPrivacy | None
) -> None:
    """Reject an ended run whose privacy settings were edited or whose steps are incomplete."""
    assert resume_point is not None
    if guarantee is not None:
        check_promises(resume_point, guarantee)
    checkpoint = resume_point.checkpoint
    if resume_point.ledger is None and checkpoint.step < plan.steps:
        raise StateError(
            f"{checkpoint.path / KEYS} is missing, and the run has taken {checkpoint.step} of"
            f" {plan.steps} steps. Restore it from a backup, or start a new run."
        )


def resumed_configuration(
    folder: str, composed: Mapping[str, Any], overridden: Iterable[str]
) -> TrainCommand:
    """Return the configuration of a resumed run, with the overrides that are allowed.

    Args:
        folder: The folder of the run.
        composed: The composition of the command line, as plain values.
        overridden: Dotted keys of ``composed`` that replace the run's own values.

    Raises:
        InputError: The run does not exist, its folder contains a symbolic link, or an override
            changes a setting that must stay the same.
    """
    refuse_links(Path(folder))
    if (Path(folder) / TUNING).exists():
        raise InputError(
            f"resume must be the folder of a run, but {folder!r} is the folder of a search by dpft"
            " tune.",
            key="resume",
            value=folder,
            hint=f"dpft tune {in_shell('resume', folder)}",
        )
    path = Path(folder) / CONFIGURATION
    if not path.is_file():
        raise InputError(
            f"resume must be the folder of a dpft run, got {folder!r}, which"
            f" {what_lacks(path.parent, CONFIGURATION)}.",
            key="resume",
            value=folder,
            hint="resume=outputs/DATE/TIME",
        )
    config = load_saved(path, TrainConfig)
    saved = plain(config.replace(model=kept_here(config.model, Path(folder))))
    for key in overridden:
        if key.partition(".")[0] in ("resume", "launch"):
            continue
        _check_may_change(key, saved)
        copy_key(key.split("."), composed, saved)
    merged = {**saved, "resume": folder}
    if "launch" in composed:
        merged["launch"] = composed["launch"]
    return from_values(merged, TrainCommand)


def kept_here(model: ModelConfig, folder: Path) -> ModelConfig:
    """Return a model, with its path set to the copy in the run's folder if there is a copy."""
    kept = folder / BASE_MODEL
    is_kept = is_base_model(model.path or "") and kept.is_dir()
    return model.replace(path=str(kept)) if is_kept else model


def restored_plan(
    config: TrainConfig, resume_point: ResumePoint, count_units: Callable[[], int]
) -> RunPlan:
    """Return the plan of a run after checking that the configuration matches the plan.

    The noise multiplier comes from the original calibration, which may have run on another machine.

    Raises:
        InputError: The configuration differs from the plan, for example because it was edited.
    """
    size = public_size(config, count_units)
    steps = config.train.planned_steps(size.num_examples, of=size.noun)
    phases = method_phases(config, steps, size.num_examples)
    guarantee, began = config.privacy.guarantee, resume_point.checkpoint.run
    if (guarantee is None) != (began.plan is None):
        name = "none" if began.plan is None else "dp"
        _refuse_edited(f"privacy={name}", config.privacy.name, key="privacy")
    if guarantee is None:
        plan = plan_without_noise(config, size, steps, phases)
        if plan.unnoised != began.clipping:
            _refuse_edited(
                "the sampling and clipping that it began with",
                "different settings"
                f" (privacy.max_grad_norm={getattr(config.privacy, 'max_grad_norm', None)})",
                key="privacy.max_grad_norm",
            )
        return plan
    bound = resume_point.plan()
    configured = make_plan(
        guarantee.replace(eps=None, total_eps=None, noise_multiplier=bound.noise_multiplier),
        num_examples=size.num_examples,
        expected_batch_size=config.train.batch_size(size.num_examples),
        phases=phases,
        record=config.task.unit_definition,
        delta_rule=config.task.default_delta,
        tokenizer=spent_before(tokenizer_of(config)),
        mechanism=_of_plan(config.mechanism, bound.mechanism),
    )
    # A synthesis or a search sets these two fields, and the configuration does not contain them.
    configured = configured.replace(counts=bound.counts, is_trial=bound.is_trial)
    calibration = bound.calibration
    asked = None if calibration is None else calibration.target
    if asked is not None and guarantee.eps != asked:
        _refuse_edited(f"privacy.eps={asked:g}", f"{guarantee.eps}", key="privacy.eps")
    given = guarantee.noise_multiplier
    if given is not None and given != bound.noise_multiplier:
        key = "privacy.noise_multiplier"
        _refuse_edited(f"{key}={bound.noise_multiplier:g}", f"{given:g}", key=key)
    if bound.replace(calibration=None, delta_source=configured.delta_source) != configured:
        changed = [key for key, value in configured if value != getattr(bound, key)]
        names = ", ".join(key for key in changed if key != "calibration")
        _refuse_edited(f"the {names} of its plan", "other values", key=None)
    return RunPlan(size=size, steps=steps, phases=phases, privacy=bound)


def _of_plan(config: MechanismConfig, bound: Mechanism) -> MechanismConfig:
    """Return the mechanism of a plan after checking that the configuration agrees with it.

    The plan's own mechanism is used, because another machine may round its numbers differently.
    """
    same = type(bound) is config.makes
    if not same or (config.is_resolved and config.resolved(bound) != config):
        _refuse_edited(
            f"the mechanism of its plan, {bound.name}", f"{config}", key="privacy.mechanism"
        )
    return Chosen(name=bound.name, mechanism=bound)


def _refuse_edited(expected: str, got: str, *, key: str | None) -> NoReturn:
    raise InputError(
        f"a resumed run must keep {expected}, got {got}. Restore {CONFIGURATION} and the records,"
        " or start a new run.",
        key=key,
        value=got,
    )


def read_secrets(folder: Path) -> Secrets:
    """Return the secret keys of a run."""
    unit = _read_key(folder / UNIT_KEY)
    held_out = held_out_key(folder)[0] if (folder / HELD_OUT_KEY).exists() else None
    audit = _read_key(folder / AUDIT_KEY)
    return Secrets(unit_key=unit or b"", held_out_key=held_out, audit_key=audit or b"")


def check_same_records(folder: Path, training_set: TrainingSet) -> None:
    """Reject the training records if they changed since the run began."""
    path = folder / FINGERPRINT
    try:
        expected = read_model(path, Fingerprint)
        key = bytes.fromhex(expected.key)
    except (OSError, ValueError, DpftError) as error:
        raise StateError(
            f"{path} cannot be read, so dpft cannot check that the training records are the same."
            " Restore it from a backup, or start a new run."
        ) from error
    if not hmac.compare_digest(
        fingerprint(training_set.examples, training_set.units, key), expected.hmac
    ):
        raise InputError(
            "resume needs the training records that the run began with, but these records differ."
            " Restore the records, or start a new run.",
            key="resume",
        )


def has_scores(folder: Path, stage: str) -> bool:
    """Return whether scores of a stage exist; scores of private splits are read from private/."""
    entries = [entry for entry in read_own_evaluations(folder) if entry.stage == stage]
    return bool(entries) and all(entry.examples is not None for entry in entries)


@contextmanager
def hint_of_resume(folder: Path) -> Iterator[None]:
    """Print how to resume the run or the search in a folder if the block is interrupted.

    Nothing is printed if there is nothing to resume, or for a corrupted folder, whose error message
    explains the next step.
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
            say(f"to resume: {_way_to_go_on(command, str(short))}")
        raise


def _way_to_go_on(command: str, folder: str) -> str:
    above = Path(folder).parent
    if (above / SYNTHESIS).exists():
        return f"dpft synthesize {in_shell('resume', above)}"
    if held_splits():
        return f"dpft.{command}(['resume={folder}'], rows=...)"
    there, resume = world(), in_shell("resume", folder)
    if there is None or there.size == 1:
        return f"dpft {command} {resume}"
    if there.on_one_node:
        return f"dpft train {resume} launch=local launch.processes={there.size}"
    if submitted_task() is not None:
        return (
            f"dpft train --multirun {resume}, with the same hydra/launcher and hydra.launcher.KEY;"
            " a requeued job with resume=auto resumes automatically"
        )
    return f"torchrun ARGUMENTS -m dpft train {resume}, with the same ARGUMENTS as before"


def _check_may_change(key: str, saved: dict[str, Any]) -> None:
    section = key.partition(".")[0]
    if key in MAY_CHANGE or (section in SECTIONS and "." in key):
        if key.startswith("privacy.") and not _has_privacy_key(key, saved["privacy"]):
            raise InputError(
                f"{key} cannot be set, because the run to resume has privacy=none. Remove the"
                " argument.",
                key=key,
            )
        return
    others = (key for key in MAY_CHANGE if key not in SECTIONS)
    raise InputError(
        f"{key} cannot change when a run is resumed. You can change {', '.join(SECTIONS)} and"
        f" {', '.join(others)}.",
        key=key,
    )


def _has_privacy_key(key: str, saved: Mapping[str, Any]) -> bool:
    """Return whether a privacy key has an effect; with privacy=none, this requires clipping."""
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
            f"{path} is damaged: it must contain a hexadecimal key. Restore it from a backup, or"
            " start a new run."
        ) from error


def automatically_resumed(command: TrainCommand, folder: Path) -> TrainCommand:
    """Return the command for ``resume=auto``: resume the run in the folder, or begin a run.

    Raises:
        InputError: As for ``resumed_configuration``, or the run began with other settings.
    """
    if command.resume != AUTO:
        return command
    is_open = command.privacy.guarantee is None
    if not (has_begun(folder) or (is_open and checkpoints(folder / CHECKPOINTS))):
        if was_restarted():
            logger.warning(
                "the scheduler restarted this job, but %s contains no run, so a second run begins."
                " Use a folder on a disk that all machines share.",
                folder,
            )
        return command.replace(resume=None)
    if read_begun(folder).asked != digest_of(command.settings()):
        raise InputError(
            "resume=auto resumes a run only with the settings that it began with, but the run in"
            f" {folder} began with others. Repeat its command, or resume it by its folder.",
            key="resume",
            value=AUTO,
            hint=f"dpft train {in_shell('resume', folder)}",
        )
    logger.info("resuming the run in %s", folder)
    resumed = resumed_configuration(str(folder), {}, ())
    return resumed.replace(parallel=command.parallel)
