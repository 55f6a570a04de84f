"""Your own data: any file or hub data set, in one of four forms.

The configuration is one, ``conf/task/custom.yaml``; which keys are given says which class it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpft.errors import InputError
from dpft.tasks.base import TASKS, Task
from dpft.tasks.custom_chats import CustomChats
from dpft.tasks.custom_form import CHAT, LABELS, PLAIN, TEMPLATES, CustomFields, form_of
from dpft.tasks.custom_labels import CustomLabels
from dpft.tasks.custom_texts import CustomTexts
from dpft.tasks.records import Record


@TASKS.register("custom")
@dataclass(frozen=True, kw_only=True)
class CustomTask(CustomFields):
    """A task of your own, as its name alone knows it: ``chosen`` gives the class of its form."""

    @classmethod
    def chosen(cls, values: Mapping[str, Any]) -> type[Task]:
        """Returns the class of the form that the keys choose; this one where none is given.

        Raises:
            InputError: They are keys of several forms, or a part of one's.
        """
        classes: dict[frozenset[str] | None, type[Task]] = {
            TEMPLATES: CustomTexts,
            PLAIN: CustomTexts,
            CHAT: CustomChats,
            LABELS: CustomLabels,
            None: CustomTask,
        }
        return classes[form_of(values)]

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> Record:
        """See ``Task.canary``; a form has its own."""
        raise InputError(f"{self.lacks}")
