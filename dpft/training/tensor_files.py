"""Tensors on disk, as safetensors: written for their owner alone, and read whole or row by row.

A tensor may be cut over several files, each with a stretch of its rows, in the files' order.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dpft.errors import RunError


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors to disk, mode 0600, and waits until they are there.

    Raises:
        RunError: The disk is full, or the folder may not be written to.
    """
    written = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(written, path)
        path.chmod(0o600)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except (SafetensorError, OSError) as error:
        raise RunError(
            f"{path} could not be written ({error}); a checkpoint before it is whole. Make room,"
            " then go on with the run, or begin it anew if it had none."
        ) from None


def checksum(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class _Stretch:
    """What one file has of a tensor."""

    file: Any
    shape: tuple[int, ...]


class TensorFiles:
    """The tensors of some files, each opened as long as the block lasts and read where asked."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Names the files, in the order of their rows."""
        self._paths = list(paths)
        self._opened = ExitStack()
        self._stretches: dict[str, list[_Stretch]] = {}

    def __enter__(self) -> Self:
        for path in self._paths:
            file = self._opened.enter_context(safe_open(path, framework="pt"))
            for name in file.keys():  # noqa: SIM118 (no mapping)
                shape = tuple(file.get_slice(name).get_shape())
                self._stretches.setdefault(name, []).append(_Stretch(file, shape))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.close()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each tensor, all of its rows together."""
        return {
            name: first.shape
            if not others
            else (sum(each.shape[0] for each in (first, *others)), *first.shape[1:])
            for name, (first, *others) in self._stretches.items()
        }

    def read(self, name: str, rows: tuple[int, int] | None = None) -> Tensor:
        """Returns rows of a tensor, from one and up to another; None: all of it.

        No more than these rows are read from disk.
        """
        stretches = self._stretches[name]
        if rows is None and len(stretches) == 1:
            whole: Tensor = stretches[0].file.get_tensor(name)
            return whole
        first, last = rows or (0, self.shapes[name][0])
        parts, before = [], 0
        for stretch in stretches:
            length = stretch.shape[0]
            start, end = max(first - before, 0), min(last - before, length)
            if start < end:
                parts.append(stretch.file.get_slice(name)[start:end])
            before += length
        return torch.cat(parts) if parts else stretches[0].file.get_slice(name)[0:0]
