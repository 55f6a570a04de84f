"""Creation of a new run's folder: check that it is unused, lock it, and write the first files.

A run begins only if no privacy was spent in its folder and no outdated file is left there. The date
and the versions are written once, in ``private/``, so that a run that is resumed on another day
reports the same values. The date has no time of day, because a time would reveal how long steps
took (docs/dev/design.md, rule 7).
"""

import hashlib
import json
import logging
import secrets as entropy
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import dpft
from dpft.commands.guarantee import privacy_of
from dpft.commands.ledger_account import check_model
from dpft.commands.splits import (
    Division,
)
from dpft.config.hydra_compose import Composed
from dpft.config.keys import in_shell
from dpft.config.load import dump, plain, read_saved
from dpft.config.schema import TrainConfig
from dpft.data.canaries import Canary, canaries_text
from dpft.data.encoding import fingerprint
from dpft.data.training_records import new_key
from dpft.errors import DpftError, InputError
from dpft.models.source import ModelConfig
from dpft.privacy.cipher import secret_key
from dpft.privacy.journal import read_journal, read_run_ledger
from dpft.privacy.ledger import read_ledger
from dpft.reports.privacy_json import (
    BegunFile,
    Origin,
    PrivateRun,
    StartingModel,
    Versions,
    read_privacy,
)
from dpft.reports.run_record import data_name, model_name, with_kind
from dpft.run_folder import (
    AUDIT_KEY,
    BEGUN,
    CANARIES,
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
    TEXTS_OF_EVALUATIONS,
    TOKENIZER,
    TRACKING,
    TUNING,
    UNIT_KEY,
    WHITE_BOX,
    hold_run,
    is_base_model,
    private_folder,
    private_path,
    write_private,
)
from dpft.strict_model import Versioned, json_text, read_model, write_model
from dpft.training.checkpoint import checkpoints
from dpft.training.loop import TrainingSet

logger = logging.getLogger(__name__)


class Fingerprint(Versioned):
    """The content of private/fingerprint, which lets a run recognize its training records."""

    key: str
    """Random key, in hexadecimal."""
    hmac: str
    """Keyed hash of the records. A plain hash would let its reader confirm a guess about the
    records."""


def refuse_used_folder(folder: Path) -> None:
    """Reject a folder in which privacy was spent, or that contains outputs of another run's model.

    Raises:
        InputError: The folder contains a ledger, a search, or an earlier run with public files that
            other commands made from its model.
    """
    if (folder / TUNING).exists():
        raise InputError(
            f"{folder / TUNING} exists: dpft tune has trained in this folder. Resume the search, or"
            " choose another folder with hydra.run.dir=DIR.",
            key="hydra.run.dir",
            value=str(folder),
            hint=f"dpft tune {in_shell('resume', folder)}",
        )
    if has_begun(folder):
        record = folder / LEDGER
        record = record if record.exists() else folder / JOURNAL
        is_vocabulary = read_saved(folder / CONFIGURATION).get("tokenizer") is not None
        command = "tokenizer" if is_vocabulary else "train"
        raise InputError(
            f"{record} exists: a run in this folder has taken noisy steps. Resume it, or choose"
            " another folder with hydra.run.dir=DIR.",
            key="hydra.run.dir",
            value=str(folder),
            hint=f"dpft {command} {in_shell('resume', folder)}",
        )
    for path in (folder / name for name in RELEASED):
        if path.exists() and (folder / CONFIGURATION).exists():
            raise InputError(
                f"{path} belongs to an earlier run in this folder, and this run's report would seem"
                " to cover it. Move it away, or choose another folder with hydra.run.dir=DIR.",
                key="hydra.run.dir",
                value=str(folder),
            )


def has_begun(folder: Path) -> bool:
    """Return whether a run in a folder may have taken a noisy step.

    A run that was interrupted before its first checkpoint was complete took no step. Its ledger is
    empty, or contains only the line that names the run.
    """
    ledger = folder / LEDGER
    if read_journal(folder / JOURNAL):  # Even if the ledger was changed since.
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
    """Remove the files of an earlier run in this folder, which took no noisy step.

    The checkpoints of that run would count as newer than this run's first checkpoint. If this run
    were interrupted, the old model would be next to the new ledger. The old canaries would be taken
    for this run's canaries.
    """
    if not (folder / CONFIGURATION).exists():
        return
    private = private_folder(folder)
    public = (REPORT, PAGE, METRICS, PROGRESS, PRIVACY, LEDGER, HISTOGRAM)
    scores = (PRIVATE_METRICS, PRIVATE_REPORT, PRIVATE_PROGRESS)
    private_files = (DIAGNOSTICS, JOURNAL, DATA_SUMMARY, *scores, AUDIT_KEY, WHITE_BOX)
    for name in (*public, *private_files):
        (folder / name).unlink(missing_ok=True)
    for place in (folder, private):
        for stale in (path for texts in TEXTS_OF_EVALUATIONS for path in place.glob(texts)):
            stale.unlink()
    for name in (MODEL, TOKENIZER, TRACKING, CHECKPOINTS, PRIVATE_AUDIT):
        shutil.rmtree(folder / name, ignore_errors=True)


