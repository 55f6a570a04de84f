"""Conversion of a command's overrides to its configuration, with values of the run that they name.

With ``run=RUN``, the ``expand`` function of a subcommand selects the run's task before Hydra
composes, so that every key of that task can be set. Afterwards, the values are taken from the run's
config.yaml unless an override sets them. For each command that reads a run's folder, one function
in this module makes the configuration. Errors in the arguments are reported before torch is
imported; only reading the run's own folder requires torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, OmegaConf, open_dict

from dpft.commands.ledger_account import saved_run
from dpft.config.hydra_compose import Words, given_overrides, given_text
from dpft.config.keys import (
    AUTO,
    copy_key,
    join_key,
    key_of,
)
from dpft.config.load import (
    Config,
    config_directory,
    from_values,
    load,
    load_saved,
    plain,
    read_saved,
)
from dpft.config.schema import (
    CHANGEABLE,
    EvaluateConfig,
    GenerateConfig,
    PlanConfig,
    TokenizerCommand,
    TrainCommand,
)
from dpft.errors import InputError
from dpft.privacy.privacy_config import NoPrivacy, PrivacyConfig
from dpft.run_folder import CONFIGURATION, read_yaml, refuse_links
from dpft.tokenizers import OF_PIECES

if TYPE_CHECKING:
    from dpft.config.tune import TuneCommand


PUBLIC, PUBLISH = "eval.split_is_public", "eval.publish_private_scores"
ROWS = ("task.data_dir", "task.source", "task.hub_", "task.urls")
"""Prefixes of the keys that set the source of the rows."""
SPLIT = {"eval.split", "eval.held_out"}
"""Keys that select the rows to score."""
CLIPPING_NORM = "privacy.max_grad_norm"
CLIPPING_NORMS = ("method.bitfit_max_grad_norm",)
"""Keys outside ``privacy`` that set how gradients are clipped; null sets no norm."""


def with_task_of_run(overrides: list[str]) -> list[str]:
    """Return the overrides. If ``run=`` is given, put that run's task first."""
    folder = given_text(overrides, "run")
    if folder is None:
        return overrides
    return [f"task={saved_run(folder).task.name}", *overrides]


def with_model_of_path(overrides: list[str]) -> list[str]:
    """Return the overrides, preceded by ``model=local`` if only a model folder is given.

    Other settings of a named model, such as the targets of LoRA, do not apply to the folder.
    """
    given = given_overrides(overrides)
    is_named = "model" in given or "experiment" in given
    if is_named or given.get("model.path", "null") == "null":
        return overrides
    return ["model=local", *overrides]


def with_method_of_labels(overrides: list[str]) -> list[str]:
    """Return the overrides, preceded by ``method=linear_probe`` if that is the better default.

    This is the case for a new head (``task.objective=cls``) on a pre-trained model that learns your
    own labels, if neither a method nor a recipe is given. With noise on every weight, a model
    learns nothing from hundreds or thousands of records (docs/how-to/hyperparameters.md).
    """
    given = given_overrides(overrides)
    decided = {"method", "experiment", "resume", "task.prompt"} & set(given)
    if given.get("resume") == AUTO:
        decided.remove("resume")
    if given.get("task") != "custom" or given_text(overrides, "task.label") is None or decided:
        return overrides
    file = config_directory() / f"model/{given.get('model', 'gpt2')}.yaml"
    model = read_yaml(file) if file.is_file() else {}
    start = given.get("model.init", model.get("init", "pretrained"))
    untaught = start != "pretrained" or (model.get("embedded") and "model.path" not in given)
    if untaught or given.get("task.objective", "cls") != "cls":
        return overrides
    return ["method=linear_probe", *overrides]


