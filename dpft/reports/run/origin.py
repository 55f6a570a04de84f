"""What a run was made of, in names that may be shown anywhere: its base model and its data.

A folder or a file of the user's is named by no path: those name a machine and its owner.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpft.run_folder import is_base_model


def model_name(config: Mapping[str, Any]) -> str:
    """Returns what the base is called, of a folder its last part alone."""
    path = config["model"].get("path")
    if path and not is_base_model(path):
        return Path(path).name
    return str(config["model"]["name"])


def data_name(config: Mapping[str, Any]) -> str:
    """Returns the task and where its rows came from, such as ``e2e (embedded sample)``."""
    task = config["task"]
    source = "local" if task.get("data_dir") is not None else task.get("source")
    known = {
        "local": "local files",
        "embedded": "embedded sample",
        "memory": "rows given by a program",
        "hub": f"{task.get('hub_name')} on the hub",
        "url": "the addresses of task.urls",
    }
    return f"{task['name']} ({known.get(source, source)})" if source else str(task["name"])
