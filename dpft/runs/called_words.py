"""What a call from Python hands over: words, and a model and a tokenizer as objects.

Words are checked and composed as those of a command line. Objects are written into
``private/base_model`` and read from there as any folder's are, so that a run that breaks off goes
on without them, and the objects themselves never change.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.config.account import AccountConfig
from dpft.config.composing import Composed, compose
from dpft.config.hydra_errors import Load
from dpft.config.keys import quoted
from dpft.config.load import load
from dpft.config.schema import EvaluateConfig, GenerateConfig, PlanConfig, TrainCommand
from dpft.config.tune import TuneCommand
from dpft.config.words import Words, given_overrides, given_text
from dpft.data.raw_rows import MEMORY
from dpft.errors import InputError
from dpft.files import check_writable
from dpft.links import refuse_links
from dpft.run_folder import BASE_MODEL, CONFIGURATION, LOCK, PRIVATE, TUNING, hold_run, private_path
from dpft.runs.configuring import (
    evaluate_configuration,
    generate_configuration,
    plan_configuration,
    train_configuration,
    tune_configuration,
)
from dpft.runs.folder import refuse_used_folder

Folder = str | os.PathLike[str]
IN_MEMORY = ("task.data_dir=null", f"task.source={MEMORY}")
"""Words that have rows read from memory, whatever the words before them say."""


def checked_words(overrides: Sequence[str], rows: object) -> list[str]:
    """Returns a caller's words, as a list.

    Args:
        overrides: ``key=value`` and ``group=option``.
        rows: Given in memory; None: there are none.

    Raises:
        InputError: One is no such word, or says that rows are elsewhere while some are given.
    """
    if isinstance(overrides, str):
        raise InputError(f"overrides must be a list of words, got {overrides!r}; give [...].")
    for word in overrides:
        if not isinstance(word, str):  # It may be a row.
            raise InputError(
                f"overrides must be words KEY=VALUE, got a {type(word).__name__}; give rows as"
                " rows=..."
            )
        if word.startswith("-") or "=" not in word:
            raise InputError(
                f"overrides must be words KEY=VALUE, got {word!r}; sweeps and other flags are for"
                " the command line."
            )
    for key in ("task.data_dir", "task.source"):
        if rows is not None and given_text(overrides, key) is not None:
            raise InputError(f"at most one of {key} and rows may be given, got both.")
    return list(overrides)


def memory_words(rows: object, resumed: str | None = None) -> tuple[str, ...]:
    """Returns the words that have rows in memory read; a run that goes on is bound to its source.

    Args:
        rows: Given in memory; None: there are none.
        resumed: The run that goes on.
    """
    return () if rows is None or resumed is not None else IN_MEMORY


def run_and_words(
    run: Folder | Sequence[str] | None, overrides: Sequence[str], rows: object, *, call: str
) -> list[str]:
    """Returns the words of a call whose first argument is a run or, as for train, the words.

    Args:
        run: The run, or words that may name one; None: the overrides are all there is.
        overrides: As for ``checked_words``.
        rows: As for ``checked_words``.
        call: How the function is called, for messages.

    Raises:
        InputError: As ``checked_words``, or the first argument is neither.
    """
    if run is None:
        return checked_words(overrides, rows)
    if isinstance(run, str | os.PathLike):
        return [f"run={quoted(os.fspath(run))}", *checked_words(overrides, rows)]
    if not isinstance(run, list | tuple):
        raise InputError(
            f"the first argument must be a run or words KEY=VALUE, got a {type(run).__name__}; call"
            f" {call}."
        )
    return checked_words([*run, *checked_words(overrides, rows)], rows)


def as_word(value: Any) -> str:
    """Returns a number or a path as the value of a word."""
    value = as_text(value)
    return str(value) if isinstance(value, int) else quoted(os.fspath(value))


def account_configuration(composed: DictConfig, words: Words) -> AccountConfig:
    """Returns what was composed for ``dpft account``, which takes nothing from a run's folder."""
    return load(composed, AccountConfig)


