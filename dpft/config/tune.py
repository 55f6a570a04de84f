"""Configuration of ``dpft tune``: a training run, a search space and the choice of the best trial.

Settings that would invalidate the bound are rejected here, before any record is read: scores of
private records, keys that choose the data or the guarantee, and noise that is not calibrated.
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
"""Sections whose keys a trial may set. From privacy, a trial may set only the keys of
``CLIPPING``."""
CLIPPING = ("privacy.max_grad_norm", "privacy.clipping", "privacy.groups")
TOKENIZER_KEYS = ("model.tokenizer", "model.tokenizer_is_public")
MOST_SETTINGS = 10_000


class SearchSpace(Section):
    """Search space of the trials, ``conf/tuning/<name>.yaml``."""

    name: str
    """Name of the search space, chosen by tuning=NAME."""
    space: dict[str, Any]
    """Possible values of each key, as a list; nested like the keys of the configuration."""

    def values(self) -> dict[str, list[Any]]:
        """Return the search space with dotted keys."""
        space = leaves(self.space)
        for key, values in space.items():
            if key.partition(".")[0] not in SECTIONS and key not in CLIPPING:
                raise InputError(
                    f"tuning.space can contain keys of {', '.join(SECTIONS)} and"
                    f" {', '.join(CLIPPING)}, got {key}, which must be the same in every trial.",
                    key=f"tuning.space.{key}",
                    value=values,
                )
            if key in TOKENIZER_KEYS:
                raise InputError(
                    f"tuning.space must not contain {key}, because each tokenizer has its own"
                    " privacy cost and the search reports only one. Set the key for all trials.",
                    key=f"tuning.space.{key}",
                    value=values,
                    hint=f"{key}=VALUE",
                )
            if not isinstance(values, list) or not values:
                raise InputError(
                    f"tuning.space.{key} must be a list of at least one value, got {values!r}.",
                    key=f"tuning.space.{key}",
                    value=values,
                    hint=f"'tuning.space.{key}=[A,B]'",
                )
        return space

    def settings(self) -> list[dict[str, Any]]:
        """Return all settings that a trial may use."""
        space = self.values()
        num_settings = math.prod(map(len, space.values()))
        if not space or num_settings > MOST_SETTINGS:
            raise InputError(
                f"tuning.space must contain at least one key and at most {MOST_SETTINGS} settings,"
                f" got {len(space)} keys and {num_settings} settings.",
                key="tuning.space",
                value=num_settings,
            )
        return [
            dict(zip(space, drawn, strict=True)) for drawn in itertools.product(*space.values())
        ]


class TuneSettings(Section):
    """Number of trials, and the metric that chooses the best trial."""

    eta: float = 0.0
    """Shape of the distribution of the number of trials, above -1: 0 is logarithmic, 1 is
    geometric. A larger value costs more privacy."""
    gamma: float = 0.025
    """Scale of the distribution of the number of trials, in (0, 1): a smaller value means more
    trials."""
    metric: str | None = None
    """Key of metrics.json that chooses the best trial (null: the task's first metric)."""

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
            "dpft tune needs privacy.eps, because it calibrates the whole search to this value. To"
            " search without privacy, use dpft train --multirun.",
            key="privacy.eps",
            hint="privacy.eps=3",
        )
    for name in ("resume_overspend", "show_diagnostics"):
        if getattr(guarantee, name):
            raise InputError(
                f"dpft tune needs privacy.{name}=false, got true. The bound of a search does not"
                " cover this setting.",
                key=f"privacy.{name}",
                value=True,
                hint=f"privacy.{name}=false",
            )


def _check_scores(task: Task, config: EvalConfig) -> None:
    if not config.enabled:
        raise InputError(
            "dpft tune needs eval.enabled=true, got false, because it chooses by a score.",
            key="eval.enabled",
            value=False,
            hint="eval.enabled=true",
        )
    key = config.schedule_key
    if key is not None:
        raise InputError(
            f"dpft tune needs {key}=null, because it scores a trial only when the trial ends.",
            key=key,
            hint=f"{key}=null",
        )
    if config.held_out is not None:
        raise InputError(
            f"dpft tune needs eval.held_out=null, got {config.held_out}. It scores a public split,"
            " and held-out records of your data are private.",
            key="eval.held_out",
            value=config.held_out,
            hint="eval.held_out=null",
        )
    if not eval_split_is_public(task, config):
        raise InputError(
            f"dpft tune scores a public split, but eval.split={config.split} of task {task.name} is"
            " private. Choose a published split, or set eval.split_is_public=true if the split is"
            " public.",
            key="eval.split",
            value=config.split,
        )


def _check_tracking(tracking: TrackingConfig) -> None:
    if tracking.name != "none":
        raise InputError(
            f"dpft tune needs tracking=none, got tracking={tracking.name}, because a tracker would"
            " show the number of trials and their scores.",
            key="tracking",
            value=tracking.name,
            hint="tracking=none",
        )


def _check_processes(parallel: ParallelConfig, launch: LaunchConfig) -> None:
    for section, name in (("parallel", parallel.name), ("launch", launch.name)):
        if name != "none":
            raise InputError(
                f"dpft tune needs {section}=none, got {section}={name}, because its trials run in"
                " one process.",
                key=section,
                value=name,
                hint=f"{section}=none",
            )


def _check_steps(mechanism: MechanismConfig) -> None:
    if mechanism.makes.has_streams:
        raise InputError(
            f"dpft tune needs mechanism=dp_sgd, got mechanism={mechanism.name}. Trials may differ"
            " in their steps and batch sizes, and therefore in their bands.",
            key="mechanism",
            value=mechanism.name,
            hint="mechanism=dp_sgd",
        )


class TuneCommand(TrainCommand):
    """Configuration of ``dpft tune``, conf/tune.yaml, with all keys of train."""

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
    """Return a configuration with some keys set to the values of a trial."""
    if "train.epochs" in setting and config.train.steps is not None:
        raise InputError(
            f"tuning.space draws train.epochs, which has no effect with"
            f" train.steps={config.train.steps}. Remove one of the two.",
            key="tuning.space.train.epochs",
            value=setting["train.epochs"],
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
