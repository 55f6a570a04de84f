"""``privacy.witness=``: who takes a run's heads, as the present command line alone may say.

A witness may be a program, and a folder or a recipe that was received must not execute anything:
what a YAML file says of it is refused, and a run's configuration never holds it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpft.config.keys import WITNESS
from dpft.config.schema import TrainCommand
from dpft.errors import InputError
from dpft.privacy.ledger import LedgerRecord, new_run_id
from dpft.privacy.witness import Handover, Witness, check_going_on, make_witness


def refuse_witness_of_file(privacy: Mapping[str, Any], *, given: bool) -> None:
    """Refuses a witness that no word of the command line named.

    Args:
        privacy: The section as YAML files, or files and the command line, make it.
        given: Whether the command line says it.

    Raises:
        InputError: A file names one.
    """
    if privacy.get("witness") is None or given:
        return
    raise InputError(
        f"{WITNESS} must be given on the command line of each dpft train, got it from a YAML file"
        " or a sweep's parameters; take it out there: what may run a program is taken from the"
        " command line only."
    )


def witness_of(command: TrainCommand, folder: Path) -> Witness | None:
    """Returns the witness of a command, found to be usable; None: it has none.

    Raises:
        InputError: It cannot be used, or is in the run's own folder.
    """
    privacy = command.privacy
    if privacy.witness is None:
        return None
    witness = make_witness(privacy.witness)
    witness.check(folder)
    return witness


def check_witness(
    witness: Witness | None, ledger: LedgerRecord | None, folder: Path, run_id: str | None = None
) -> None:
    """Holds the ledger of a run that goes on against what its witness has of it.

    Args:
        witness: Of the run.
        ledger: Of the run; None: it has none.
        folder: Of the run.
        run_id: What its checkpoint names it by.

    Raises:
        StateError: The witness has heads that the ledger lacks.
    """
    if witness is not None and ledger is not None:
        check_going_on(ledger, folder, witness, run_id)


def begin_handover(
    witness: Witness | None, folder: Path, run_id: str | None = None
) -> Handover | None:
    """Returns what hands over the heads of a session; None without a witness.

    Args:
        witness: Of the run.
        folder: Of the run.
        run_id: What its ledger names it by; None: a new name, which its ledger is to have.
    """
    return None if witness is None else Handover(witness, folder, run_id=run_id or new_run_id())


def hand_over_end(handover: Handover | None, ledger: LedgerRecord | None) -> None:
    """Hands over the head of the closing line.

    When it comes tells no more than the model's files do, which are written before.
    """
    if handover is not None and ledger is not None:
        handover.hand_over(ledger.lines, ledger.head)
