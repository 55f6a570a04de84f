"""``dpft`` in processes that are watched at every file that they open to write or rename.

Run: ``python -m tests.stories.observed``; each line of its input is a JSON list of a name, perhaps
``--crash``, and the words of a command. It is run in a process forked from this one, which has
imported all of it, and its exit code is a line of the output. What it says is in NAME.said, and
NAME.faults has a line for each fault that was seen at any moment: something in a run's private/
that others could read, or a marker in the temporary folder. With ``--crash`` the second step raises
an error that quotes a record, with a note and a cause that do too.
"""

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARKER = "Qzxmarker"
"""That of ``tests.stories.tiny``."""
SECONDS = 300
"""After which a command that has not ended is killed."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def open_to_others(folder: Path) -> dict[str, str]:
    """Return what lies in a run's private/ with another mode than 0600, or 0700 for a folder."""
    private = folder / "private"
    modes = {str(path): mode for path in (private, *private.rglob("*")) for mode in _mode(path)}
    return {
        path: oct(stat.S_IMODE(mode))
        for path, mode in modes.items()
        if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600)
    }


def faults(root: Path) -> Iterator[str]:
    """Yield what is wrong now under the working folder and in the temporary folder."""
    for private in root.glob("*/private"):
        yield from (f"{path} is {mode}" for path, mode in open_to_others(private.parent).items())
    for path in Path(os.environ["TMPDIR"]).rglob("*"):
        if path.is_file() and MARKER.encode().lower() in path.read_bytes().lower():
            yield f"{path} holds a marker"


def watch(root: Path, record: Path) -> None:
    """Look for faults before every file event of this process; it cannot be ended."""
    looking = False
    events = 0
    record.touch()  # A command that writes no file, such as account, has no event.
    record.with_suffix(".events").write_text(json.dumps(events))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal looking, events
        if looking or event not in ("open", "os.rename", "os.remove"):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITES):
            return
        looking = True
        try:
            events += 1
            with record.open("a") as file:
                file.writelines(f"{fault}\n" for fault in faults(root))
            record.with_suffix(".events").write_text(json.dumps(events))
        finally:
            looking = False

    sys.addaudithook(hook)


def break_second_step() -> None:
    """Make a loss of the second step an error that quotes a record.

    Not of the first: on its batch the clipper is proved, which takes another way round an error.
    """
    from dpft.training import loop, training_run

    losses, check, steps = training_run.per_example_losses, loop.check_weights, []

    def checks(*given: Any) -> None:
        check(*given)
        steps.append(None)

    def breaks(*given: Any) -> Any:
        if steps:
            raise quoting_error()
        return losses(*given)

    training_run.per_example_losses, loop.check_weights = breaks, checks


def quoting_error() -> Exception:
    """Return an error that quotes a record, as do its note and its cause."""
    error = RuntimeError(f"no such word: {MARKER}")
    error.add_note(f"in the record of {MARKER}")
    error.__cause__ = KeyError(MARKER)
    return error


def _mode(path: Path) -> list[int]:
    try:
        return [path.lstat().st_mode]
    except FileNotFoundError:  # Renamed by another thread.
        return []


def run_command(name: str, arguments: list[str]) -> None:
    """Run a command in this process, watched, to its end."""
    from dpft.cli.main import main

    said = os.open(f"{name}.said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(said, stream)
    os.umask(0)
    signal.alarm(SECONDS)
    watch(Path.cwd(), Path(f"{name}.faults").absolute())
    if arguments[0] == "--crash":
        break_second_step()
        arguments = arguments[1:]
    sys.exit(main(arguments))


if __name__ == "__main__":
    import tests.stories.warm  # noqa: F401

    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if (process := os.fork()) == 0:
            run_command(name, arguments)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
