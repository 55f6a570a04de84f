"""Every task by name: a task is a module of this package that binds ``TASKS``."""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from dpft.errors import InputError
from dpft.tasks.base import Task

INFRASTRUCTURE = {
    *("base", "registry", "records", "templates", "values", "columns", "classification"),
    *("custom_form", "custom_texts", "custom_labels", "custom_chats"),
}
"""Modules of this package that hold no ``TASKS``."""


def task_classes() -> dict[str, type[Task]]:
    """Returns every task by name: what the modules of this package call ``TASKS``."""
    package = importlib.import_module("dpft.tasks")
    modules = sorted({m.name for m in pkgutil.iter_modules(package.__path__)} - INFRASTRUCTURE)
    found: dict[str, type[Task]] = {}
    for module in modules:
        found |= importlib.import_module(f"dpft.tasks.{module}").TASKS
    return found


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
