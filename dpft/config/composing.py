"""Hydra: the words of a command, what they compose to, its errors, and what there is to choose.

The command line proper starts from ``hydra.main``, which runs sweeps too; what it hands on is the
same ``Composed`` that ``compose`` gives to a call from Python, so that words mean one thing
wherever they are written.

A sentence of an error names the key or group, the value, what is allowed, and the nearest known
name. Hydra ends at the first word that it cannot take. Where it does, the words are composed again
without that word, until what is left can be composed, and then checked as a job's configuration is:
all faults are said at once.

A YAML begins with a line of what it is and where it is from; ``listed`` gives that line of each.
"""

import itertools
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import hydra
import yaml
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

from dpft.config.account import check_output
from dpft.config.keys import (
    WITNESS,
    in_shell,
    join_key,
    key_of,
    known_keys,
    nearest,
    nearest_keys,
    quoted,
    unknown_key,
)
from dpft.config.load import config_directory
from dpft.config.removed import removed_key
from dpft.errors import Faults, InputError
from dpft.files import CONFIGURATION, HYDRA, OVERRIDES


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a job was started with, as ``key=value``."""

    job: tuple[str, ...]
    """Overrides of the job; in a sweep, its parameters among them, whoever set those."""
    typed: tuple[str, ...]
    """Words of the command line itself."""

    @property
    def keys(self) -> list[str]:
        """The keys that the job's overrides set."""
        return list(given_overrides(self.job))

    def were_typed(self, key: str) -> bool:
        """Returns whether a word of the command line itself sets a key."""
        return key in given_overrides(self.typed)


def given_overrides(overrides: Sequence[str]) -> dict[str, str]:
    """Returns the keys that the overrides set, and the values as they were written."""
    return {key_of(override): override.partition("=")[2] for override in overrides}


