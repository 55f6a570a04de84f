"""A run's folder, where one begins and where one goes on: what may lie there, and what binds it.

A run begins where no privacy was spent, and nothing stale is left. Its date and versions are
written once, in private/, so that a run that goes on another day, or was killed and goes on bit by
bit, dates its report alike. A day is enough: a finer time would tell how long steps took
(docs/design.md, rule 7).

A run goes on (``resume=RUN``) as it was bound to: task, model, method, privacy, the steps and the
records stay. What changes speed alone may be set anew; where it changes bits, steps are not
replayed (``dpft.training.checkpoint``).

With ``resume=auto`` a command resumes the run in its folder, or begins one there. So torchrun and
Slurm can restart it with the same arguments. It resumes a run only if it was begun with the same
settings.
"""

import hashlib
import hmac
import json
import logging
import secrets as entropy
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import dpft
from dpft.config.keys import AUTO, copy_key, in_shell
from dpft.config.load import from_values, load_saved, plain, read_saved
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.data.encoding import fingerprint
from dpft.data.raw_rows import held_splits
from dpft.data.training_records import new_key
from dpft.errors import DpftError, InputError, StateError
from dpft.files import (
    AUDIT_KEY,
    BASE_MODEL,
    BEGUN,
    CHECKPOINTS,
    CONFIGURATION,
    DATA_SUMMARY,
    DIAGNOSTICS,
    FINGERPRINT,
    HELD_OUT_KEY,
    HISTOGRAM,
    JOURNAL,
    LEDGER,
    METRICS,
    MODEL,
    PAGE,
    PRIVACY,
    PRIVATE_AUDIT,
    PRIVATE_METRICS,
    PRIVATE_PROGRESS,
    PRIVATE_REPORT,
    PROGRESS,
    RELEASED,
    REPORT,
    SYNTHESIS,
    TEXTS_OF_EVALUATIONS,
    TOKENIZER,
    TRACKING,
    TUNING,
    UNIT_KEY,
    WHITE_BOX,
    is_base_model,
    private_folder,
    private_path,
    refuse_links,
    what_lacks,
)
from dpft.models.source import ModelConfig
from dpft.parallel.parallel_config import was_restarted, world
from dpft.parallel.rank_environment import submitted_task
from dpft.privacy.cipher import secret_key
from dpft.privacy.ledger import read_ledger
from dpft.privacy.mechanisms.base import Chosen, Mechanism, MechanismConfig
from dpft.privacy.planning import make_plan
from dpft.privacy.replay_log import read_journal
from dpft.reports.promises import BegunFile, Origin, StartingModel, Versions
from dpft.reports.run_record import data_name, model_name, read_own_evaluations, with_kind
from dpft.runs.composition import spent_before, tokenizer_of
from dpft.runs.exit_codes import say
from dpft.runs.held_out import held_out_key
from dpft.runs.run_plan import RunPlan, method_phases, plan_without_noise, public_size
from dpft.strict_model import Versioned, json_text, read_model, write_model
from dpft.training.checkpoint import ResumePoint, checkpoints
from dpft.training.loop import TrainingSet


class Fingerprint(Versioned):
    """private/fingerprint: by what a run knows its training records again."""

    key: str
    """Random, in hexadecimal."""
    hmac: str
    """Of the records under the key: a plain hash would tell whoever has it and a guess."""


logger = logging.getLogger(__name__)
WriteRequest = Callable[[Path], None]
"""Writes into a new run's folder how the run was asked for, such as Hydra's record of a command."""


def refuse_used_folder(folder: Path) -> None:
    """Refuses a folder where privacy was spent, or with what was made of another run's model.

    Raises:
        InputError: There is a ledger, or an earlier run whose model other commands made something
            public of, or a search.
    """
    if (folder / TUNING).exists():
        raise InputError(
            f"{folder / TUNING} exists: dpft tune has trained in this folder; go on with dpft tune"
            f" {in_shell('resume', folder)}, or choose another folder with hydra.run.dir=DIR."
        )
    if has_begun(folder):
        known = folder / LEDGER
        known = known if known.exists() else folder / JOURNAL
        is_vocabulary = read_saved(folder / CONFIGURATION).get("tokenizer") is not None
        command = "tokenizer" if is_vocabulary else "train"
        raise InputError(
            f"{known} exists: a run in this folder has taken noisy steps; go on with it"
            f" by dpft {command} {in_shell('resume', folder)}, or choose another folder with"
            " hydra.run.dir=DIR."
        )
    for path in (folder / name for name in RELEASED):
        if path.exists() and (folder / CONFIGURATION).exists():
            raise InputError(
                f"{path} exists: it is of an earlier run in this folder, and this run's report"
                " would seem to cover it; move it away, or choose another folder with"
                " hydra.run.dir=DIR."
            )


