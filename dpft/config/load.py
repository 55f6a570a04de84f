"""From Hydra's ``DictConfig`` to frozen dataclasses, and from those to ``config.yaml`` and back.

Nothing below this room sees a ``DictConfig``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from dpft.config.convert import ClassChoice, Schema, build
from dpft.config.keys import ADDED, MISSING, RETIRED, known_keys, plain
from dpft.errors import Faults, InputError
from dpft.files import read_yaml, write_text

Config = TypeVar("Config")
VOCABULARY = "tokenizer"
"""A section that only a run of ``dpft tokenizer`` has."""


def load(
    cfg: DictConfig,
    root: type[Config],
    *,
    polymorphic: Mapping[str, ClassChoice] | None = None,
) -> Config:
    """Returns the dataclasses a composed configuration stands for, its interpolations resolved.

    Args:
        cfg: The composed configuration, without the ``hydra`` node.
        root: The dataclass of the whole configuration.
        polymorphic: Dotted key to the function from the values under it to their dataclass, for
            the keys whose class is chosen (``{"method": by_name(METHODS.named)}``).

    Raises:
        InputError: A key is unknown, a value is missing, of the wrong type or not finite, or a
            dataclass refuses its values; all that is wrong, in one error.
    """
    faults, known, taken = Faults(), cfg.copy(), []
    while True:
        try:
            values = OmegaConf.to_container(known, resolve=True)
            break
        except InterpolationKeyError as error:
            # "Interpolation key 'task.eval_split' not found"
            lacking = str(error.msg).split("'")[1]
            faults.found.append(
                f"{lacking} has no value, and {error.full_key} takes it from there; write it into"
                f" the YAML that {lacking.partition('.')[0]}=NAME chooses."
            )
            taken.append(error.full_key)
            OmegaConf.update(known, str(error.full_key), MISSING)
        except OmegaConfBaseException as error:
            reason = " ".join(str(error).split())
            raise InputError(f"the configuration cannot be resolved: {reason}") from error
    if not taken:
        return from_values(values, root, polymorphic=polymorphic)
    with faults.gathering():
        from_values(values, root, polymorphic=polymorphic)
    said = tuple(f"{key} has no value" for key in taken)
    raise InputError(*(fault for fault in faults.found if not fault.startswith(said)))


def from_values(
    values: Any,
    root: type[Config],
    *,
    polymorphic: Mapping[str, ClassChoice] | None = None,
) -> Config:
    """Returns the dataclasses that plain values stand for, each text as it is written.

    Saved values come this way and not by ``load``: a folder may have been received, and a text such
    as ``${oc.env:NAME}`` in it would be resolved there to a secret of whoever received it.

    Args:
        values: A mapping of keys to plain values, as ``plain`` makes it.
        root: The dataclass of the whole configuration.
        polymorphic: As for ``load``.

    Raises:
        InputError: As ``load``, or the values are no mapping.
    """
    if not isinstance(values, Mapping):
        raise InputError("the configuration must be a mapping of keys to values.")
    schema = Schema(polymorphic=polymorphic or {}, known_keys=tuple(known_keys(root)))
    built: Config = build(values, root, key="", schema=schema)
    return built


def load_saved(
    path: Path,
    root: type[Config],
    *,
    polymorphic: Mapping[str, ClassChoice] | None = None,
) -> Config:
    """Returns the configuration that ``dump`` wrote to a file; nothing in it is resolved.

    Raises:
        InputError: The file is missing or unreadable, or does not fit the dataclasses.
    """
    values = read_yaml(path)
    _bring_up_to_date(values)
    if isinstance(values, Mapping) and VOCABULARY in set(values) - set(known_keys(root)):
        raise InputError(
            f"{path.parent} is of dpft tokenizer, which trains no model; give a run of dpft train."
        )
    return from_values(values, root, polymorphic=polymorphic)


def to_yaml(config: Any) -> str:
    """Returns a configuration dataclass as YAML with sorted keys and every value spelt out."""
    return str(yaml.safe_dump(plain(config), sort_keys=True, allow_unicode=True))


def dump(config: Any, path: Path) -> None:
    """Write a configuration dataclass as YAML, whole or not at all."""
    write_text(path, to_yaml(config))


def _bring_up_to_date(values: Any) -> None:
    """Takes the keys of earlier versions out of a saved configuration, and adds what they meant."""
    if not isinstance(values, dict):
        return
    for key in RETIRED:
        section, _, name = key.partition(".")
        if isinstance(values.get(section), dict):
            values[section].pop(name, None)
    for key, value in ADDED.items():
        section, _, name = key.partition(".")
        if isinstance(values.get(section), dict):
            values[section].setdefault(name, value)
