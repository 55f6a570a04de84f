"""Conversion of Hydra's ``DictConfig`` to a validated configuration, and I/O of config.yaml.

Hydra composes the values, OmegaConf resolves them, and pydantic validates them. No module below
this one uses a ``DictConfig``.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException
from pydantic import BaseModel, ValidationError

import dpft
from dpft.config.keys import MISSING, known_keys, leaves, nearest
from dpft.config.removed import REMOVED, removed_key
from dpft.config.section import Section, section_class
from dpft.config.validation_errors import faults_of
from dpft.errors import Fault, InputError
from dpft.run_folder import read_yaml, write_text
from dpft.strict_model import members


def read_saved(path: Path) -> Mapping[str, Any]:
    """Return the values in a config.yaml of any command; empty if the file does not exist.

    Raises:
        InputError: The file cannot be read.
    """
    values = read_yaml(path) if path.is_file() else None
    return values if isinstance(values, dict) else {}


Config = TypeVar("Config", bound=Section)
VOCABULARY = "tokenizer"
"""Section that only runs of ``dpft tokenizer`` have."""


def load(cfg: DictConfig, root: type[Config]) -> Config:
    """Return the configuration that Hydra composed, with resolved interpolations.

    Args:
        cfg: The composed configuration, without the ``hydra`` node.
        root: The class of the whole configuration.

    Raises:
        InputError: Keys are unknown or missing, or have invalid values. The error lists all of
            them.
    """
    try:
        return from_values(OmegaConf.to_container(cfg, resolve=True), root)
    except InterpolationKeyError as error:
        # The message has the form "Interpolation key 'task.eval_split' not found".
        missing = str(error.msg).split("'")[1]
        raise InputError(
            f"Missing required key {missing}, from which {error.full_key} takes its value.",
            key=missing,
            hint=f"{missing}=VALUE",
        ) from None
    except OmegaConfBaseException as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"the configuration cannot be resolved: {reason}", key=error.full_key
        ) from error


def from_values(values: Any, root: type[Config]) -> Config:
    """Return a configuration from plain values, without resolving interpolations.

    Saved values are read in this way, because a folder may come from somebody else. Resolving a
    text such as ``${oc.env:NAME}`` in it would insert secrets of the recipient.

    Raises:
        InputError: Keys are unknown or missing, or have invalid values. The error lists all of
            them.
    """
    if not isinstance(values, Mapping):
        raise InputError(
            "the configuration must be a mapping of keys to values.", key=None, value=values
        )
    value_by_key = leaves(values)
    removed = [
        Fault(message, key=key, value=value)
        for key, value in value_by_key.items()
        if (message := removed_key(f"{key}={value}") or removed_key(key))
    ]
    if removed:
        raise InputError(*removed)
    present = _as_given(values, root)
    try:
        return root.model_validate_json(json.dumps(present))
    except ValidationError as error:
        raise InputError(*faults_of(error, root, present, known_keys(root, present))) from None


def _as_given(values: Mapping[str, Any], kind: type[BaseModel] | None) -> dict[str, Any]:
    """Return values without unset keys, and with numbers as text if a field requires text.

    Hydra parses ``task.data_dir=2024`` as a number.
    """
    fields = {} if kind is None else {f.alias or name: f for name, f in kind.model_fields.items()}
    present: dict[str, Any] = {}
    for name, value in values.items():
        field = fields.get(name)
        types = () if field is None else members(field.annotation)
        if isinstance(value, Mapping):
            value = _as_given(value, None if field is None else section_class(field, value))
        elif isinstance(value, list):
            value = [_as_given(item, None) if isinstance(item, Mapping) else item for item in value]
        elif type(value) in (int, float) and str in types and not {int, float} & {*types}:
            value = str(value)
        if value != MISSING:
            present[str(name)] = value
    return present


def load_saved(path: Path, root: type[Config]) -> Config:
    """Return the configuration that ``dump`` wrote to a file, without resolving interpolations.

    Raises:
        InputError: The file is missing or unreadable, or does not contain such a configuration.
    """
    values = read_yaml(path)
    _drop_removed_keys(values)
    if isinstance(values, Mapping) and VOCABULARY in set(values) - set(root.model_fields):
        raise InputError(
            f"{path.parent} is a run of dpft tokenizer, which trains no model. Give a run of dpft"
            " train.",
            key=str(path.parent),
        )
    return from_values(values, root)


def plain(config: BaseModel) -> dict[str, Any]:
    """Return a configuration as plain dicts and lists, by key."""
    return config.model_dump(mode="json", by_alias=True)


def to_yaml(config: BaseModel) -> str:
    """Return a configuration as YAML with sorted keys, including defaults."""
    return str(yaml.safe_dump(plain(config), sort_keys=True, allow_unicode=True))


def dump(config: BaseModel, path: Path) -> None:
    """Write a configuration as YAML, atomically."""
    write_text(path, to_yaml(config))


def _drop_removed_keys(values: Any) -> None:
    """Remove the keys and options of earlier versions from a saved configuration."""
    if not isinstance(values, dict):
        return
    for key in REMOVED:
        section, _, name = key.partition(".")
        name, _, option = name.partition("=")
        saved = values.get(section)
        if isinstance(saved, dict) and (not option or saved.get(name) == option):
            saved.pop(name, None)


def config_directory() -> Path:
    """Return the absolute path of the folder with the YAML configurations."""
    package = Path(dpft.__file__).resolve().parent
    places = (package / "conf", package.parent / "conf")
    for place in places:
        if place.is_dir():
            return place
    raise InputError(
        f"dpft's configurations are neither in {places[0]} (an installed wheel) nor in "
        f"{places[1]} (a checkout). Install dpft again.",
        key=str(places[0]),
    )


def published_num_train_examples(task: str) -> int:
    """Return the published number of training examples of a task, from conf/task."""
    key = "train.transfer_sample_rate_from"
    folder = config_directory() / "task"
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if task not in names:
        near = nearest(task, names)
        choices = "" if near else f" ({', '.join(names)})"
        raise InputError(
            f"{key} must name a task{choices}, got {task!r}.",
            key=key,
            value=task,
            hint=near and f"{key}={near}",
        )
    size = yaml.safe_load((folder / f"{task}.yaml").read_text())["num_train_examples"]
    if not isinstance(size, int):
        raise InputError(
            f"{key} must name a task with a published size, got {task}.", key=key, value=task
        )
    return size
