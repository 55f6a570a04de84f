"""Configuration keys that several commands share: output format, file names, lists of names."""

from pathlib import Path
from typing import Literal

from dpft.errors import InputError

Output = Literal["table", "json"]
PLOTS = (".svg", ".png")
Names = str | tuple[str, ...] | None
"""One name, or several names."""


def check_plot(file: str, *, key: str = "to") -> None:
    """Reject a file without the extension of an image."""
    if Path(file).suffix not in PLOTS:
        raise InputError(
            f"{key} must be a file named *{' or *'.join(PLOTS)}, got {file!r}.",
            key=key,
            value=file,
        )
    check_folder(file, key=key)


def check_folder(file: str, *, key: str) -> None:
    """Reject a file in a folder that does not exist."""
    if not Path(file).parent.is_dir():
        raise InputError(
            f"{key} must be in a folder that exists, got {file!r}. Create the folder first.",
            key=key,
            value=file,
        )


def listed_names(names: Names) -> tuple[str, ...]:
    """Return the names in a key that accepts one or several names."""
    return (names,) if isinstance(names, str) else names or ()
