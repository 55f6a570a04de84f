"""The folder of a run that begins: what may lie in it, when it was begun, and with what versions.

No privacy was spent in it, and nothing in it is stale. The date and the versions are written once,
in the run's private/, so that a run that goes on another day, or was killed and goes on bit by bit,
dates its report alike. A day is enough: a finer time would tell how long steps took
(docs/design.md, rule 7).
"""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import dpft
from dpft.config.keys import plain
from dpft.config.schema import TrainConfig
from dpft.errors import DpftError, InputError
from dpft.files import (
    AUDIT_KEY,
    BEGUN,
    CHECKPOINTS,
    CONFIGURATION,
    DATA_SUMMARY,
    DIAGNOSTICS,
    HANDED_HEADS,
    HISTOGRAM,
    JOURNAL,
    LEDGER,
    METRICS,
    MODEL,
    PAGE,
    PRIVACY,
    PRIVATE_AUDIT,
    PRIVATE_METRICS,
    PRIVATE_REPORT,
    PRIVATE_SCORES_BY_STEP,
    RELEASED,
    REPORT,
    SCORES_BY_STEP,
    TEXTS_OF_EVALUATIONS,
    TOKENIZER,
    TRACKING,
    TUNING,
    WHITE_BOX,
    is_base_model,
    private_folder,
    private_path,
)
from dpft.privacy.completeness import read_journal
from dpft.privacy.ledger import read_ledger
from dpft.records.configuration import RunConfiguration, parse_configuration, read_saved
from dpft.records.form import read_record, write_record
from dpft.records.promises import BegunFile, Origin, StartingModel, Versions
from dpft.reports.run_record import data_name, model_name, with_kind
from dpft.training.checkpoint import checkpoints

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
            f" resume={folder}, or choose another folder with hydra.run.dir=DIR."
        )
    if has_begun(folder):
        known = folder / LEDGER
        known = known if known.exists() else folder / JOURNAL
        raise InputError(
            f"{known} exists: a run in this folder has taken noisy steps; go on with it"
            f" by dpft {_command_of(folder)} resume={folder}, or choose another folder with"
            " hydra.run.dir=DIR."
        )
    for path in (folder / name for name in RELEASED):
        if path.exists() and (folder / CONFIGURATION).exists():
            raise InputError(
                f"{path} exists: it is of an earlier run in this folder, and this run's report"
                " would seem to cover it; move it away, or choose another folder with"
                " hydra.run.dir=DIR."
            )


def _command_of(folder: Path) -> str:
    """Returns the command whose run is in a folder: train, or tokenizer."""
    config = read_saved(folder / CONFIGURATION)
    return "train" if config is None or config.tokenizer is None else "tokenizer"


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
    public = (REPORT, PAGE, METRICS, SCORES_BY_STEP, PRIVACY, LEDGER, HANDED_HEADS, HISTOGRAM)
    scores = (PRIVATE_METRICS, PRIVATE_REPORT, PRIVATE_SCORES_BY_STEP)
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
    job: str | None = None,
    starting_models: Sequence[StartingModel] = (),
) -> None:
    """Writes down that the run in a folder begins today (UTC), and with which versions.

    Args:
        folder: The run's; it exists.
        asked: What tells the configuration that was asked for from any other.
        job: What tells the job of submitit that begins it from any other; None: there is none.
        starting_models: What the model that it starts from has promised already.
    """
    begun = BegunFile(
        date=datetime.now(UTC).date().isoformat(),
        versions=Versions(
            dpft=dpft.__version__, torch=version("torch"), transformers=version("transformers")
        ),
        commit=checked_out_commit(Path(dpft.__file__).parents[1]),
        starting_models=tuple(starting_models) or None,
        asked=asked,
        job=job,
    )
    write_record(private_path(folder, BEGUN), begun, mode=0o600)


def read_begun(folder: Path) -> BegunFile:
    """Returns when and with what a run was begun; a run that is older says nothing.

    Raises:
        InputError: The file is of another schema version.
        StateError: It is damaged.
    """
    path = folder / BEGUN
    return read_record(path, BegunFile) if path.exists() else BegunFile()


def origin(config: TrainConfig, begun: BegunFile) -> Origin:
    """Returns what privacy.json says of a run's day, versions, model and data."""
    asked = parse_configuration(plain(config), RunConfiguration)
    path = config.model.path
    own = config.model.folder if path and not is_base_model(path) else None
    return Origin(
        model=with_kind(model_name(asked.model), own),
        data=data_name(asked.task),
        date=begun.date,
        versions=begun.versions,
        commit=begun.commit,
        starting_models=begun.starting_models,
    )


def checked_out_commit(root: Path) -> str | None:
    """Returns the commit of a git checkout, ``-dirty`` behind it where files differ from it.

    Args:
        root: The folder that holds the package; None is returned where it is no checkout's root.
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
