"""Every task by name: a task is a class of this package that registers itself in ``TASKS``."""

from collections.abc import Mapping
from typing import Any

from dpft.errors import InputError
from dpft.registration import Registry
from dpft.tasks.base import Task

TASKS: Registry[type[Task]] = Registry("dpft.tasks")


def task_classes() -> dict[str, type[Task]]:
    """Returns the class of every task by name."""
    return TASKS.entries()


def task_names() -> list[str]:
    """Returns the names of the tasks in this package."""
    return sorted(task_classes())


def task_class(name: str) -> type[Task]:
    """Returns the class of the task of that name.

    Raises:
        InputError: There is no such task.
    """
    classes = task_classes()
    if name not in classes:
        raise InputError(f"task.name must be one of {', '.join(sorted(classes))}, got {name!r}.")
    return classes[name]


def chosen_task_class(values: Mapping[str, Any]) -> type[Task]:
    """Returns the class of the task that the values of its keys, ``name`` among them, stand for.

    Raises:
        InputError: There is no such task, or the keys do not go together.
    """
    return task_class(values["name"]).chosen(values)