def inherit(config: Config, folder: str, sections: Sequence[str], words: Words) -> Config:
    """Return a configuration with sections of the run, changed by the overrides.

    Args:
        config: The composed configuration, which has a field ``run``.
        folder: Folder of the run.
        sections: The sections that are taken from the run.
        words: The overrides of the job. The first override selected the task of the run.

    Raises:
        InputError: There is no such run, or its folder contains a symbolic link.
    """
    refuse_links(Path(folder))
    saved: dict[str, Any] = plain(saved_run(folder))
    taken = {name: saved[name] for name in sections}
    given = plain(config)
    keys = [key_of(override) for override in words.job[1:]]
    for key in keys:
        if key.partition(".")[0] in taken:
            copy_key(key.split("."), given, taken)
    other_rows = any(key.startswith(ROWS) for key in keys)
    if "eval" in taken and PUBLIC not in keys and other_rows:
        taken["eval"]["split_is_public"] = None  # The run's setting was for other rows.
    if "eval" in taken and PUBLISH not in keys and (other_rows or SPLIT & set(keys)):
        taken["eval"]["publish_private_scores"] = False  # The run's setting was for other scores.
    merged = from_values(given | taken, type(config))
    return merged.replace(run=folder)


def checked_overrides(overrides: list[str]) -> list[str]:
    """Return the overrides of train or plan, with the changes that a given model or length needs.

    A recipe (``experiment=``) may set train.steps, which would silently take precedence over
    train.epochs.

    Raises:
        InputError: Both train.epochs and train.steps are given, or a privacy setting is given with
            privacy=none.
    """
    given = given_overrides(overrides)
    lengths = {key for key in ("train.epochs", "train.steps") if given.get(key, "null") != "null"}
    if len(lengths) == 2:
        raise InputError(
            "at most one of train.epochs and train.steps may be given, got both. Remove one:"
            " train.steps replaces the epochs of a recipe.",
            key="train.epochs",
            value=given["train.epochs"],
        )
    allowed = {join_key("privacy", name) for name in NoPrivacy.model_fields}
    promised = sorted({key for key in given if key.startswith("privacy.")} - allowed)
    if given.get("privacy") == "none" and promised:
        raise InputError(
            f"{promised[0]} has no effect with privacy=none, which trains without a guarantee."
            " Remove one of the two.",
            key=promised[0],
            value=given[promised[0]],
        )
    led_by_recipe = lengths == {"train.epochs"} and "experiment" in given
    overrides = with_method_of_labels(with_model_of_path(overrides))
    return [*overrides, "train.steps=null"] if led_by_recipe else overrides


