"""The folder of a run that begins: one in which no privacy was spent, with nothing stale in it."""

import shutil
from pathlib import Path

from dpft.errors import InputError
from dpft.evaluation.human import SHEET
from dpft.files import private_folder
from dpft.privacy.completeness import JOURNAL, read_journal
from dpft.privacy.witness import HANDED
from dpft.reports.run.report import CONFIGURATION, METRICS, PAGE, PRIVACY, REPORT
from dpft.runs.scores import TEXTS_OF_EVALUATIONS
from dpft.training.checkpoint import checkpoints
from dpft.training.resume import LEDGER
from dpft.training.tracking import FOLDER as TRACKING

TUNING = Path("private") / "tuning"
"""Folder of the trials of ``dpft tune``, of which only the best is public, in the end."""
RELEASED = ("generated", "export", SHEET)
"""What other commands made in public of a run's model; it is kept, so no other run may move in."""


def refuse_used_folder(folder: Path) -> None:
    """Refuses a folder where privacy was spent, or with what was made of another run's model.

    Raises:
        InputError: There is a ledger, or an earlier run with one of ``RELEASED``, or a search.
    """
    if (folder / TUNING).exists():
        raise InputError(
            f"{folder / TUNING} exists: dpft tune has trained in this folder; go on with dpft tune"
            f" resume={folder}, or choose another folder with hydra.run.dir=DIR."
        )
    if has_begun(folder):
        known = folder / LEDGER
        known = known if known.exists() else folder / "private" / JOURNAL
        raise InputError(
            f"{known} exists: a run in this folder has taken noisy steps; go on with it"
            f" by dpft train resume={folder}, or choose another folder with hydra.run.dir=DIR."
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

    One that broke off before its first checkpoint was whole left an empty ledger, and took none.
    """
    ledger = folder / LEDGER
    if read_journal(folder / "private" / JOURNAL):  # Whatever became of the ledger since.
        return True
    if not ledger.exists():
        return False
    return ledger.stat().st_size > 0 or bool(checkpoints(folder / "private" / "checkpoints"))


def start_anew(folder: Path) -> None:
    """Removes what an earlier run of dpft left that took no noisy step here.

    Its checkpoints would count as newer than this run's first one, and its model would lie beside
    this run's ledger if this run broke off.
    """
    if not (folder / CONFIGURATION).exists():
        return
    private = private_folder(folder)
    for name in (REPORT, PAGE, METRICS, PRIVACY, LEDGER, HANDED):
        (folder / name).unlink(missing_ok=True)
    for place in (folder, private):
        for stale in (path for texts in TEXTS_OF_EVALUATIONS for path in place.glob(texts)):
            stale.unlink()
    for name in ("diagnostics.jsonl", JOURNAL):
        (private / name).unlink(missing_ok=True)
    for tree in (folder / "model", folder / TRACKING, private / "checkpoints"):
        shutil.rmtree(tree, ignore_errors=True)
