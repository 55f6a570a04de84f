"""The page of the exit codes."""

from docs.tools.reference.markup import head, table
from dpft.commands.exit_codes import BAD_INPUT, FAILED, INTERRUPTED, READER_GONE
from dpft.errors import InputError, RunError, StateError
from dpft.parallel.rank_environment import TERMINATED

INTRO = """
Every command ends with one of these codes. What went wrong is one sentence on standard error, which
begins with `dpft: error:` and says what was expected, the key, the value and the way out. Standard
output holds results alone, so a script can read it whatever was said. A sweep ends with the worst
code of its runs.
"""
SOURCES = (
    "dpft/errors.py",
    "dpft/commands/exit_codes.py",
    "dpft/cli/main.py",
    "dpft/parallel/rank_environment.py",
)
DONE = 0
MEANINGS: dict[int, tuple[str, str]] = {
    DONE: ("The command did what it was asked to.", "Nothing is to be done."),
    FAILED: (
        "It failed while running: a failed self-check, weights that are not finite, a full disk,"
        " or a fault of dpft itself. `dpft doctor` ends with this code if dpft cannot train here.",
        "Read the sentence; mend the machine or the setting, and go on with"
        " `dpft train resume=RUN` where the run had begun. A crash in full stands in"
        " `private/traceback.txt`, which may quote records.",
    ),
    BAD_INPUT: (
        "The input or the configuration is wrong, a folder is held by another process, a resume is"
        " refused, or a file is of another schema version.",
        "Change what the sentence names. Invalid values are listed together; an argument that Hydra"
        " cannot compose is reported alone. An error before training spends nothing;"
        " `dpft account run=RUN` computes what a folder with a ledger has spent.",
    ),
    StateError.exit_code: (
        "State on disk is corrupted: a broken ledger, a damaged checkpoint, a ledger that lacks"
        " steps of the journal, or a model that the run did not release.",
        "Put the folder back as it was, from a backup or its original. Do not edit the ledger:"
        " what it says is what was spent.",
    ),
    INTERRUPTED: (
        "It was interrupted (Ctrl-C).",
        "Go on with `dpft train resume=RUN`; the run says the folder.",
    ),
    READER_GONE: (
        "Whoever read its output has gone (`dpft … | head`); it ends quietly, as a command that"
        " SIGPIPE ends does.",
        "Nothing is to be done. A run that trains had ended before it printed.",
    ),
    TERMINATED: (
        "It was terminated (SIGTERM). A run that trains finishes its step and writes a checkpoint"
        " first.",
        "Go on with `dpft train resume=RUN`.",
    ),
}


def exit_codes_page() -> str:
    """Returns the page of the exit codes.

    Raises:
        ValueError: The code of an error has no meaning here.
    """
    known = {DONE, INTERRUPTED, READER_GONE, TERMINATED}
    known |= {error.exit_code for error in (InputError, RunError, StateError)}
    if known != set(MEANINGS):
        raise ValueError(f"exit codes must be {sorted(known)}, got {sorted(MEANINGS)}.")
    rows = [(f"`{code}`", meaning, way) for code, (meaning, way) in MEANINGS.items()]
    python = """
From Python the same errors are raised: `dpft.InputError` is code 2, `dpft.RunError` 1 and
`dpft.StateError` 3; all are a `dpft.DpftError`, whose `exit_code` is the number.
"""
    answers = table(("Code", "What it means", "What to do"), rows)
    return f"{head('Exit codes', SOURCES, INTRO)}\n{answers}{python}"
