"""From Hydra's ``DictConfig`` to frozen dataclasses, strictly, and to ``config.yaml`` and back.

Every refusal names the key, the value and the type. OmegaConf's own structured configs know no
classes chosen by name and turn texts into numbers and booleans; a privacy parameter must be what
its author wrote. Pydantic reads dataclasses strictly only from JSON, wraps what they refuse and
names no whole type: translating that is no shorter. Nothing below this room sees a ``DictConfig``.

A root dataclass lists the checks that concern several of its sections, each with the sections that
it needs, so that where one section is refused the checks that need only others are made all the
same.
"""

import dataclasses
import json
import math
import shlex
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

import dpft
from dpft.config.keys import (
    MISSING,
    configuration_fields,
    join_key,
    key_name,
    known_keys,
    nearest,
    plain,
    quoted,
    type_hints,
    unknown_key,
)
from dpft.config.removed import REMOVED, removed_key
from dpft.errors import Faults, InputError
from dpft.files import read_yaml, write_text

CrossCheck = tuple[tuple[str, ...], Callable[..., object]]
"""Names of fields, and the function that refuses their values, handed over in that order."""


class CrossChecked:
    """Base of the roots that list checks; a root is refused with all that fails."""

    cross_checks: ClassVar[tuple[CrossCheck, ...]] = ()

    def __post_init__(self) -> None:
        faults = Faults()
        self.gather_faults(vars(self), faults)
        faults.refuse()

    @classmethod
    def gather_faults(cls, sections: Mapping[str, Any], faults: Faults) -> None:
        """Makes the checks whose sections are all there.

        Args:
            sections: Field name to value, of all fields or of those that were not refused.
            faults: Takes what the checks refuse.
        """
        for names, check in cls.cross_checks:
            if all(name in sections for name in names):
                with faults.gathering():
                    check(*(sections[name] for name in names))


ClassChoice = Callable[[Mapping[str, Any]], type]
"""From the values under a key, a ``name`` among them, to the dataclass they stand for."""


def by_name(choose: Callable[[str], type]) -> ClassChoice:
    """Returns the function that chooses a dataclass by the ``name`` among its values alone."""
    return lambda values: choose(values["name"])


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What is known of the configuration beyond the types of its dataclasses."""

    polymorphic: Mapping[str, ClassChoice]
    """Dotted key to the function from the values under it to the dataclass they stand for."""
    known_keys: tuple[str, ...]
    """Every dotted key, to suggest the one a misspelt key was meant to be."""


def build(values: Mapping[str, Any], cls: type, *, key: str, schema: Schema) -> Any:
    """Returns an instance of a dataclass from a mapping of its fields.

    Args:
        values: Field name to plain value.
        cls: The dataclass, or the base of the dataclasses chosen by ``name``.
        key: Dotted key of ``values``; empty for the root.
        schema: Which keys hold a class chosen by name, and which keys there are.

    Raises:
        InputError: A key is unknown, a value is missing or of the wrong type, or the class refuses;
            all that is wrong, in one error.
    """
    if key in schema.polymorphic:
        cls = _chosen_class(values, key, schema)
    hints = type_hints(cls)
    fields = {key_name(entry): entry for entry in configuration_fields(cls)}
    faults, arguments = Faults(), {}
    with faults.gathering():
        known = {*schema.known_keys, *(join_key(key, field) for field in fields)}
        unknown = [join_key(key, name) for name in values if name not in fields]
        if unknown:
            raise InputError(*(unknown_key(name, known) for name in unknown))
    for name, entry in fields.items():
        defaults = (entry.default, entry.default_factory)
        if name not in values and any(each is not dataclasses.MISSING for each in defaults):
            continue
        inner, hint = join_key(key, name), hints[entry.name]
        with faults.gathering():
            if values.get(name, MISSING) == MISSING:
                raise InputError(f"{inner} has no value; set {inner}=VALUE ({describe(hint)}).")
            removed = removed_key(f"{inner}={values[name]}")
            if removed:
                raise InputError(removed)
            arguments[entry.name] = convert(values[name], hint, key=inner, schema=schema)
    if faults.found and issubclass(cls, CrossChecked):
        cls.gather_faults(arguments, faults)
    faults.refuse()
    return cls(**arguments)


def convert(value: Any, hint: Any, *, key: str, schema: Schema) -> Any:
    """Returns a plain value as the instance of a type hint that it stands for.

    Args:
        value: A scalar, a list or a mapping.
        hint: What a field of a dataclass is annotated with.
        key: Dotted key of ``value``.
        schema: Which keys hold a class chosen by name, and which keys there are.

    Raises:
        InputError: The value is not of that type, or is a number that is not finite.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{key} must be a finite number, got {value}.")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise InputError(f"{key} must be a number below 1.8e308, got a larger one.")
    for member in union_members(hint):
        converted = _convert_member(value, member, key, schema)
        if converted is not _NO_MATCH:
            return converted
    is_word = isinstance(value, bool) and str in union_members(hint)
    advice = f"; {_in_quotes(key, value)}" if is_word else "."
    raise InputError(f"{key} must be {describe(hint)}, got {value!r}{advice}")


def _in_quotes(key: str, value: Any) -> str:
    """Return how to write texts that YAML or Hydra reads as true, false or null."""
    entries = value if isinstance(value, list | tuple) else [value]
    texts = (each if isinstance(each, str) else json.dumps(each) for each in entries)
    words = [quoted(text, '"') for text in texts]
    text = f"[{','.join(words)}]" if entries is value else words[0]
    return (
        f"put texts in quotes, as in {shlex.quote(f'{key}={text}')}, and in YAML also the words no,"
        " yes, on and off."
    )