def given_text(overrides: Sequence[str], key: str) -> str | None:
    """Returns the text that the overrides set a key to, without its quotes; None: none, or null.

    A word that Hydra cannot read is left to it to refuse.
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
        InputError: Such as train=null, train=3 or train=[a]; Hydra raises a bare ValueError.
    """
    faults = []
    for word in overrides:
        try:
            override = _parser().parse_override(word)
        except HydraException:  # Hydra names the argument later
            continue
        group = override.key_or_group
        folder = config_directory() / group
        if override.is_delete() or not (folder.is_dir() or "/" in group):
            continue
        given = override.value()
        values = given.list if isinstance(given, ChoiceSweep) else [given]
        if not all(isinstance(value, str | QuotedString | Glob | dict) for value in values):
            options = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
            faults.append(
                f"{word} must name an option of the group {group}; leave it out, or choose"
                f" {'one of ' * bool(options)}{options or 'an option'}."
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
"""Launchers that dpft is tested with, and what brings them."""


def as_input_error(error: Exception, known: Iterable[str]) -> InputError:
    """Returns the error a user can mend that stands behind one of Hydra's."""
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(error, MissingConfigException):
        return InputError(_unknown_option(error))
    if isinstance(error, OverrideParseException):
        return InputError(
            f"cannot read the argument {error.override!r}, because only ASCII letters, digits and"
            r" $%*+-./:?@\_| may stand in a value without quotes; quote it for the shell and for"
            f" Hydra: {_quoted_override(str(error.override))}"
        )
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
        if isinstance(cause.parent_node, DictConfig) and not cause.parent_node:
            mapping = cause.full_key.rpartition(".")[0]
            return InputError(
                f"{mapping} has no entry to change, got {cause.full_key}; add entries as"
                f" '+{mapping}={{NAME: VALUE}}'."
            )
        return InputError(unknown_key(cause.full_key, {*known, *_composed_keys(cause)}))
    if isinstance(cause, ValidationError) and cause.full_key:
        return InputError(f"{cause.full_key}: {_first_line(cause)}")
    said = [" ".join(str(part).split()) for part in (error, cause) if part is not None]
    reasons = "; ".join(dict.fromkeys(part for part in said if part))
    return InputError(f"the configuration cannot be composed: {reasons}")


def _quoted_override(override: str) -> str:
    """Return an unreadable argument quoted for a shell and for Hydra, or else an example.

    The entries of a list are quoted one by one.
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


def suggested_keys(error: Exception, known: Iterable[str]) -> list[str]:
    """Returns the keys that an unknown key was probably meant to be; other errors have none."""
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
    removed = removed_key(f"{group}={option}")
    if removed:
        return removed
    near = nearest(option, error.options)
    hint = f"did you mean {group}={near}? Choose" if near else "choose"
    allowed = ", ".join(sorted(error.options))
    return f"{group}={option}: there is no such {group}; {hint} one of {allowed}."


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


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") + "."


_COMPOSING = RLock()
"""Hydra has one state a process, which two threads must not change at once."""


@contextmanager
def hydra_of_our_own() -> Iterator[None]:
    """Sets Hydra up for dpft's configurations inside the block; a caller's own setup comes back."""
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
    """Returns ``path``, or ``path-2``, ``path-3``, … : the first that does not exist yet.

    The time in a folder's name has a resolution of one second; runs may start closer together.
    """
    candidates = itertools.chain([path], (f"{path}-{number}" for number in itertools.count(2)))
    return next(candidate for candidate in candidates if not Path(candidate).exists())


def register_resolver() -> None:
    """Make ``${unused_folder:PATH}`` known to OmegaConf; one configuration gets one answer."""
    OmegaConf.register_new_resolver("unused_folder", unused_folder, use_cache=True, replace=True)


NOT_COMPOSED = (HydraException, OmegaConfBaseException, YAMLError)
"""What the composition of a configuration may raise."""
Load = Callable[[DictConfig, Words], Any]
"""From what the words of a command compose to, and these words, to its dataclasses."""


def all_faults(
    name: str,
    overrides: Sequence[str],
    first: Exception,
    *,
    known: Sequence[str],
    load: Load | None = None,
) -> InputError:
    """Returns one error of everything that is wrong with words that Hydra cannot compose.

    Args:
        name: The subcommand.
        overrides: Its words.
        first: What Hydra raised of them.
        known: Dotted keys of the configuration's dataclasses.
        load: Makes the dataclasses of what is composed, or refuses it. It is not asked where a
            word was left out, whose lack it might refuse, nor of a run that is gone on with.
    """
    faults, words, complete, error = Faults(), list(overrides), True, first
    # Twice as many: a misspelt key may become a group that has no such option.
    for _ in range(2 * len(overrides) + 1):
        faults.found += as_input_error(error, known).faults
        mended = _mended(words, error, known)
        if mended is None:
            break
        words, complete = mended.words, complete and mended.complete
        try:
            with hydra_of_our_own():
                config = hydra.compose(name, overrides=words)
        except NOT_COMPOSED as next_one:
            error = next_one
            continue
        if load and complete and not any(key_of(word) == "resume" for word in words):
            with faults.gathering():
                load(config, Words(job=tuple(words), typed=tuple(words)))
        break
    return InputError(*dict.fromkeys(faults.found))


class _Mended(NamedTuple):
    words: list[str]
    complete: bool
    """Whether every word still says what it was meant to say."""


def _mended(words: list[str], error: Exception, known: Sequence[str]) -> _Mended | None:
    """Returns the words without the one that an error is of, or with the key it was meant to have.

    None where the error is of none of them.
    """
    if isinstance(error, OverrideParseException):
        return _without(words, [word for word in words if word == error.override])
    if isinstance(error, MissingConfigException):
        group = (error.missing_cfg_file or "").rpartition("/")[0]
        return _without(words, [w for w in words if key_of(w).partition(".")[0] == group])
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    key = cause.full_key or None if isinstance(cause, OmegaConfBaseException) else None
    wrong = [word for word in words if key_of(word) == key]
    near = suggested_keys(error, known)
    if not wrong or len(near) != 1 or near[0] in map(key_of, words):
        return _without(words, wrong)
    value = wrong[-1].partition("=")[2]
    others = [word for word in words if word not in wrong]
    return _Mended([*others, f"{near[0]}={value}"], True)


def _without(words: list[str], wrong: list[str]) -> _Mended | None:
    return _Mended([word for word in words if word not in wrong], False) if wrong else None


@dataclass(frozen=True, kw_only=True)
class Composed:
    """What the words of one job compose to."""

    values: DictConfig
    """The configuration, without Hydra's own node."""
    hydra: DictConfig
    """Hydra's own node."""
    words: Words

    def write_record(self, folder: Path) -> None:
        """Write ``.hydra/{config,hydra,overrides}.yaml`` into a run's folder, as Hydra does."""
        record = folder / HYDRA
        record.mkdir(exist_ok=True)
        shown = self.values.copy()
        if OmegaConf.select(shown, WITNESS) is not None:
            OmegaConf.update(shown, WITNESS, None)
        OmegaConf.save(shown, record / CONFIGURATION)
        public = OmegaConf.create({"hydra": OmegaConf.to_container(self.hydra, resolve=False)})
        for name in ("cwd", "output_dir", "config_sources"):
            # absolute paths: they name the user and the machine
            public.hydra.runtime.pop(name, None)
        words = [word for word in self.words.job if key_of(word) != WITNESS]
        if len(words) < len(self.words.job):
            public.hydra.overrides.task = words
            public.hydra.job.override_dirname = ",".join(words)
        OmegaConf.save(public, record / "hydra.yaml")
        OmegaConf.save(OmegaConf.create(words), folder / OVERRIDES)

    @property
    def folder(self) -> Path:
        """The folder that ``hydra.run.dir`` gives the job, unless it stands elsewhere."""
        return Path(str(self.hydra.run.dir))


def compose(name: str, overrides: Sequence[str], root: type, load: Load | None = None) -> Composed:
    """Returns what the words of a command compose to.

    Args:
        name: The command's, whose primary configuration is ``conf/<name>.yaml``.
        overrides: ``key=value`` and ``group=option``, as on the command line.
        root: The dataclass of the configuration, whose keys a refusal may suggest.
        load: Makes the dataclasses of what is composed; asked for what else is wrong where the
            words cannot be composed.
    """
    register_resolver()
    check_groups(overrides)
    try:
        with hydra_of_our_own():
            composed = hydra.compose(name, overrides=list(overrides), return_hydra_config=True)
    except NOT_COMPOSED as error:
        raise all_faults(name, overrides, error, known=known_keys(root), load=load) from error
    own = composed.hydra
    values = composed.copy()
    with open_dict(values):
        del values["hydra"]
    return Composed(
        values=values, hydra=own, words=Words(job=tuple(own.overrides.task), typed=tuple(overrides))
    )


GROUPS = {"tasks": "task", "models": "model", "methods": "method", "recipes": "experiment"}
"""What can be asked for, and the folder of conf/ that has it."""
LISTED = (*GROUPS, "metrics")
CHECKED = "run by make recipes"
"""How each recipe is checked: ``make recipes`` trains, scores and reports it in small."""


@dataclass(frozen=True, kw_only=True)
class ListConfig:
    """``dpft list``, conf/list.yaml."""

    what: str = ""
    """tasks, models, methods, recipes or metrics."""
    output: str = "table"
    """table for people, or json: one object on stdout."""

    def __post_init__(self) -> None:
        check_output(self.output)
        if self.what not in LISTED:
            raise InputError(
                f"dpft list needs one of {', '.join(LISTED)}, as in dpft list tasks, got"
                f" {self.what!r}."
            )


def listed(what: str) -> dict[str, str]:
    """Returns each name and what it is, in a line; of a recipe also how it is checked."""
    if what == "metrics":
        from dpft.evaluation.metrics.base import METRICS

        return {name: spec.description for name, spec in METRICS.entries().items()}
    checked = f"{CHECKED}  " if what == "recipes" else ""
    files = sorted((config_directory() / GROUPS[what]).glob("*.yaml"))
    return {file.stem: f"{checked}{purpose(file)}" for file in files}


def purpose(file: Path) -> str:
    """Returns what a YAML is for: its first comment, without the command that shows its use."""
    with file.open(encoding="utf-8") as stream:
        comments = [line[1:].strip() for line in stream if line.startswith("#")]
    first = next((line for line in comments if not line.startswith("@package")), "")
    for mark in (" Run: ", ": dpft "):
        first = first.partition(mark)[0]
    return first if first.endswith(".") or not first else f"{first}."


@contextmanager
def naming_recipe(words: Words) -> Iterator[None]:
    """Has a refusal inside the block say which line of a recipe sets the key that it begins with.

    Args:
        words: Of which ``experiment`` is a file of conf/experiment; those that it builds on are
            looked through after it.
    """
    try:
        yield
    except InputError as error:
        recipe = given_text(words.job, "experiment")
        if recipe is None:
            raise
        raise InputError(*(_naming_recipe(fault, recipe) for fault in error.faults)) from None


def _naming_recipe(fault: str, recipe: str) -> str:
    key = fault.partition(" ")[0]
    found = _line_of(key.split("."), recipe) if "." in key else None
    if found is None:
        return fault
    return f"{fault.removesuffix('.')}; {found[0]}, line {found[1]}, sets it to {found[2]}."


def _line_of(keys: list[str], recipe: str) -> tuple[str, int, str] | None:
    """Returns file, line and value of a recipe's own setting of a key; None where it has none."""
    file = config_directory() / "experiment" / f"{recipe}.yaml"
    if not file.is_file():
        return None
    root = node = yaml.compose(file.read_text(encoding="utf-8"))
    for key in keys:
        held = node.value if isinstance(node, yaml.MappingNode) else ()
        node = next((value for name, value in held if name.value == key), None)
    if isinstance(node, yaml.ScalarNode):
        return f"conf/experiment/{recipe}.yaml", node.start_mark.line + 1, node.value
    bases = next((value for name, value in root.value if name.value == "defaults"), None)
    for base in () if bases is None else bases.value:
        if isinstance(base, yaml.ScalarNode) and base.value != "_self_":
            return _line_of(keys, base.value)
    return None
