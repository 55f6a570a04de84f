"""The words of a call from Python: what may stand among them, and what they compose to."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from dpft.config.account import AccountConfig
from dpft.config.composing import Composed, compose
from dpft.config.faults import Load
from dpft.config.keys import quoted
from dpft.config.load import load
from dpft.config.schema import EvaluateConfig, GenerateConfig, PlanConfig, TrainCommand
from dpft.config.tune import TuneCommand
from dpft.config.words import Words, given_text
from dpft.data.memory import MEMORY
from dpft.errors import InputError
from dpft.runs.configuring import (
    evaluate_configuration,
    generate_configuration,
    plan_configuration,
    train_configuration,
    tune_configuration,
)

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
