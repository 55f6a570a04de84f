"""The configuration of ``dpft tune``: a training run, a search space and how the best is chosen.

What would void the bound is rejected here, before anything is read: scores of private records,
settings that choose the data or the guarantee, and noise that is not calibrated.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from dpft.config.keys import known_keys, leaves, unknown_key
from dpft.config.load import from_values, plain
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.config.section import CrossCheck, Section
from dpft.errors import InputError
from dpft.evaluation.eval_config import EvalConfig, eval_split_is_public
from dpft.parallel.parallel_config import LaunchConfig, ParallelConfig
from dpft.privacy.accounting.selection import TrialCount
from dpft.privacy.mechanisms.base import MechanismConfig
from dpft.privacy.privacy_config import Privacy
from dpft.tasks.base import Task
from dpft.training.trackers import TrackingConfig

SECTIONS = ("train", "method", "optimizer", "scheduler", "model")
"""Sections whose keys a trial may draw; of privacy only the keys of ``CLIPPING``."""
CLIPPING = ("privacy.max_grad_norm", "privacy.clipping", "privacy.groups")
TOKENIZER_KEYS = ("model.tokenizer", "model.tokenizer_is_public")
MOST_SETTINGS = 10_000


class SearchSpace(Section):
    """What trials draw from, ``conf/tuning/<name>.yaml``."""

    name: str
    """Which search space; chosen by tuning=NAME."""
    space: dict[str, Any]
    """Key to the list of values it may have, nested as the keys are."""

    def values(self) -> dict[str, list[Any]]:
        """Return the space with dotted keys."""
        space = leaves(self.space)
        for key, values in space.items():
            if key.partition(".")[0] not in SECTIONS and key not in CLIPPING:
                raise InputError(
                    f"tuning.space may hold keys of {', '.join(SECTIONS)} and"
                    f" {', '.join(CLIPPING)}, got {key}: it is the same in every trial."
                )
            if key in TOKENIZER_KEYS:
                raise InputError(
                    f"tuning.space may not hold {key}: each tokenizer has a cost of its own, and"
                    " the search's report would have that of one; give one for all trials."
                )
            if not isinstance(values, list) or not values:
                raise InputError(
                    f"tuning.space.{key} must be a list of at least one value, got {values!r}."
                )
        return space

    def settings(self) -> list[dict[str, Any]]:
        """Return every setting that a trial may draw."""
        space = self.values()
        num_settings = math.prod(map(len, space.values()))
        if not space or num_settings > MOST_SETTINGS:
            raise InputError(
                f"tuning.space must hold at least one key and at most {MOST_SETTINGS} settings,"
                f" got {len(space)} keys and {num_settings} settings."
            )
        return [
            dict(zip(space, drawn, strict=True)) for drawn in itertools.product(*space.values())
        ]


class TuneSettings(Section):
    """How many trials are drawn, and by what the best is chosen."""

    eta: float = 0.0
    """Shape of the number of trials: 0 logarithmic, 1 geometric; above -1. More costs more."""
    gamma: float = 0.025
    """Scale of the number of trials, in (0, 1): smaller means more of them."""
    metric: str | None = None
    """Key of metrics.json; null takes the task's first metric."""

    @property
    def count(self) -> TrialCount:
        """The distribution of the number of trials."""
        return TrialCount(eta=self.eta, gamma=self.gamma)

    def _check_fields(self) -> None:
        self.count  # noqa: B018


def _check_guarantee(privacy: Privacy) -> None:
    guarantee = privacy.guarantee
    if guarantee is None or guarantee.eps is None:
        raise InputError(
            "tune needs privacy.eps, which the whole search is calibrated to, got none; tune"
            " without privacy with dpft train --multirun."
        )
    for name in ("resume_overspend", "show_diagnostics"):
        if getattr(guarantee, name):
            raise InputError(f"tune needs privacy.{name}=false, got true: its bound has no room.")


def _check_scores(task: Task, config: EvalConfig) -> None:
    if not config.enabled:
        raise InputError("tune needs eval.enabled=true, got false: it chooses by a score.")
    if config.schedule_key is not None:
        raise InputError(
            f"tune needs {config.schedule_key}=null, got a value: it scores a trial when it ends."
        )
    if config.held_out is not None:
        raise InputError(
            f"tune needs eval.held_out=null, got {config.held_out}: it scores a public split, and"
            " what is held out of your records is private."
        )
    if not eval_split_is_public(task, config):
        raise InputError(
            f"tune scores a public split, got eval.split={config.split} of task"
            f" {task.name}, which is private until a noisy score is accounted inside each"
            " trial; choose a published split, or say eval.split_is_public=true of one that is."
        )


def _check_tracking(tracking: TrackingConfig) -> None:
    if tracking.name != "none":
        raise InputError(
            f"tune needs tracking=none, got tracking={tracking.name}: a tracker would show"
            " how many trials there are and how each scored."
        )


def _check_processes(parallel: ParallelConfig, launch: LaunchConfig) -> None:
    for section, name in (("parallel", parallel.name), ("launch", launch.name)):
        if name != "none":
            raise InputError(
                f"tune needs {section}=none, got {section}={name}: its trials run in one process."
            )


def _check_steps(mechanism: MechanismConfig) -> None:
    if mechanism.makes.has_streams:
        raise InputError(
            f"tune needs mechanism=dp_sgd, got mechanism={mechanism.name}: its settings may differ"
            " in how many steps and what batch there are, and so in what a band of steps is."
        )


class TuneCommand(TrainCommand):
    """``dpft tune``, conf/tune.yaml, which takes all that train takes."""

    command_examples: ClassVar[tuple[str, ...]] = (
        "task=e2e model=gpt2 privacy.eps=3",
        "task=e2e model=gpt2 privacy.eps=3 tune.gamma=0.1",
        "task=e2e model=gpt2 privacy.eps=3 tuning.space.train.learning_rate=[1e-3,2e-3]",
    )

    tuning: SearchSpace
    tune: TuneSettings = Field(default_factory=TuneSettings)

    cross_checks: ClassVar[tuple[CrossCheck, ...]] = (
        *TrainCommand.cross_checks,
        (("privacy",), _check_guarantee),
        (("task", "eval"), _check_scores),
        (("tracking",), _check_tracking),
        (("tuning",), SearchSpace.settings),
        (("parallel", "launch"), _check_processes),
        (("mechanism",), _check_steps),
    )


def with_setting(config: TrainConfig, setting: Mapping[str, Any]) -> TrainConfig:
    """Return a configuration with some of its keys set."""
    if "train.epochs" in setting and config.train.steps is not None:
        raise InputError(
            f"tuning.space draws train.epochs, which train.steps={config.train.steps} replaces;"
            " drop one of the two."
        )
    values = plain(config)
    for key, value in setting.items():
        *path, name = key.split(".")
        section = values
        for part in path:
            section = section.get(part, {})
        if name not in section:
            raise InputError(unknown_key(key, known_keys(TrainConfig)))
        section[name] = value
    return from_values(values, TrainConfig)
