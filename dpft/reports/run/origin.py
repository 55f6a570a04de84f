"""What a run was made of, in names that may be shown anywhere: its base model and its data.

A folder or a file of the user's is named by no path: those name a machine and its owner.
"""

import json
from pathlib import Path

from dpft.records.configuration import ModelSection, RunConfiguration, TaskSection
from dpft.records.privacy_file import RunPrivacy
from dpft.run_folder import is_base_model


def model_name(model: ModelSection) -> str:
    """Returns what the base is called, of a folder its last part alone."""
    if model.path and not is_base_model(model.path):
        return Path(model.path).name
    return model.name


def model_title(config: RunConfiguration, privacy: RunPrivacy) -> str:
    """Returns what the base is called where its kind is said, too, as the run wrote it down.

    Args:
        config: Of the run.
        privacy: Its privacy.json; that of an older run does not say.
    """
    return privacy.model or model_name(config.model)


def with_kind(name: str, folder: Path | None) -> str:
    """Returns a model's name with the type that its config.json states, such as ``mine (bert)``.

    Args:
        name: What it is called.
        folder: With its config.json; None: the name says what it is.
    """
    if folder is None:
        return name
    try:
        kind = json.loads((folder / "config.json").read_text("utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):  # whoever loads it says what is wrong with it
        kind = None
    return f"{name} ({kind})" if isinstance(kind, str) else name


def data_name(task: TaskSection) -> str:
    """Returns the task and where its rows came from, such as ``e2e (embedded sample)``."""
    source = "local" if task.data_dir is not None else task.source
    known = {
        "local": "local files",
        "embedded": "embedded sample",
        "memory": "rows given by a program",
        "hub": f"{task.hub_name} on the hub",
        "url": "the addresses of task.urls",
    }
    return f"{task.name} ({known.get(source, source)})" if source else task.name
