"""Turn the overrides of each command into its configuration, with values from the run it names.

With ``run=RUN`` a subcommand's ``expand`` chooses the run's task before Hydra composes, so that
every key of that task can be set; the values come from the run's config.yaml afterwards, unless an
override says otherwise. One function for each command that takes anything from a run's folder makes
its configuration. A fault in a command is said before torch is imported, so that only a run's own
folder is read by rooms that need it.
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
"""How the keys begin that say where rows are."""
SPLIT = {"eval.split", "eval.held_out"}
"""Keys that say which of those rows are scored."""
CLIPPING_NORM = "privacy.max_grad_norm"
CLIPPING_NORMS = ("method.bitfit_max_grad_norm",)
"""Keys outside ``privacy`` that say how gradients are clipped; null takes none."""


def with_task_of_run(overrides: list[str]) -> list[str]:
    """Return the overrides, with the task of the run that ``run=`` names chosen first."""
    folder = given_text(overrides, "run")
    if folder is None:
        return overrides
    return [f"task={saved_run(folder).task.name}", *overrides]


def with_model_of_path(overrides: list[str]) -> list[str]:
    """Return the overrides, with ``model=local`` first where only a folder is given.

    What a named model has besides its weights, such as targets of LoRA, is not the folder's.
    """
    given = given_overrides(overrides)
    is_named = "model" in given or "experiment" in given
    if is_named or given.get("model.path", "null") == "null":
        return overrides
    return ["model=local", *overrides]


def with_method_of_labels(overrides: list[str]) -> list[str]:
    """Return the overrides, with ``method=linear_probe`` first where labels of one's own need it.

    That is for a new head (``task.objective=cls``) on a pre-trained model, where neither a method
    nor a recipe is given: of the noise on every weight, hundreds or thousands of records learn
    nothing (docs/how-to/bad-scores.md).
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
    """Return a configuration with the run's own sections, changed where an override says so.

    Args:
        config: As Hydra composed it; a dataclass with a field ``run``.
        folder: The run's folder.
        sections: Those of its sections that the run decides.
        words: What the job was started with; the first chose the run's task.

    Raises:
        InputError: There is no such run, or it has a symbolic link in its folder.
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
        taken["eval"]["split_is_public"] = None  # It was said of other rows.
    if "eval" in taken and PUBLISH not in keys and (other_rows or SPLIT & set(keys)):
        taken["eval"]["publish_private_scores"] = False  # It was said of other scores.
    merged = from_values(given | taken, type(config))
    return merged.replace(run=folder)


def checked_overrides(overrides: list[str]) -> list[str]:
    """Return the overrides of train or plan, the model and the length that the user gave leading.

    A recipe (``experiment=``) may set train.steps, which would silently win over train.epochs.

    Raises:
        InputError: Both train.epochs and train.steps are given, or a promise with privacy=none.
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
    """Return what Hydra composed, without a recipe's guarantee where privacy=none was chosen.

    A private run is compared with ordinary training by the same recipe, and with its own clipped
    gradients without noise where an override gives a clipping norm: then the recipe's other words
    on clipping stay, too. What an override sets stays, to be refused; so does whatever a recipe
    says that chooses privacy=none itself.
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
"""Sections that a run decides: ``eval run=`` takes them from it unless a word says otherwise."""

SCORED = {"run", "model", "task", "predictions", "experiment"}
"""Sections of which one at least says what ``dpft eval`` scores."""


def train_configuration(composed: DictConfig, words: Words) -> TrainCommand:
    """Return what was composed, or with ``resume=RUN`` what that run was begun with.

    Raises:
        InputError: It is incomplete or wrong, or changes what a resumed run is bound to.
    """
    if composed.get("resume") not in (None, AUTO):
        from dpft.commands.interrupted_run import resumed_configuration

        values = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
        return resumed_configuration(str(composed.resume), values, words.keys)
    return _of_recipe(composed, words, TrainCommand)


def tune_configuration(composed: DictConfig, words: Words) -> "TuneCommand":
    """Return what was composed, or with ``resume=RUN`` what that search was begun with.

    Raises:
        InputError: It is incomplete or wrong, or ``resume`` comes with anything else.
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
    """Return what was composed, or with ``resume=RUN`` what that run was begun with.

    Raises:
        InputError: It is incomplete or wrong, or ``resume`` comes with more than a vocabulary.
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
    """Return what was composed, of a run that is only planned."""
    return _of_recipe(composed, words, PlanConfig)


def _of_recipe(composed: DictConfig, words: Words, root: type[Config]) -> Config:
    """Return what was composed, with the recipe's privacy settings that privacy=none keeps."""
    settled = without_recipes_promise(composed, words.job)
    return load(settled, root)


def evaluate_overrides(overrides: list[str]) -> list[str]:
    """Return the overrides, with the task of the run that ``run=`` names chosen first.

    Raises:
        InputError: There is no such run, or another model is given with it; or nothing says what
            to score, or it is to be scored while training.
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
    """Return what is to be scored."""
    config = load(composed, EvaluateConfig)
    return config if config.run is None else inherit(config, config.run, OF_RUN, words)


def generate_configuration(composed: DictConfig, words: Words) -> GenerateConfig:
    """Return what is to be written, texts as long as the run's unless a word says otherwise.

    Whole records are as long as those that were trained on.
    """
    config = load(composed, GenerateConfig)
    saved = saved_run(config.run)
    config = inherit(config, config.run, ("task",), words)
    if "decode.max_new_tokens" in words.keys:
        return config
    # The first token of a record is given.
    whole = max(1, saved.task.longest - 1)
    longest = saved.decode.max_new_tokens if config.num is None else whole
    return config.replace(decode=config.decode.replace(max_new_tokens=longest))