def has_begun(folder: Path) -> bool:
    """Returns whether a run here may have taken a noisy step.

    One that broke off before its first checkpoint was whole took none, and left a ledger that is
    empty, or has but the line that names the run.
    """
    ledger = folder / LEDGER
    if read_journal(folder / JOURNAL):  # Whatever became of the ledger since.
        return True
    if not ledger.exists():
        return False
    if checkpoints(folder / CHECKPOINTS):
        return True
    try:
        return read_ledger(ledger).counted_steps > 0
    except DpftError:
        return True


def start_anew(folder: Path) -> None:
    """Removes what an earlier run of dpft left that took no noisy step here.

    Its checkpoints would count as newer than this run's first one, its model would lie beside
    this run's ledger if this run broke off, and its canaries would seem to be this run's.
    """
    if not (folder / CONFIGURATION).exists():
        return
    private = private_folder(folder)
    public = (REPORT, PAGE, METRICS, PROGRESS, PRIVACY, LEDGER, HISTOGRAM)
    scores = (PRIVATE_METRICS, PRIVATE_REPORT, PRIVATE_PROGRESS)
    own = (DIAGNOSTICS, JOURNAL, DATA_SUMMARY, *scores, AUDIT_KEY, WHITE_BOX)
    for name in (*public, *own):
        (folder / name).unlink(missing_ok=True)
    for place in (folder, private):
        for stale in (path for texts in TEXTS_OF_EVALUATIONS for path in place.glob(texts)):
            stale.unlink()
    for name in (MODEL, TOKENIZER, TRACKING, CHECKPOINTS, PRIVATE_AUDIT):
        shutil.rmtree(folder / name, ignore_errors=True)


def write_begun(
    folder: Path,
    *,
    asked: str | None = None,
    starting_models: Sequence[StartingModel] = (),
) -> None:
    """Writes down that the run in a folder begins today (UTC), and with which versions.

    ``asked`` tells the configuration that was asked for from any other; ``starting_models`` are
    what the model that it starts from has promised already.
    """
    begun = BegunFile(
        date=datetime.now(UTC).date().isoformat(),
        versions=Versions(
            dpft=dpft.__version__, torch=version("torch"), transformers=version("transformers")
        ),
        commit=checked_out_commit(Path(dpft.__file__).parents[1]),
        starting_models=tuple(starting_models) or None,
        asked=asked,
    )
    write_model(private_path(folder, BEGUN), begun, mode=0o600)


def read_begun(folder: Path) -> BegunFile:
    """Returns when and with what a run was begun; a run that is older says nothing."""
    path = folder / BEGUN
    return read_model(path, BegunFile) if path.exists() else BegunFile()


def origin(config: TrainConfig, begun: BegunFile) -> Origin:
    """Returns what privacy.json says of a run's day, versions, model and data."""
    path = config.model.path
    own = config.model.folder if path and not is_base_model(path) else None
    return Origin(
        model=with_kind(model_name(config.model), own),
        data=data_name(config.task),
        starting_models=begun.starting_models,
        **begun.when,
    )


def checked_out_commit(root: Path) -> str | None:
    """Returns the commit of the git checkout in a folder, or None of none.

    It has ``-dirty`` behind it where files differ from it.
    """
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