@dataclass(frozen=True)
class Command:
    """A command as a call from Python composes it."""

    name: str
    root: type
    load: Load

    def compose(self, words: Sequence[str], folder: Folder | None = None) -> Composed:
        """Returns what the words compose to, in a folder of the caller's where one is given."""
        place = [] if folder is None else [f"hydra.run.dir={quoted(os.fspath(folder))}"]
        return compose(self.name, [*words, *place], self.root, self.load)

    def place(self, words: list[str], folder: Folder | None, resumed: str | None) -> Path:
        """Returns the folder of a run: the one given, the one it goes on in, or a new one."""
        if folder is not None and resumed is not None:
            raise InputError(
                f"at most one of resume and folder may be given, got both ({resumed})."
            )
        given = folder if folder is not None else resumed
        return Path(given) if given is not None else self.compose(words).folder


TRAIN_COMMAND = Command("train", TrainCommand, train_configuration)
TUNE_COMMAND = Command("tune", TuneCommand, tune_configuration)
PLAN_COMMAND = Command("plan", PlanConfig, plan_configuration)
EVALUATE_COMMAND = Command("eval", EvaluateConfig, evaluate_configuration)
ACCOUNT_COMMAND = Command("account", AccountConfig, account_configuration)
GENERATE_COMMAND = Command("generate", GenerateConfig, generate_configuration)


def as_text(value: Any) -> Any:
    """Returns a setting with runs and paths as texts."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [as_text(inner) for inner in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def model_words(model: object, tokenizer: object, overrides: list[str], folder: Path) -> list[str]:
    """Returns the words that choose a model given as an object.

    Args:
        model: The object; None: there is none, and there are no words.
        tokenizer: Its tokenizer.
        overrides: The caller's words.
        folder: Of the run.

    Raises:
        InputError: One comes without the other or is of another kind, or the words choose a model
            too.
    """
    if model is None and tokenizer is None:
        return []
    _check(model, tokenizer)
    assert isinstance(model, PreTrainedModel)
    chosen = sorted({"model", "model.path", "model.hub_name"} & set(given_overrides(overrides)))
    if chosen:
        raise InputError(f"at most one of {chosen[0]}= and a model object may be given, got both.")
    name = (model.name_or_path or "").rpartition("/")[2] or str(model.config.model_type)
    path = quoted(str(folder / BASE_MODEL))
    return ["model=local", f"model.name={quoted(name)}", f"model.path={path}"]


@contextmanager
def kept_model(model: object, tokenizer: object, folder: Path) -> Iterator[None]:
    """Keeps a model and its tokenizer in a run's folder, unless the run in the block is refused.

    Args:
        model: The object; None: there is none, and nothing is written.
        tokenizer: Its tokenizer.
        folder: Of the run.

    Raises:
        InputError: Privacy was spent in the folder, or it cannot be written to.
    """
    if model is None:
        yield
        return
    assert isinstance(model, PreTrainedModel) and isinstance(tokenizer, PreTrainedTokenizerBase)
    refuse_links(folder)
    refuse_used_folder(folder)
    check_writable(folder)
    places = (folder / PRIVATE, folder, *folder.parents)
    missing = [place for place in places if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    ours = False
    try:
        with hold_run(folder):
            ours = True  # Another process that holds the folder may have put its own there.
            _write(model, tokenizer, private_path(folder, BASE_MODEL))
        yield
    finally:
        begun = (folder / CONFIGURATION).exists() or (folder / TUNING).exists()
        if ours and not begun:
            shutil.rmtree(folder / BASE_MODEL, ignore_errors=True)
            _remove_empty(missing)


def _check(model: object, tokenizer: object) -> None:
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        way_out = (
            "; give the base model and method=lora (its adapters' weights merged, if it has any)"
            if kind.startswith("Peft")
            else "; any other module trains by dpft.privacy.clipping.PerExampleClipper in a loop of"
            " your own"
        )
        raise InputError(f"model must be a transformers.PreTrainedModel, got {kind}{way_out}.")
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError(
            "tokenizer must be the model's transformers tokenizer, got"
            f" {type(tokenizer).__name__}; load it with AutoTokenizer.from_pretrained."
        )


def _write(model: PreTrainedModel, tokenizer: Any, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    model.save_pretrained(path, safe_serialization=True)
    tokenizer.save_pretrained(path)
    for file in path.iterdir():
        file.chmod(0o600)


def _remove_empty(made: list[Path]) -> None:
    """Removes the folders that were made for a run that was refused."""
    with suppress(OSError):  # Something of the run's is there.
        for place in made:
            if place.name == PRIVATE:
                (place.parent / LOCK).unlink(missing_ok=True)
            place.rmdir()
