"""The folder of a run that begins: one in which no privacy was spent, with nothing stale in it."""

import shutil
from collections.abc import Callable
from pathlib import Path

from dpft.errors import DpftError, InputError
from dpft.files import read_yaml
from dpft.privacy.completeness import read_journal
from dpft.privacy.ledger import read_ledger
from dpft.run_folder import (
    AUDIT_KEY,
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
    private_folder,
)
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
    path = folder / CONFIGURATION
    config = read_yaml(path) if path.is_file() else None
    return "tokenizer" if isinstance(config, dict) and "tokenizer" in config else "train"


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
