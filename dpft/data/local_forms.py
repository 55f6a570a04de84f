"""Data on disk in a form of their own: what every form answers, and which there are.

Most local data are a table a split, which ``sources`` reads. A task whose data come otherwise names
its form (``Task.local_form``); a form is a module of this room, which has it as ``FORM``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dpft.data.readers import Row


@dataclass(frozen=True, kw_only=True)
class LocalForm:
    """How data on disk of one form are read."""

    rows: Callable[[Any, str], Iterator[Row]]
    """Yields the rows of a task's split; raises ``InputError`` where they cannot be read."""
    splits: Callable[[Any], set[str]]
    """Returns the splits that a task's data hold; none where they cannot be read."""


_MODULES = {
    "celeba": "dpft.data.images.celeba_files",
    "cifar": "dpft.data.images.cifar_files",
    "corpus": "dpft.data.corpora",
    "digits": "dpft.data.images.digits",
    "images": "dpft.data.images.folders",
}
"""Where each form is."""


def local_form(name: str) -> LocalForm:
    """Returns a form by what ``Task.local_form`` calls it."""
    form: LocalForm = import_module(_MODULES[name]).FORM
    return form
