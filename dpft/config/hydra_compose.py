"""Composition of a configuration from overrides by Hydra, and translation of Hydra's errors.

The command line starts from ``hydra.main``, which also runs sweeps. Both the command line and a
call from Python (``compose``) produce a ``Composed``, so overrides have the same meaning in both.

An error message names the key or group, the value, the allowed values, and the nearest known name.
Hydra stops at the first argument that it cannot compose, so each command reports one such error.
"""

import itertools
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any

import hydra
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, QuotedString
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
    ValidationError,
)
from yaml import YAMLError

from dpft.config.keys import (
    in_shell,
    join_key,
    key_of,
    known_keys,
    nearest,
    quoted,
    unknown_key,
)
from dpft.config.load import config_directory
from dpft.config.removed import removed_key
from dpft.errors import Fault, InputError
from dpft.run_folder import CONFIGURATION, HYDRA, OVERRIDES


@dataclass(frozen=True, kw_only=True)
class Words:
    """Overrides that a job was started with, as ``key=value``."""

    job: tuple[str, ...]
    """Overrides of the job; in a sweep, they include its parameters from every source."""
    typed: tuple[str, ...]
    """Arguments of the command line itself."""

    @property
    def keys(self) -> list[str]:
        """The keys that the job's overrides set."""
        return list(given_overrides(self.job))


def given_overrides(overrides: Sequence[str]) -> dict[str, str]:
    """Return the keys that the overrides set, with the values as written."""
    return {key_of(override): override.partition("=")[2] for override in overrides}


def given_text(overrides: Sequence[str], key: str) -> str | None:
    """Return the text that the overrides set a key to, without quotes; None if unset or null.

    If Hydra cannot parse the override, the text is returned as written, and Hydra rejects it later.
    """
    written = given_overrides(overrides).get(key)
    if not written or written == "null":
        return None
    try:
        override = _parser().parse_override(f"{key}={written}")
    except HydraException:
        return written
    return written if override.is_sweep_override() else str(override.value())


def check_groups(overrides: Sequence[str]) -> None:
    """Reject arguments that set a group of keys to a value other than the name of an option.

    Raises:
        InputError: An argument is, for example, train=null, train=3 or train=[a]. Hydra itself
            would raise a bare ValueError.
    """
    faults = []
    for word in overrides:
        try:
            override = _parser().parse_override(word)
        except HydraException:  # Hydra reports the argument later
            continue
        group = override.key_or_group
        folder = config_directory() / group
        if override.is_delete() or not (folder.is_dir() or "/" in group):
            continue
        value = override.value()
        values = value.list if isinstance(value, ChoiceSweep) else [value]
        if not all(isinstance(value, str | QuotedString | Glob | dict) for value in values):
            options = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
            faults.append(
                Fault(
                    f"{word} must name an option of the group {group}. Omit it, or choose"
                    f" {'one of ' * bool(options)}{options or 'an option'}.",
                    key=group,
                    value=word.partition("=")[2],
                )
            )
    if faults:
        raise InputError(*faults)


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


_SUBMITIT = "hydra-submitit-launcher==1.2.0"
LAUNCHERS = {
    "joblib": "hydra-joblib-launcher==1.2.0",
    "submitit_local": _SUBMITIT,
    "submitit_slurm": _SUBMITIT,
}
"""Launchers that dpft is tested with, and the packages that contain them."""


def as_input_error(
    error: Exception, known_keys: Iterable[str], words: Sequence[str] = ()
) -> InputError:
    """Return an input error for an error of Hydra, with a message that states how to fix it.

    Args:
        error: The error.
        known_keys: Dotted keys to suggest for an unknown key.
        words: The arguments of the command.
    """
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(error, MissingConfigException):
        return InputError(_unknown_option(error))
    if isinstance(error, OverrideParseException):
        return InputError(
            f"cannot read the argument {error.override!r}. A value without quotes can contain only"
            r" ASCII letters, digits and $%*+-./:?@\_|, so quote it for the shell and for Hydra.",
            key=key_of(str(error.override)),
            hint=_quoted_override(str(error.override)),
        )
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
        if isinstance(cause.parent_node, DictConfig) and not cause.parent_node:
            mapping = cause.full_key.rpartition(".")[0]
            return InputError(
                f"{mapping} has no entry to change, got {cause.full_key}. Add an entry instead.",
                key=cause.full_key,
                hint=f"'+{mapping}={{NAME: VALUE}}'",
            )
        value_by_key = {key_of(word): word.partition("=")[2] for word in words}
        keys = set(known_keys)
        if isinstance(cause.parent_node, DictConfig):
            # The keys of the configuration in which the error occurred, with its chosen groups.
            keys.update(dotted_keys(cause.parent_node._get_root()))
        return InputError(unknown_key(cause.full_key, keys, value=value_by_key.get(cause.full_key)))
    if isinstance(cause, ValidationError) and cause.full_key:
        return InputError(f"{cause.full_key}: {_first_line(cause)}", key=cause.full_key)
    messages = [" ".join(str(part).split()) for part in (error, cause) if part is not None]
    reasons = "; ".join(dict.fromkeys(part for part in messages if part))
    return InputError(f"the configuration cannot be composed: {reasons}", key=None)


