"""Create the folder of a new run: check that it is unused, lock it, write the first files.

A run begins only where no privacy was spent and nothing stale is left. Its date and versions are
written once, in ``private/``, so that the report of a run that is resumed on another day has the
same ones. The date has no time of day, which would reveal how long steps took (docs/dev/design.md,
rule 7).
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
    """private/fingerprint: by what a run knows its training records again."""

    key: str
    """Random, in hexadecimal."""
    hmac: str
    """Of the records under the key: a plain hash would tell whoever has it and a guess."""


def refuse_used_folder(folder: Path) -> None:
    """Reject a folder where privacy was spent, or with what was made of another run's model.

    Raises:
        InputError: There is a ledger, or an earlier run whose model other commands made something
            public of, or a search.
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
    """Return whether a run here may have taken a noisy step.

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
    """Remove what an earlier run of dpft left that took no noisy step here.

    Its checkpoints would count as newer than this run's first one, its model would lie beside
    this run's ledger if this run broke off, and its canaries would seem to be this run's.
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
    """Make the folder of a new run, and lock it until the stack is closed.

    Raises:
        InputError: Another process holds it, or has begun a run there meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stack.enter_context(hold_run(folder))
    refuse_used_folder(folder)


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """A run's keys, from its private folder."""

    unit_key: bytes
    held_out_key: bytes | None
    audit_key: bytes
    """Of which canaries and their coins are made."""


def fresh_secrets(config: TrainConfig) -> Secrets:
    """Return the keys of a run that begins; two of them are those of a test's seed, if any."""
    units, audit = (secret_key(name, config.privacy.noise_seed) for name in ("units", "audit"))
    return Secrets(unit_key=units, held_out_key=new_key(), audit_key=audit)


def fingerprint_text(training_set: TrainingSet) -> str:
    """Return the private file by which a run will know its records again."""
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
    """Write into a new run's folder, which this process holds, what the run begins with.

    Args:
        folder: The run's.
        config: With every null filled.
        asked: As it was asked for, by which ``resume=auto`` recognizes it.
        secrets: The run's keys.
        division: Which records were held out.
        training_set: The records, by whose fingerprint a resumed run recognizes them.
        canaries: Those that an audit will look for.
        composed: What Hydra composed, written into ``.hydra/``.
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
    """Write down that the run in a folder begins today (UTC), and with which versions.

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
    """Return when and with what a run was begun; a run that is older says nothing."""
    path = folder / BEGUN
    return read_model(path, BegunFile) if path.exists() else BegunFile()


def origin(config: TrainConfig, begun: BegunFile) -> Origin:
    """Return what privacy.json says of a run's day, versions, model and data."""
    path = config.model.path
    model_folder = config.model.folder if path and not is_base_model(path) else None
    return Origin(
        model=with_kind(model_name(config.model), model_folder),
        data=data_name(config.task),
        starting_models=begun.starting_models,
        **begun.when,
    )


def checked_out_commit(root: Path) -> str | None:
    """Return the commit of the git checkout in a folder, or None of none.

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


def digest_of(config: TrainConfig) -> str:
    """Return what tells a configuration from any other, as it was asked for."""
    words = json.dumps(plain(config), sort_keys=True, default=str)
    return hashlib.sha256(words.encode()).hexdigest()


def starting_models(model: ModelConfig) -> list[StartingModel]:
    """Return what each private training of a model guarantees its records, the last one first.

    The guarantee of a run's model (``model.path``), or of an exported one, is computed from the
    ledger beside it; those of still earlier trainings are as its privacy.json recorded them.
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
    """Return the folder with the privacy.json of a model that dpft trained; None: there is none.

    It is the model's own folder, if it was exported, or that of the run.
    """
    if model.path is None:
        return None
    folder = Path(model.path).expanduser().resolve()
    places = [folder, *([folder.parent] if folder.name == MODEL else [])]
    run_folder = next((place for place in places if (place / PRIVACY).is_file()), None)
    if run_folder is not None and run_folder != folder:
        check_model(run_folder, read_run_ledger(run_folder))
    return run_folder
