"""What a command takes from the run that its words name, and which words do not go together.

With ``run=RUN`` a subcommand's ``expand`` chooses the run's task before Hydra composes, so that
every key of that task can be set; the values come from the run's config.yaml afterwards, unless an
override says otherwise.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from omegaconf import DictConfig, open_dict

from dpft.config.keys import configuration_fields, copy_key, join_key, key_of, plain
from dpft.config.load import from_values
from dpft.config.location import config_directory
from dpft.config.schema import TASK
from dpft.config.words import Words, given_overrides, given_text
from dpft.errors import InputError
from dpft.files import read_yaml
from dpft.links import refuse_links
from dpft.privacy.privacy_config import NoPrivacy, PrivacyConfig
from dpft.runs.saved_run import saved_configuration

Config = TypeVar("Config")
PUBLIC, PUBLISH = "eval.split_is_public", "eval.publish_private_scores"
ROWS = ("task.data_dir", "task.source", "task.hub_", "task.urls")
"""How the keys begin that say where rows are."""
SPLIT = {"eval.split", "eval.held_out"}
"""Keys that say which of those rows are scored."""
CLIPPING_NORM = "privacy.max_grad_norm"
CLIPPING_NORMS = ("method.bitfit_max_grad_norm",)
"""Keys outside ``privacy`` that say how gradients are clipped; null takes none."""


def with_task_of_run(overrides: list[str]) -> list[str]:
    """Returns the overrides, with the task of the run that ``run=`` names chosen first.

    Raises:
        InputError: There is no such run.
    """
    folder = given_text(overrides, "run")
    if folder is None:
        return overrides
    return [f"task={saved_configuration(folder)['task']['name']}", *overrides]


def with_model_of_path(overrides: list[str]) -> list[str]:
    """Returns the overrides, with ``model=local`` first where only a folder is given.

    What a named model has besides its weights, such as targets of LoRA, is not the folder's.
    """
    given = given_overrides(overrides)
    is_named = "model" in given or "experiment" in given
    if is_named or given.get("model.path", "null") == "null":
        return overrides
    return ["model=local", *overrides]


def with_method_of_labels(overrides: list[str]) -> list[str]:
    """Returns the overrides, with ``method=linear_probe`` first where labels of one's own need it.

    That is for a new head (``task.objective=cls``) on a pre-trained model, where neither a method
    nor a recipe is given: of the noise on every weight, hundreds or thousands of records learn
    nothing (docs/how-to/bad-scores.md).
    """
    given = given_overrides(overrides)
    decided = {"method", "experiment", "resume", "task.prompt"} & set(given)
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
    """Returns a configuration with the run's own sections, changed where an override says so.

    Args:
        config: As Hydra composed it; a dataclass with a field ``run``.
        folder: The run's folder.
        sections: Those of its sections that the run decides.
        words: What the job was started with; the first chose the run's task.

    Raises:
        InputError: There is no such run, or it has a symbolic link in its folder.
    """
    refuse_links(Path(folder))
    saved = saved_configuration(folder)
    taken = {name: saved[name] for name in sections}
    given = plain(config)
    keys = [key_of(override) for override in words.job[1:]]
    for key in keys:
        if key.partition(".")[0] in taken:
            copy_key(key.split("."), given, taken)
    other_rows = any(key.startswith(ROWS) for key in keys)
    if "eval" in taken and PUBLIC not in keys and other_rows:
        taken["eval"]["split_is_public"] = None  # It was said of other rows.
    if "eval" in taken and PUBLISH not in keys and (other_rows or SPLIT & set(keys)):
        taken["eval"]["publish_private_scores"] = False  # It was said of other scores.
    merged = from_values(given | taken, type(config), polymorphic=TASK)
    return dataclasses.replace(merged, run=folder)  # type: ignore[type-var]


def checked_overrides(overrides: list[str]) -> list[str]:
    """Returns the overrides of train or plan, the model and the length that the user gave leading.

    A recipe (``experiment=``) may set train.steps, which would silently win over train.epochs.

    Raises:
        InputError: Both train.epochs and train.steps are given, or a promise with privacy=none.
    """
    given = given_overrides(overrides)
    lengths = {key for key in ("train.epochs", "train.steps") if given.get(key, "null") != "null"}
    if len(lengths) == 2:
        raise InputError(
            "at most one of train.epochs and train.steps may be given, got both; steps replaces "
            "the recipe's epochs."
        )
    _refuse_promise_without_privacy(given)
    led_by_recipe = lengths == {"train.epochs"} and "experiment" in given
    overrides = with_method_of_labels(with_model_of_path(overrides))
    return [*overrides, "train.steps=null"] if led_by_recipe else overrides


def without_recipes_promise(composed: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Returns what Hydra composed, without a recipe's guarantee where privacy=none was chosen.

    A private run is compared with ordinary training by the same recipe, and with its own clipped
    gradients without noise where an override gives a clipping norm: then the recipe's other words
    on clipping stay, too. What an override sets stays, to be refused; so does whatever a recipe
    says that chooses privacy=none itself.

    Args:
        composed: The configuration; it is not changed.
        overrides: Those of the job.
    """
    given = given_overrides(overrides)
    if given.get("privacy") != "none":
        return composed
    clips = given.get(CLIPPING_NORM, "null") != "null"
    kept = {entry.name for entry in configuration_fields(NoPrivacy if clips else PrivacyConfig)}
    kept.add("num_examples")
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


def _refuse_promise_without_privacy(given: dict[str, str]) -> None:
    allowed = {join_key("privacy", entry.name) for entry in configuration_fields(NoPrivacy)}
    promised = sorted({key for key in given if key.startswith("privacy.")} - allowed)
    if given.get("privacy") == "none" and promised:
        raise InputError(
            f"privacy=none trains without a guarantee and has no {promised[0]}, got both; "
            "drop one of the two."
        )