def _quoted_override(override: str) -> str:
    """Return an unreadable argument quoted for a shell and for Hydra, or an example.

    The entries of a list are quoted one by one. If the quoted argument is still unreadable, an
    example is returned.
    """
    key, _, value = override.partition("=")
    if value[:1] in ("'", '"'):
        value = value.strip("'\"")
    word, mark = in_shell(key, value), '"'
    if value[:1] == "[" and value[-1:] == "]":
        entries = (entry.strip().strip("'\"") for entry in value[1:-1].split(","))
        word = shlex.quote(f"{key}=[{','.join(quoted(entry, mark) for entry in entries)}]")
    try:
        _parser().parse_override(shlex.split(word)[0])
    except (HydraException, ValueError):
        return "'key=\"VALUE\"'"
    return word


@contextmanager
def full_errors() -> Iterator[None]:
    """Make Hydra raise its errors instead of printing them and exiting."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        del os.environ["HYDRA_FULL_ERROR"]
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before


def _unknown_option(error: MissingConfigException) -> Fault:
    """Return the fault for ``GROUP=OPTION`` with an unknown option."""
    group, slash, option = (error.missing_cfg_file or "").rpartition("/")
    if not slash or not error.options:
        return Fault(f"the configuration cannot be composed: {_first_line(error)}", key=None)
    if group == "hydra/launcher" and option in LAUNCHERS:
        return Fault(
            f"{group}={option} needs a plugin of Hydra, which is not installed.",
            key=group,
            value=option,
            hint=f"pip install {LAUNCHERS[option]}",
        )
    removed = removed_key(f"{group}={option}")
    if removed:
        return Fault(removed, key=group, value=option)
    near = nearest(option, error.options)
    options = "" if near else f" Choose one of {', '.join(sorted(error.options))}."
    return Fault(
        f"{group}={option}: there is no such {group}.{options}",
        key=group,
        value=option,
        hint=near and f"{group}={near}",
    )


def dotted_keys(node: Any, parent: str = "") -> list[str]:
    """Return the keys of a configuration node, including nested keys, without resolving values."""
    keys = []
    for name in node:
        key, inner = join_key(parent, name), node._get_node(name)
        keys.append(key)
        if isinstance(inner, DictConfig) and not (inner._is_none() or inner._is_missing()):
            keys += dotted_keys(inner, key)
    return keys


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") + "."


_COMPOSING = RLock()
"""Lock for Hydra's global state, which two threads must not change at the same time."""


@contextmanager
def hydra_of_our_own() -> Iterator[None]:
    """Set Hydra up for dpft's configurations inside the block, then restore the caller's setup."""
    with _COMPOSING:
        state = GlobalHydra.instance()
        before = state.hydra
        state.clear()
        try:
            with initialize_config_dir(str(config_directory()), version_base="1.3"):
                yield
        finally:
            GlobalHydra.set_instance(state)
            state.hydra = before


def unused_folder(path: str) -> str:
    """Return ``path``, or the first of ``path-2``, ``path-3``, … that does not exist yet.

    The time in a folder's name has a resolution of one second, but several runs may start within
    one second.
    """
    candidates = itertools.chain([path], (f"{path}-{number}" for number in itertools.count(2)))
    return next(candidate for candidate in candidates if not Path(candidate).exists())


def register_resolver() -> None:
    """Register the resolver ``${unused_folder:PATH}``; each configuration resolves it only once."""
    OmegaConf.register_new_resolver("unused_folder", unused_folder, use_cache=True, replace=True)


NOT_COMPOSED = (HydraException, OmegaConfBaseException, YAMLError)
"""Errors that the composition of a configuration may raise."""


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Composed configuration and overrides of one job."""

    values: DictConfig
    """Configuration, without Hydra's own node."""
    hydra: DictConfig
    """Hydra's own node."""
    words: Words

    def write_record(self, folder: Path) -> None:
        """Write ``.hydra/{config,hydra,overrides}.yaml`` into a run's folder, as Hydra does."""
        record = folder / HYDRA
        record.mkdir(exist_ok=True)
        OmegaConf.save(self.values, record / CONFIGURATION)
        public = OmegaConf.create({"hydra": OmegaConf.to_container(self.hydra, resolve=False)})
        for name in ("cwd", "output_dir", "config_sources"):
            # Absolute paths would reveal the user and the machine.
            public.hydra.runtime.pop(name, None)
        OmegaConf.save(public, record / "hydra.yaml")
        OmegaConf.save(OmegaConf.create(list(self.words.job)), folder / OVERRIDES)

    @property
    def folder(self) -> Path:
        """The folder from ``hydra.run.dir``; the job may use another folder instead."""
        return Path(str(self.hydra.run.dir))


def compose(name: str, overrides: Sequence[str], root: type) -> Composed:
    """Return the configuration that the overrides of a command compose.

    Args:
        name: The name of the command, whose primary configuration is ``conf/<name>.yaml``.
        overrides: ``key=value`` and ``group=option``, as on the command line.
        root: The class of the configuration, whose keys an error message may suggest.

    Raises:
        InputError: Hydra cannot compose an argument. The error describes the first such argument.
    """
    register_resolver()
    check_groups(overrides)
    try:
        with hydra_of_our_own():
            composed = hydra.compose(name, overrides=list(overrides), return_hydra_config=True)
    except NOT_COMPOSED as error:
        raise as_input_error(error, known_keys(root), overrides) from error
    hydra_node = composed.hydra
    values = composed.copy()
    with open_dict(values):
        del values["hydra"]
    return Composed(
        values=values,
        hydra=hydra_node,
        words=Words(job=tuple(hydra_node.overrides.task), typed=tuple(overrides)),
    )
