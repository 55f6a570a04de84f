"""The configuration sections ``eval`` and ``metrics``, and whether a split's scores are public."""

from typing import Annotated, Literal

from pydantic import Field

from dpft.config.section import Section
from dpft.errors import InputError
from dpft.strict_model import AtLeastOne, Positive
from dpft.tasks.base import Task


class EvalConfig(Section):
    """What is scored, ``conf/eval/default.yaml``."""

    enabled: bool = True
    """Whether training ends with an evaluation."""
    split: Literal["train", "validation", "test"] = "test"
    """train, validation or test; train is always private."""
    limit: AtLeastOne | None = None
    """Distinct inputs to score, the split's first ones; None for all."""
    batch_size: AtLeastOne = 32
    """How many of the longest inputs are read at once; of shorter ones as many as hold the same
    tokens. Memory and speed only."""
    split_is_public: bool | None = None
    """Whether the split may be shown; null: where it is published there. The training split and
    what is held out of one are private whatever this says."""

    publish_private_scores: bool = False
    """Whether scores of a private split stand in public files, too, rounded to two digits; epsilon
    does not cover them."""

    held_out: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Part of the training records of your own data that is scored and not trained on."""

    every_steps: AtLeastOne | None = None
    """Steps between two evaluations of a public split while training, up to whole tens; null: only
    before and after."""

    every_epochs: Positive | None = None
    """The same in epochs; give one of the two."""

    def _check_fields(self) -> None:
        if self.every_steps is not None and self.every_epochs is not None:
            raise InputError(
                "eval.every_steps and eval.every_epochs exclude each other, got both. Remove one"
                " of them.",
                key="eval.every_steps",
                value=self.every_steps,
            )

    @property
    def schedule_key(self) -> str | None:
        """The key that asks for scores while training; None: none does."""
        for name in ("every_steps", "every_epochs"):
            if getattr(self, name) is not None:
                return f"eval.{name}"
        return None

    def steps_between(self, num_examples: int, expected_batch_size: int) -> int | None:
        """Return the steps between two evaluations while training; None: there are none."""
        if self.every_epochs is None:
            return self.every_steps
        return max(1, round(self.every_epochs * num_examples / expected_batch_size))


def check_schedule(task: Task, config: EvalConfig) -> None:
    """Reject to score private records while training: each score would be one more release.

    Raises:
        InputError: The split is private, or nothing is scored at all.
    """
    key = config.schedule_key
    if key is None:
        return
    if not config.enabled:
        raise InputError(
            f"{key} needs eval.enabled=true, got false.", key=key, hint="eval.enabled=true"
        )
    if not eval_split_is_public(task, config):
        split = "eval.held_out" if config.held_out is not None else f"eval.split={config.split}"
        raise InputError(
            f"{key} needs a public split, got {split} of task {task.name}: epsilon does not cover"
            " scores of private records, and a series of scores reveals more than one. Choose a"
            " published split, or set eval.split_is_public=true if this one is published.",
            key=key,
        )


def check_held_out(task: Task, config: EvalConfig) -> None:
    """Reject to hold records out where there are others to score.

    Raises:
        InputError: The task has splits of its own, or another one is asked for.
    """
    if config.held_out is None:
        return
    if not task.takes_file:
        raise InputError(
            f"eval.held_out works only with task=custom and task=corpus, because task={task.name}"
            " has its own splits. Choose one of them with eval.split.",
            key="eval.held_out",
            value=config.held_out,
            hint="eval.held_out=null",
        )
    if config.split != task.eval_split:
        raise InputError(
            f"eval.held_out={config.held_out} and eval.split={config.split} exclude each other,"
            " got both.",
            key="eval.held_out",
            value=config.held_out,
            hint="eval.held_out=null",
        )


def reads_training_split(task: Task, config: EvalConfig) -> bool:
    """Return whether the split, or a part of it, is the training split or a part of that."""
    training = {"train", *task.parts("train")}
    # On the hub a part may be a slice or a sum of splits: train[:100], validation+train, all.
    return config.split == "train" or any(
        part == "all" or name in part for part in task.parts(config.split) for name in training
    )


def eval_split_is_public(task: Task, config: EvalConfig) -> bool:
    """Return whether predictions and scores on the split may be shown (trust rule 8).

    A training split never is, nor one with a part of it, nor what is held out of one. Else the
    user's word counts, if given; else a published task's split is public when all its parts were
    read from where they are published, and local files are not.
    """
    if config.held_out is not None or reads_training_split(task, config):
        return False
    if config.split_is_public is not None:
        return config.split_is_public
    return all(task.is_published(part) for part in task.parts(config.split))


class MetricsConfig(Section):
    """Models that score texts, ``conf/metrics/default.yaml``."""

    bertscore_model: str | None = None
    """Folder of the encoder that BERTScore compares texts by; None: no BERTScore."""
    bertscore_layers: AtLeastOne | None = None
    """Layers of it that are used; null: as many as do best in that model, where that is known."""
    bleurt_model: str | None = None
    """Folder of a BLEURT checkpoint in Hugging Face's form; None: no BLEURT."""
