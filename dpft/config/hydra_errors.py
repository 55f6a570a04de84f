"""Hydra's and OmegaConf's errors, said in one sentence each.

The sentence names the key or group, the value, what is allowed, and the nearest known name.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
    ValidationError,
)

from dpft.config.keys import join_key, nearest, nearest_keys, unknown_key
from dpft.errors import InputError

_SUBMITIT = "hydra-submitit-launcher==1.2.0"
LAUNCHERS = {
    "joblib": "hydra-joblib-launcher==1.2.0",
    "submitit_local": _SUBMITIT,
    "submitit_slurm": _SUBMITIT,
}
"""Launchers that dpft is tested with, and what brings them."""


def as_input_error(error: Exception, known: Iterable[str]) -> InputError:
    """Returns the error a user can mend that stands behind one of Hydra's.

    Args:
        error: What Hydra, OmegaConf or the YAML parser raised.
        known: Dotted keys of the configuration's dataclasses.
    """
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(error, MissingConfigException):
        return InputError(_unknown_option(error))
    if isinstance(error, OverrideParseException):
        return InputError(_unreadable_override(error))
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
        if isinstance(cause.parent_node, DictConfig) and not cause.parent_node:
            return InputError(_new_entry(cause.full_key))
        return InputError(unknown_key(cause.full_key, {*known, *_composed_keys(cause)}))
    if isinstance(cause, ValidationError) and cause.full_key:
        return InputError(f"{cause.full_key}: {_first_line(cause)}")
    return InputError(f"the configuration cannot be composed: {_one_line(error, cause)}")


def refused_key(error: Exception) -> str | None:
    """Returns the dotted key that one of OmegaConf's errors is of, also inside one of Hydra's."""
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    return cause.full_key or None if isinstance(cause, OmegaConfBaseException) else None


def suggested_keys(error: Exception, known: Iterable[str]) -> list[str]:
    """Returns the keys that an unknown key was probably meant to be; other errors have none.

    Args:
        error: As for ``as_input_error``.
        known: As for ``as_input_error``.
    """
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if not (isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key):
        return []
    near = nearest_keys(cause.full_key, {*known, *_composed_keys(cause)})
    return [key for key in near if key != cause.full_key]


@contextmanager
def full_errors() -> Iterator[None]:
    """Make Hydra raise its errors instead of printing them and leaving the process."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        del os.environ["HYDRA_FULL_ERROR"]
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before


def _unknown_option(error: MissingConfigException) -> str:
    """Returns the sentence for ``GROUP=OPTION`` with no such option."""
    group, slash, option = (error.missing_cfg_file or "").rpartition("/")
    if not slash or not error.options:
        return f"the configuration cannot be composed: {_first_line(error)}"
    if group == "hydra/launcher" and option in LAUNCHERS:
        return f"{group}={option} needs a plugin of Hydra; pip install {LAUNCHERS[option]}."
    near = nearest(option, error.options)
    hint = f"did you mean {group}={near}? Choose" if near else "choose"
    allowed = ", ".join(sorted(error.options))
    return f"{group}={option}: there is no such {group}; {hint} one of {allowed}."


def _new_entry(key: str) -> str:
    """Returns the sentence for an entry of an empty mapping, which Hydra wants a plus for."""
    mapping = key.rpartition(".")[0]
    return (
        f"{mapping} has no entry to change, got {key}; add entries as '+{mapping}={{NAME: VALUE}}'."
    )


def _unreadable_override(error: OverrideParseException) -> str:
    reason = " ".join(error.message.split("\n")[0].split())
    return (
        f"cannot read the argument {error.override!r} ({reason}); "
        "write key=value, with both kinds of quotes, as in 'key=\"VALUE\"', around values that "
        "hold spaces, commas, brackets or braces."
    )


def _composed_keys(cause: OmegaConfBaseException) -> list[str]:
    """Returns the keys of the configuration an error arose in, its chosen groups' included."""
    if not isinstance(cause.parent_node, DictConfig):
        return []
    return dotted_keys(cause.parent_node._get_root())


def dotted_keys(node: Any, parent: str = "") -> list[str]:
    """Returns the keys of a configuration node, inner ones included; values are not resolved."""
    keys = []
    for name in node:
        key, inner = join_key(parent, name), node._get_node(name)
        keys.append(key)
        if isinstance(inner, DictConfig) and not (inner._is_none() or inner._is_missing()):
            keys += dotted_keys(inner, key)
    return keys


def _one_line(error: Exception, cause: BaseException | None) -> str:
    parts = [" ".join(str(part).split()) for part in (error, cause) if part is not None]
    return "; ".join(dict.fromkeys(part for part in parts if part))


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") + "."
