"""``dpft`` in a process of its own, watched at every file that it opens to write or renames.

Run: ``python -m tests.stories.observed RECORD [--crash] SUBCOMMAND …``. RECORD gets a line for each
fault that was seen at any moment: something in a run's private/ that others could read, or a marker
in the temporary folder. With ``--crash`` the second step raises an error that quotes a
record, with a note and a cause that do too.
"""

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARKER = "Qzxmarker"
"""That of ``tests.stories.tiny``, whose imports would take longer than a command."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def open_to_others(folder: Path) -> dict[str, str]:
    """Returns what lies in a run's private/ with another mode than 0600, or 0700 for a folder."""
    private = folder / "private"
    modes = {str(path): mode for path in (private, *private.rglob("*")) for mode in _mode(path)}
    return {
        path: oct(stat.S_IMODE(mode))
        for path, mode in modes.items()
        if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600)
    }


def faults(root: Path) -> Iterator[str]:
    """Yields what is wrong now under the working folder and in the temporary folder."""
    for private in root.glob("*/private"):
        yield from (f"{path} is {mode}" for path, mode in open_to_others(private.parent).items())
    for path in Path(os.environ["TMPDIR"]).rglob("*"):
        if path.is_file() and MARKER.encode().lower() in path.read_bytes().lower():
            yield f"{path} holds a marker"


def watch(root: Path, record: Path) -> None:
    """Looks for faults before every file event of this process; it cannot be ended."""
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
    """Makes a loss of the second step an error that quotes a record.

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
    """Returns an error that quotes a record, as do its note and its cause."""
    error = RuntimeError(f"no such word: {MARKER}")
    error.add_note(f"in the record of {MARKER}")
    error.__cause__ = KeyError(MARKER)
    return error


def _mode(path: Path) -> list[int]:
    try:
        return [path.lstat().st_mode]
    except FileNotFoundError:  # Renamed by another thread.
        return []


if __name__ == "__main__":
    record, *arguments = sys.argv[1:]
    os.umask(0)
    watch(Path.cwd(), Path(record))
    if arguments[0] == "--crash":
        break_second_step()
        arguments = arguments[1:]
    from dpft.cli.main import main

    sys.exit(main(arguments))