def hold_new_folder(folder: Path, stack: ExitStack) -> None:
    """Create the folder of a new run, and lock it until the stack is closed.

    Raises:
        InputError: Another process holds the folder, or has begun a run in it in the meantime.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stack.enter_context(hold_run(folder))
    refuse_used_folder(folder)


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """The secret keys of a run, from its private folder."""

    unit_key: bytes
    held_out_key: bytes | None
    audit_key: bytes
    """Key from which the canaries and their coin flips are derived."""


def fresh_secrets(config: TrainConfig) -> Secrets:
    """Return the keys of a new run; with a test's seed, two of them are derived from the seed."""
    units, audit = (secret_key(name, config.privacy.noise_seed) for name in ("units", "audit"))
    return Secrets(unit_key=units, held_out_key=new_key(), audit_key=audit)


def fingerprint_text(training_set: TrainingSet) -> str:
    """Return the content of the private file that lets a run recognize its records."""
    key = entropy.token_bytes(32)
    hmac = fingerprint(training_set.examples, training_set.units, key)
    return json_text(Fingerprint(key=key.hex(), hmac=hmac)) + "\n"


def write_beginning(
    folder: Path,
    config: TrainConfig,
    *,
    asked: TrainConfig,
    secrets: Secrets,
    division: Division,
    training_set: TrainingSet,
    canaries: Sequence[Canary],
    composed: Composed | None,
) -> None:
    """Write the first files into the folder of a new run, which this process has locked.

    Args:
        folder: Folder of the run.
        config: The configuration, with every null filled in.
        asked: The configuration before nulls were filled in. ``resume=auto`` recognizes the run by
            it.
        secrets: The keys of the run.
        division: The division of the records, with the key of the held-out records.
        training_set: The training records. Their fingerprint lets a resumed run recognize them.
        canaries: The canaries that an audit will look for.
        composed: The composition by Hydra, which is written into ``.hydra/``.
    """
    start_anew(folder)
    starting = starting_models(config.model)
    write_begun(folder, asked=digest_of(asked), starting_models=starting)
    if composed is not None:
        composed.write_record(folder)
    dump(config, folder / CONFIGURATION)
    logger.info("run: %s", folder)
    kept = {HELD_OUT_KEY: division.key_text, FINGERPRINT: fingerprint_text(training_set)}
    if config.privacy.has_units:
        kept[UNIT_KEY] = secrets.unit_key.hex() + "\n"
    if canaries:
        kept[AUDIT_KEY] = secrets.audit_key.hex() + "\n"
        kept[CANARIES] = canaries_text(canaries, config.task)
    write_private(folder, kept)


def write_begun(
    folder: Path,
    *,
    asked: str | None = None,
    starting_models: Sequence[StartingModel] = (),
) -> None:
    """Record the start day (today in UTC) of the run in a folder, and the versions of packages.

    Args:
        folder: Folder of the run.
        asked: A digest that distinguishes the requested configuration from any other.
        starting_models: Guarantees that already hold for the model that the run starts from.
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
    """Return the date and versions of a run's beginning; empty fields if they were not recorded."""
    path = folder / BEGUN
    return read_model(path, BegunFile) if path.exists() else BegunFile()


def origin(config: TrainConfig, begun: BegunFile) -> Origin:
    """Return the date, versions, model and data of a run, as privacy.json records them."""
    path = config.model.path
    model_folder = config.model.folder if path and not is_base_model(path) else None
    return Origin(
        model=with_kind(model_name(config.model), model_folder),
        data=data_name(config.task),
        starting_models=begun.starting_models,
        **begun.when,
    )


def checked_out_commit(root: Path) -> str | None:
    """Return the commit of the git checkout in a folder, or None if the folder is not a checkout.

    The commit ends in ``-dirty`` if files differ from it.
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


def digest_of(config: TrainConfig) -> str:
    """Return a digest that distinguishes a requested configuration from any other."""
    words = json.dumps(plain(config), sort_keys=True, default=str)
    return hashlib.sha256(words.encode()).hexdigest()


def starting_models(model: ModelConfig) -> list[StartingModel]:
    """Return the guarantee of each earlier private training of a model, latest first.

    The guarantee of a run's model (``model.path``) or of an exported model is computed from the
    ledger next to it. The guarantees of earlier trainings are as recorded in its privacy.json.
    """
    folder = _run_beside(model)
    if folder is None:
        return []
    if isinstance(read_privacy(folder / PRIVACY), PrivateRun) and not (folder / LEDGER).exists():
        logger.warning(
            "%s has no %s next to it, so the report cannot state the guarantee of the starting"
            " model", folder / PRIVACY, LEDGER,
        )  # fmt: skip
        return []
    record = privacy_of(folder)
    earlier = [*(record.starting_models or ())]
    if not isinstance(record, PrivateRun):
        return earlier
    plan = record.plan
    started = StartingModel(
        epsilon=record.epsilon,
        delta=record.delta,
        accountant=record.accountant,
        with_tokenizer=record.with_tokenizer,
        data=record.data,
        model=record.model,
        neighboring_relation=plan.neighboring_relation,
        num_examples=plan.num_examples,
        private=record.private,
        unit=plan.unit,
        unit_definition=plan.unit_definition,
        ledger=record.ledger.head,
    )
    return [started, *earlier]


def _run_beside(model: ModelConfig) -> Path | None:
    """Return the folder with the privacy.json of a model that dpft trained, or None.

    This is the model's own folder if the model was exported, else the folder of the run.
    """
    if model.path is None:
        return None
    folder = Path(model.path).expanduser().resolve()
    places = [folder, *([folder.parent] if folder.name == MODEL else [])]
    run_folder = next((place for place in places if (place / PRIVACY).is_file()), None)
    if run_folder is not None and run_folder != folder:
        check_model(run_folder, read_run_ledger(run_folder))
    return run_folder
