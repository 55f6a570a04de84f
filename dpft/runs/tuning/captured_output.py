"""Everything a block would say, into a private file instead: how often it speaks is a secret."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO

from dpft.config.keys import KeyFormatter

STANDARD = (1, 2)
"""Descriptors of standard output and error, to which libraries in C write."""


@contextmanager
def everything_to(path: Path) -> Iterator[None]:
    """Appends what is printed and logged inside the block, by C code too, to a file of mode 0600.

    Args:
        path: The file; its folder exists.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8", buffering=1) as log, ExitStack() as stack:
        stack.enter_context(_descriptors_to(log))
        stack.enter_context(redirect_stdout(log))
        stack.enter_context(redirect_stderr(log))
        stack.enter_context(_logging_to(log))
        yield


@contextmanager
def owner_only() -> Iterator[None]:
    """Lets nobody but the owner read the files and folders that are made inside the block."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _descriptors_to(log: IO[str]) -> Iterator[None]:
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(number) for number in STANDARD]
    for number in STANDARD:
        os.dup2(log.fileno(), number)
    try:
        yield
    finally:
        for number, kept in zip(STANDARD, before, strict=True):
            os.dup2(kept, number)
            os.close(kept)


@contextmanager
def _logging_to(log: IO[str]) -> Iterator[None]:
    root, handler = logging.getLogger(), logging.StreamHandler(log)
    handler.setFormatter(KeyFormatter("%(levelname)s: %(message)s"))
    before, root.handlers = root.handlers, [handler]
    try:
        yield
    finally:
        root.handlers = before
