"""Symbolic links in a run's folder: dpft makes none, and follows none.

A folder may have been received. Through a link in it a command would write to, delete or open to
others what lies elsewhere: ``model/x`` may stand for the owner's own key, and ``private/lock`` for
a file that is not there yet. So a command that writes into a run's folder looks for links first.
"""

from collections.abc import Iterator
from pathlib import Path

from dpft.errors import InputError


def refuse_links(folder: Path) -> None:
    """Refuses the folder of a run with a symbolic link in it, before dpft writes there.

    The folder itself may be reached through links, as one on another disk is.

    Args:
        folder: The run's; it need not exist.

    Raises:
        InputError: There is one.
        OSError: A folder in it cannot be read.
    """
    for path in everything_below(folder):
        if path.is_symlink():
            raise InputError(
                f"{path} must be a file or a folder of its own, got a symbolic link, through which"
                " a command would reach outside the run's folder; remove it, and put in its place"
                " what belongs there."
            )


def everything_below(folder: Path) -> Iterator[Path]:
    """Yields what is in a folder and in the folders in it; a link, and not what it points to.

    What a run that goes on removes meanwhile is left out.
    """
    folders = [folder]
    while folders:
        try:
            entries = sorted(folders.pop().iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        for path in entries:
            yield path
            if path.is_dir() and not path.is_symlink():
                folders.append(path)