MAY_CHANGE = (
    *("train.device", "train.num_threads", "train.micro_batch_size", "train.precision"),
    *("train.micro_batch_tokens", "train.pad_to_multiple_of"),
    *("train.checkpoint_every", "train.keep", "privacy.engine"),
    *("privacy.resume_overspend", "tracking", "parallel"),
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


def fresh_secrets(config: TrainConfig) -> Secrets:
    """Returns the keys of a run that begins; two of them are those of a test's seed, if any."""
    units, audit = (secret_key(name, config.privacy.noise_seed) for name in ("units", "audit"))
    return Secrets(unit_key=units, held_out_key=new_key(), audit_key=audit)


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
            f" it by dpft tune {in_shell('resume', folder)}."
        )
    path = Path(folder) / CONFIGURATION
    if not path.is_file():
        raise InputError(
            f"resume must be the folder of a dpft run, got {folder!r}, which"
            f" {what_lacks(path.parent, CONFIGURATION)}; give the folder that the run named, such"
            " as outputs/DATE/TIME."
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
    """Returns a model that a run keeps, at the path it has now: the folder may have been moved."""
    kept = folder / BASE_MODEL
    is_kept = is_base_model(model.path or "") and kept.is_dir()
    return model.replace(path=str(kept)) if is_kept else model


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
        if plan.unnoised != began.clipping:
            _refuse_edited(
                "the draws and the clipping that the run began with",
                f"others (privacy.max_grad_norm={getattr(config.privacy, 'max_grad_norm', None)})",
            )
        return plan
    bound = resume_point.plan()
    own = make_plan(
        guarantee.replace(eps=None, total_eps=None, noise_multiplier=bound.noise_multiplier),
        num_examples=size.num_examples,
        expected_batch_size=config.train.batch_size(size.num_examples),
        phases=phases,
        record=config.task.unit_definition,
        delta_rule=config.task.default_delta,
        tokenizer=spent_before(tokenizer_of(config)),
        mechanism=_of_plan(config.mechanism, bound.mechanism),
    )
    # What began it, a synthesis or a search, knows of them.
    own = own.replace(counts=bound.counts, is_trial=bound.is_trial)
    calibration = bound.calibration
    asked = None if calibration is None else calibration.target
    if asked is not None and guarantee.eps != asked:
        _refuse_edited(f"privacy.eps={asked:g}, which the run began with", f"{guarantee.eps}")
    given = guarantee.noise_multiplier
    if given is not None and given != bound.noise_multiplier:
        expected = f"privacy.noise_multiplier={bound.noise_multiplier:g}, which the run began with"
        _refuse_edited(expected, f"{given:g}")
    if bound.replace(calibration=None, delta_source=own.delta_source) != own:
        changed = [key for key, value in own if value != getattr(bound, key)]
        names = ", ".join(key for key in changed if key != "calibration")
        _refuse_edited("the plan that the run is bound to", f"another {names}")
    return RunPlan(size=size, steps=steps, phases=phases, privacy=bound)


def _of_plan(config: MechanismConfig, bound: Mechanism) -> MechanismConfig:
    """Returns what chooses the mechanism of a plan: another machine may round it apart."""
    same = type(bound) is config.makes
    if not same or (config.is_settled and config.settled(bound) != config):
        _refuse_edited(f"the mechanism of its plan, {bound.name}", f"{config}")
    return Chosen(name=bound.name, mechanism=bound)


def _refuse_edited(expected: str, got: str) -> NoReturn:
    raise InputError(
        f"resume must go on with {expected}, got {got}; put {CONFIGURATION} and the records back as"
        " they were, or begin a new run."
    )


def read_secrets(folder: Path) -> Secrets:
    """Returns a run's keys."""
    unit = _read_key(folder / UNIT_KEY)
    held_out = held_out_key(folder)[0] if (folder / HELD_OUT_KEY).exists() else None
    audit = _read_key(folder / AUDIT_KEY)
    return Secrets(unit_key=unit or b"", held_out_key=held_out, audit_key=audit or b"")


def fingerprint_text(training_set: TrainingSet) -> str:
    """Returns the private file by which a run will know its records again."""
    key = entropy.token_bytes(32)
    known = fingerprint(training_set.examples, training_set.units, key)
    return json_text(Fingerprint(key=key.hex(), hmac=known)) + "\n"


def same_records(folder: Path, training_set: TrainingSet) -> None:
    """Refuses to go on with other records than the run began with."""
    path = folder / FINGERPRINT
    try:
        known = read_model(path, Fingerprint)
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
            f"dpft train --multirun {resume}, with hydra/launcher and hydra.launcher.KEY as"
            " before; a requeued job with resume=auto does so by itself"
        )
    return f"torchrun, as before, -m dpft train {resume}"


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


def automatically_resumed(command: TrainCommand, folder: Path) -> TrainCommand:
    """Return the command that ``resume=auto`` stands for: resume the run in the folder, or begin.

    Raises:
        InputError: As ``resumed_configuration``, or the run there was begun with other settings.
    """
    if command.resume != AUTO:
        return command
    is_open = command.privacy.guarantee is None
    if not (has_begun(folder) or (is_open and checkpoints(folder / CHECKPOINTS))):
        if was_restarted():
            logger.warning(
                "this start is a restart, but %s contains no run, so a second run begins. Use a"
                " folder on a disk that all machines share.",
                folder,
            )
        return command.replace(resume=None)
    if read_begun(folder).asked != digest_of(command.settings()):
        raise InputError(
            f"resume=auto resumes a run with the settings that it was begun with, and the run in"
            f" {folder} has others; repeat its command, or run dpft train"
            f" {in_shell('resume', folder)}."
        )
    logger.info("resuming the run in %s", folder)
    resumed = resumed_configuration(str(folder), {}, ())
    return resumed.replace(parallel=command.parallel)


def digest_of(config: TrainConfig) -> str:
    """Returns what tells a configuration from any other, as it was asked for."""
    words = json.dumps(plain(config), sort_keys=True, default=str)
    return hashlib.sha256(words.encode()).hexdigest()