def describe(hint: Any) -> str:
    """Returns a type hint in the words of an error message, such as ``a number or null``."""
    members = union_members(hint)
    if len(members) > 1:
        null_last = sorted(members, key=lambda member: member is type(None))
        return " or ".join(describe(member) for member in null_last)
    if get_origin(hint) is Literal:
        allowed = ", ".join(map(str, get_args(hint)))
        return allowed if len(get_args(hint)) == 1 else f"one of {allowed}"
    if _is_list(hint):
        return "a list, each entry " + describe(_entry_hint(hint))
    if hint in _WORDS:
        return _WORDS[hint]
    return "a group of keys" if _is_group(hint) else str(hint)


def union_members(hint: Any) -> tuple[Any, ...]:
    """Returns the types that a type hint allows, of which the first that a value fits is taken.

    Numbers and texts stand last, since a whole number is also a number and a number also a text.
    """
    if get_origin(hint) not in (Union, types.UnionType):
        return (hint,)
    return tuple(sorted(get_args(hint), key=lambda member: (member is str, member is float)))


_NO_MATCH = object()
"""Stands for the value that does not fit a type; no configuration can hold it."""
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
    Any: "any value",
}


def _convert_member(value: Any, hint: Any, key: str, schema: Schema) -> Any:
    """Returns a value as a type that is no union, or ``_NO_MATCH``."""
    if get_origin(hint) is Literal:
        return value if value in get_args(hint) else _NO_MATCH
    if isinstance(value, list | tuple) and _is_list(hint):
        if _entry_hint(hint) is str:
            for index, each in enumerate(value):
                if each is None or isinstance(each, bool):
                    raise InputError(
                        f"{key}[{index}] must be text, got {each!r}; {_in_quotes(key, value)}"
                    )
        entries = [
            convert(each, _entry_hint(hint), key=f"{key}[{index}]", schema=schema)
            for index, each in enumerate(value)
        ]
        return tuple(entries) if get_origin(hint) is tuple else entries
    if isinstance(value, Mapping):
        if dataclasses.is_dataclass(hint) or key in schema.polymorphic:
            return build(value, hint, key=key, schema=schema)
        if _is_group(hint):
            return {
                str(name): convert(each, _entry_hint(hint), key=join_key(key, name), schema=schema)
                for name, each in value.items()
            }
    if hint is Any or type(value) is hint:
        return value
    if hint is float and type(value) is int:
        return float(value)
    # Hydra reads `task.data_dir=2024` as a number; the user meant a name.
    if hint is str and type(value) in (int, float):
        return str(value)
    return _NO_MATCH


def _is_list(hint: Any) -> bool:
    return get_origin(hint) in (list, tuple)


def _is_group(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) or hint is dict or get_origin(hint) in (dict, Mapping)


def _entry_hint(hint: Any) -> Any:
    """Returns the type hint of what a list, a tuple or a dict holds under each index or name."""
    arguments = get_args(hint)
    if _is_list(hint):
        return arguments[0]
    return arguments[1] if arguments else Any


def _chosen_class(values: Mapping[str, Any], key: str, schema: Schema) -> type:
    """Returns the dataclass that the values under a polymorphic key choose.

    Raises:
        InputError: They hold no ``name``, or one that the key's registry refuses.
    """
    name = values.get("name", MISSING)
    if name == MISSING or not isinstance(name, str):
        raise InputError(
            f"{key} is not chosen; set {key}=NAME, and where its YAML is your own, give it the line"
            " 'name: NAME'."
        )
    return schema.polymorphic[key](values)


Config = TypeVar("Config")
VOCABULARY = "tokenizer"
"""A section that only a run of ``dpft tokenizer`` has."""


def load(
    cfg: DictConfig, root: type[Config], *, polymorphic: Mapping[str, ClassChoice] | None = None
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
    values: Any, root: type[Config], *, polymorphic: Mapping[str, ClassChoice] | None = None
) -> Config:
    """Returns the dataclasses that plain values stand for, each text as it is written.

    Saved values come this way and not by ``load``: a folder may have been received, and a text such
    as ``${oc.env:NAME}`` in it would be resolved there to a secret of whoever received it.
    """
    if not isinstance(values, Mapping):
        raise InputError("the configuration must be a mapping of keys to values.")
    schema = Schema(polymorphic=polymorphic or {}, known_keys=tuple(known_keys(root)))
    built: Config = build(values, root, key="", schema=schema)
    return built


def load_saved(
    path: Path, root: type[Config], *, polymorphic: Mapping[str, ClassChoice] | None = None
) -> Config:
    """Returns the configuration that ``dump`` wrote to a file; nothing in it is resolved.

    Raises:
        InputError: The file is missing or unreadable, or does not fit the dataclasses.
    """
    values = read_yaml(path)
    _drop_removed_keys(values)
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
    """Returns the absolute folder of the YAML configurations."""
    package = Path(dpft.__file__).resolve().parent
    places = (package / "conf", package.parent / "conf")
    for place in places:
        if place.is_dir():
            return place
    raise InputError(
        f"dpft's configurations are neither in {places[0]} (an installed wheel) nor in "
        f"{places[1]} (a checkout); install dpft again."
    )


def published_num_train_examples(task: str) -> int:
    """Returns the published number of training examples of a task, from conf/task."""
    folder = config_directory() / "task"
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if task not in names:
        near = nearest(task, names)
        hint = f"; did you mean {near}?" if near else f": {', '.join(names)}."
        raise InputError(
            f"train.transfer_sample_rate_from must name a task, got {task!r}, which is none{hint}"
        )
    size = yaml.safe_load((folder / f"{task}.yaml").read_text())["num_train_examples"]
    if not isinstance(size, int):
        raise InputError(
            f"train.transfer_sample_rate_from must name a task of a published size, got {task}."
        )
    return size
