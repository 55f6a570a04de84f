"""From what the words of a command compose to, to the configuration of what is to be done.

One function for each command that takes anything from a run's folder. Nothing here knows who wrote
the words or who composed them. What is wrong with a command is said before torch is imported, so
that only a run's own folder is read by rooms that need it.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, OmegaConf

from dpft.config.keys import WITNESS
from dpft.config.listing import naming_recipe
from dpft.config.load import Config, load, load_saved
from dpft.config.schema import (
    POLYMORPHIC,
    TASK,
    EvaluateConfig,
    GenerateConfig,
    PlanConfig,
    TrainCommand,
)
from dpft.config.tokenizer import CHANGEABLE, TokenizerCommand
from dpft.config.words import Words, given_overrides
from dpft.errors import InputError
from dpft.files import read_yaml
from dpft.run_folder import CONFIGURATION
from dpft.runs.overrides import (
    inherit,
    with_model_of_path,
    with_task_of_run,
    without_recipes_promise,
)
from dpft.runs.saved_run import saved_run
from dpft.runs.witnessing import refuse_witness_of_file
from dpft.tokenizers.tokenizer_config import OF_PIECES

if TYPE_CHECKING:
    from dpft.config.tune import TuneCommand

OF_RUN = ("task", "model", "eval", "decode", "metrics")
"""Sections that a run decides: ``eval run=`` takes them from it unless a word says otherwise."""

SCORED = {"run", "model", "task", "predictions", "human_eval", "experiment"}
"""Sections of which one at least says what ``dpft eval`` scores."""


def train_configuration(composed: DictConfig, words: Words) -> TrainCommand:
    """Returns what was composed, or with ``resume=RUN`` what that run was begun with.

    Raises:
        InputError: It is incomplete or wrong, or changes what a resumed run is bound to.
    """
    sections = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=False))
    refuse_witness_of_file(sections["privacy"], given=words.were_typed(WITNESS))
    if composed.get("resume") is not None:
        from dpft.runs.resuming import resumed_configuration

        values = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
        return resumed_configuration(str(composed.resume), values, words.keys)
    return _of_recipe(composed, words, TrainCommand)


def tune_configuration(composed: DictConfig, words: Words) -> "TuneCommand":
    """Returns what was composed, or with ``resume=RUN`` what that search was begun with.

    Raises:
        InputError: It is incomplete or wrong, or ``resume`` comes with anything else.
    """
    from dpft.config.tune import TuneCommand

    if composed.get("resume") is None:
        return _of_recipe(composed, words, TuneCommand)
    from dpft.runs.tuning.run_search import resumed_search

    others = sorted(set(words.keys) - {"resume"})
    if others:
        raise InputError(
            f"dpft tune resume=RUN goes on as the search was begun, got {others[0]} too; drop it."
        )
    return resumed_search(str(composed.resume))


def tokenizer_configuration(composed: DictConfig, words: Words) -> TokenizerCommand:
    """Returns what was composed, or with ``resume=RUN`` what that run was begun with.

    Raises:
        InputError: It is incomplete or wrong, or ``resume`` comes with more than a vocabulary.
    """
    if composed.get("resume") is None:
        return load(composed, TokenizerCommand, polymorphic=TASK)
    folder = str(composed.resume)
    others = sorted(set(words.keys) - set(CHANGEABLE))
    if others:
        raise InputError(
            "dpft tokenizer resume=RUN makes another vocabulary of the same noisy histogram, and"
            f" takes {', '.join(CHANGEABLE[1:])}, got {others[0]} too; drop it."
        )
    saved = load_saved(saved_configuration(folder), TokenizerCommand, polymorphic=TASK)
    given = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
    changed = {
        name: given["tokenizer"][name] for name in OF_PIECES if f"tokenizer.{name}" in words.keys
    }
    return replace(
        saved,
        tokenizer=replace(saved.tokenizer, **changed),
        resume=folder,
        output=given["output"],
    )


def saved_configuration(folder: str) -> Path:
    """Returns the file of a tokenizer's run that says how it was asked for.

    Raises:
        InputError: The folder has none.
    """
    path = Path(folder) / CONFIGURATION
    if not path.is_file() or "tokenizer" not in (read_yaml(path) or {}):
        raise InputError(
            f"resume must be the folder of a dpft tokenizer run, got {folder!r}; give the one that"
            " it named, such as outputs/DATE/TIME."
        )
    return path


def plan_configuration(composed: DictConfig, words: Words) -> PlanConfig:
    """Returns what was composed, of a run that is only planned.

    Raises:
        InputError: It is incomplete or wrong.
    """
    return _of_recipe(composed, words, PlanConfig)


def _of_recipe(composed: DictConfig, words: Words, root: type[Config]) -> Config:
    """Returns what was composed; a refusal says which line of the recipe sets the key.

    Raises:
        InputError: It is incomplete or wrong.
    """
    settled = without_recipes_promise(composed, words.job)
    with naming_recipe(words):
        return load(settled, root, polymorphic=POLYMORPHIC)


def evaluate_overrides(overrides: list[str]) -> list[str]:
    """Returns the overrides, with the task of the run that ``run=`` names chosen first.

    Raises:
        InputError: There is no such run, or another model is given with it; or nothing says what
            to score, or it is to be scored while training.
    """
    scheduled = sorted({"eval.every_steps", "eval.every_epochs"} & set(given_overrides(overrides)))
    if scheduled:
        raise InputError(
            f"{scheduled[0]} is for dpft train, which scores between its steps, got it for dpft"
            " eval, which scores once; drop it."
        )
    if not SCORED & {key.partition(".")[0] for key in given_overrides(overrides)}:
        raise InputError(
            "nothing says what to score; give run=RUN, the folder of a run, or another model with"
            " model=NAME task=NAME, or a file of outputs with predictions=FILE task=NAME."
        )
    expanded = with_task_of_run(overrides)
    models = sorted(key for key in given_overrides(overrides) if key.partition(".")[0] == "model")
    if expanded != overrides and models:
        raise InputError(
            f"at most one of run and {models[0]} may be given, got both; run=RUN scores the "
            "run's own model, and without run= any other model is scored."
        )
    return with_model_of_path(expanded)


def evaluate_configuration(composed: DictConfig, words: Words) -> list[EvaluateConfig]:
    """Returns what is to be scored; for a rating sheet each run that is to be on it.

    Raises:
        InputError: It is incomplete or wrong, or a run that it names is none.
    """
    config = load(composed, EvaluateConfig, polymorphic=TASK)
    if config.human_eval is not None:
        from dpft.runs.human_eval import rated_runs

        return [inherit(config, folder, OF_RUN, words) for folder in rated_runs(config)]
    return [config if config.run is None else inherit(config, config.run, OF_RUN, words)]


def generate_configuration(composed: DictConfig, words: Words) -> GenerateConfig:
    """Returns what is to be written, texts as long as the run's unless a word says otherwise.

    Whole records are as long as those that were trained on.

    Raises:
        InputError: It is incomplete or wrong, or the run that it names is none.
    """
    config = load(composed, GenerateConfig, polymorphic=TASK)
    saved = saved_run(config.run)
    config = inherit(config, config.run, ("task",), words)
    if "decode.max_new_tokens" in words.keys:
        return config
    # The first token of a record is given.
    whole = max(1, saved.task.longest - 1)
    longest = saved.decode.max_new_tokens if config.num is None else whole
    return replace(config, decode=replace(config.decode, max_new_tokens=longest))