def without_recipes_promise(composed: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Return the composed configuration, without a recipe's guarantee if privacy=none was chosen.

    This lets you compare a private run with ordinary training by the same recipe. If an override
    sets a clipping norm, the comparison run clips gradients without noise and keeps the recipe's
    other clipping settings. Settings from overrides are kept, so that they are rejected later.
    Nothing changes if the recipe itself chooses privacy=none.
    """
    given = given_overrides(overrides)
    if given.get("privacy") != "none":
        return composed
    clips = given.get(CLIPPING_NORM, "null") != "null"
    kept = {*(NoPrivacy if clips else PrivacyConfig).model_fields, "num_examples"}
    ours = composed.copy()
    with open_dict(ours):
        for name in set(ours.privacy) - kept:
            if join_key("privacy", name) not in given:
                del ours.privacy[name]
        for key in () if clips else CLIPPING_NORMS:
            section, _, name = key.partition(".")
            if name in ours[section] and key not in given:
                ours[section][name] = None
    return ours


OF_RUN = ("task", "model", "eval", "decode", "metrics")
"""Sections that ``eval run=`` takes from the run unless an override sets them."""

SCORED = {"run", "model", "task", "predictions", "experiment"}
"""Sections that select the model or file to score; ``dpft eval`` requires at least one of them."""


def train_configuration(composed: DictConfig, words: Words) -> TrainCommand:
    """Return the composed configuration, or with ``resume=RUN`` that run's configuration.

    Raises:
        InputError: The configuration is incomplete or invalid, or changes a setting that a resumed
            run must keep.
    """
    if composed.get("resume") not in (None, AUTO):
        from dpft.commands.interrupted_run import resumed_configuration

        values = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
        return resumed_configuration(str(composed.resume), values, words.keys)
    return _of_recipe(composed, words, TrainCommand)


def tune_configuration(composed: DictConfig, words: Words) -> "TuneCommand":
    """Return the composed configuration, or with ``resume=RUN`` that search's configuration.

    Raises:
        InputError: The configuration is incomplete or invalid, or ``resume`` is combined with
            another key.
    """
    from dpft.config.tune import TuneCommand

    if composed.get("resume") is None:
        return _of_recipe(composed, words, TuneCommand)
    from dpft.commands.tune import resumed_search

    others = sorted(set(words.keys) - {"resume"})
    if others:
        raise InputError(
            "dpft tune resume=RUN resumes a search with the settings that it began with, so"
            f" {others[0]} cannot be set. Remove the key.",
            key=others[0],
        )
    return resumed_search(str(composed.resume))


def tokenizer_configuration(composed: DictConfig, words: Words) -> TokenizerCommand:
    """Return the composed configuration, or with ``resume=RUN`` that run's configuration.

    Raises:
        InputError: The configuration is incomplete or invalid, or ``resume`` is combined with a key
            that does not belong to a vocabulary.
    """
    if composed.get("resume") is None:
        return load(composed, TokenizerCommand)
    folder = str(composed.resume)
    others = sorted(set(words.keys) - set(CHANGEABLE))
    if others:
        raise InputError(
            "dpft tokenizer resume=RUN makes another vocabulary of the same noisy histogram, and"
            f" accepts only {', '.join(CHANGEABLE[1:])}, got {others[0]}. Remove the key.",
            key=others[0],
        )
    path = Path(folder) / CONFIGURATION
    if read_saved(path).get("tokenizer") is None:
        raise InputError(
            f"resume must be the folder of a dpft tokenizer run, got {folder!r}.",
            key="resume",
            value=folder,
            hint="resume=outputs/DATE/TIME",
        )
    saved = load_saved(path, TokenizerCommand)
    given = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
    changed = {
        name: given["tokenizer"][name] for name in OF_PIECES if f"tokenizer.{name}" in words.keys
    }
    return saved.replace(
        tokenizer=saved.tokenizer.replace(**changed), resume=folder, output=given["output"]
    )


def plan_configuration(composed: DictConfig, words: Words) -> PlanConfig:
    """Return the composed configuration of a run that is only planned."""
    return _of_recipe(composed, words, PlanConfig)


def _of_recipe(composed: DictConfig, words: Words, root: type[Config]) -> Config:
    """Return the composed configuration; privacy=none removes the recipe's guarantee."""
    settled = without_recipes_promise(composed, words.job)
    return load(settled, root)


def evaluate_overrides(overrides: list[str]) -> list[str]:
    """Return the overrides. If ``run=`` is given, put that run's task first.

    Raises:
        InputError: There is no such run, a model is given with a run, or there is nothing to score.
            A schedule for scoring during training is rejected too.
    """
    scheduled = sorted({"eval.every_steps", "eval.every_epochs"} & set(given_overrides(overrides)))
    if scheduled:
        raise InputError(
            f"{scheduled[0]} applies to dpft train, which scores between its steps, but dpft eval"
            " scores once. Remove the key.",
            key=scheduled[0],
        )
    if not SCORED & {key.partition(".")[0] for key in given_overrides(overrides)}:
        raise InputError(
            "dpft eval needs a run to score, another model with model=NAME task=NAME, or a file of"
            " outputs with predictions=FILE task=NAME.",
            key="run",
            hint="dpft eval run=outputs/DATE/TIME",
        )
    expanded = with_task_of_run(overrides)
    models = sorted(key for key in given_overrides(overrides) if key.partition(".")[0] == "model")
    if expanded != overrides and models:
        raise InputError(
            f"at most one of run and {models[0]} may be given, got both. run=RUN scores the model"
            " of the run; remove it to score another model.",
            key=models[0],
        )
    return with_model_of_path(expanded)


def evaluate_configuration(composed: DictConfig, words: Words) -> EvaluateConfig:
    """Return the configuration of ``dpft eval``; ``run=`` adds the sections of the run."""
    config = load(composed, EvaluateConfig)
    return config if config.run is None else inherit(config, config.run, OF_RUN, words)


def generate_configuration(composed: DictConfig, words: Words) -> GenerateConfig:
    """Return the configuration of ``dpft generate``.

    By default, texts have the same maximum length as in the run, and whole records have the same
    maximum length as the training records.
    """
    config = load(composed, GenerateConfig)
    saved = saved_run(config.run)
    config = inherit(config, config.run, ("task",), words)
    if "decode.max_new_tokens" in words.keys:
        return config
    # The first token of a record is not generated.
    whole = max(1, saved.task.longest - 1)
    longest = saved.decode.max_new_tokens if config.num is None else whole
    return config.replace(decode=config.decode.replace(max_new_tokens=longest))
