"""The configuration sections ``eval`` and ``metrics``, and whether a split's scores are public."""

from typing import Annotated, Literal

from pydantic import Field

from dpft.config.section import Section
from dpft.errors import InputError
from dpft.strict_model import AtLeastOne, Positive
from dpft.tasks.base import Task


class EvalConfig(Section):
    """The records to score and the evaluation schedule, ``conf/eval/default.yaml``."""

    enabled: bool = True
    """Whether training ends with an evaluation."""
    split: Literal["train", "validation", "test"] = "test"
    """Split to score: train, validation or test. Scores on train are always private."""
    limit: AtLeastOne | None = None
    """Number of distinct inputs to score, from the first one; null: all inputs."""
    batch_size: AtLeastOne = 32
    """Batch size for the longest inputs; batches of shorter inputs contain the same number of
    tokens. Affects only memory and speed."""
    split_is_public: bool | None = None
    """Whether scores and texts of the split may be shown. null: public if the split is published
    and was read from its published source. The training split and held-out records are always
    private."""

    publish_private_scores: bool = False
    """Whether public files contain the scores of a private split, rounded to two digits. Epsilon
    does not cover these scores."""

    held_out: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Fraction of the training records of your data to score instead of training on them."""

    every_steps: AtLeastOne | None = None
    """Number of steps between evaluations of a public split during training, rounded up to a
    multiple of ten. null: evaluate only before and after training."""

    every_epochs: Positive | None = None
    """Number of epochs between evaluations during training; set either this key or every_steps."""

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
        """The key that requests scores during training; None if no key does."""
        for name in ("every_steps", "every_epochs"):
            if getattr(self, name) is not None:
                return f"eval.{name}"
        return None

    def steps_between(self, num_examples: int, expected_batch_size: int) -> int | None:
        """Return the number of steps between evaluations during training, or None."""
        if self.every_epochs is None:
            return self.every_steps
        return max(1, round(self.every_epochs * num_examples / expected_batch_size))


def check_schedule(task: Task, config: EvalConfig) -> None:
    """Reject scores of private records during training; each score would be another release.

    Raises:
        InputError: The split is private, or evaluation is disabled.
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
    """Reject ``eval.held_out`` if the task has other records to score.

    Raises:
        InputError: The task has its own splits, or another split is configured.
    """
    if config.held_out is None:
        return
    if not task.takes_file:
        raise InputError(
            f"eval.held_out works only with your data, but task={task.name} has its own splits."
            " Choose one of them with eval.split.",
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
    """Return whether the split overlaps the training split."""
    training = {"train", *task.parts("train")}
    # On the Hub, a part may be a slice or a sum of splits: train[:100], validation+train, all.
    return config.split == "train" or any(
        part == "all" or name in part for part in task.parts(config.split) for name in training
    )


def eval_split_is_public(task: Task, config: EvalConfig) -> bool:
    """Return whether predictions and scores on the split may be shown (trust rule 8).

    The training split, a split that contains a part of it, and held-out records are never public.
    For other splits, ``config.split_is_public`` decides if it is set. Otherwise a split is public
    if all its parts were read from their published source; local files are not public.
    """
    if config.held_out is not None or reads_training_split(task, config):
        return False
    if config.split_is_public is not None:
        return config.split_is_public
    return all(task.is_published(part) for part in task.parts(config.split))


class MetricsConfig(Section):
    """Models that score texts, ``conf/metrics/default.yaml``."""

    bertscore_model: str | None = None
    """Folder of the encoder for BERTScore; null: BERTScore is not computed."""
    bertscore_layers: AtLeastOne | None = None
    """Number of encoder layers to use for BERTScore; null: the library's choice, or all layers of
    an unknown model."""
    bleurt_model: str | None = None
    """Folder of a BLEURT checkpoint in Hugging Face's format; null: BLEURT is not computed."""
