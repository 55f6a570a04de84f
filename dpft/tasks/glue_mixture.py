"""All GLUE tasks as one text-to-text task for T5 (Raffel et al. 2020, section 3.5.2).

The share of each task in a batch is proportional to its number of records, up to ``mixture_limit``
records (examples-proportional mixing with an artificial limit). The limit keeps the first rows of a
task. Adding a record could move another record beyond the limit, so a private run does not support
the limit.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from dpft.errors import InputError
from dpft.strict_model import AtLeastOne
from dpft.tasks.base import TASKS, Example, Member, SeqToSeqTask
from dpft.tasks.glue import NAMES, GlueTexts

TRAIN = "train"


@TASKS.register("glue_mixture")
class GlueMixture(SeqToSeqTask):
    """Several GLUE tasks, text to text; there are scores for each task and for their mean."""

    tasks: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """The tasks by name, each with text_columns, labels, max_score, num_train_examples and the
    parts of its validation split."""
    mixture_limit: AtLeastOne | None = None
    """Maximum number of training records of a task, only for privacy=none; null takes all."""

    published_hub_name: ClassVar[str | None] = "nyu-mll/glue"
    scores_rows: ClassVar[bool] = True
    averages_parts: ClassVar[bool] = True
    columns: ClassVar[tuple[str, ...]] = ()
    """No columns, because each task has its own columns."""
    prompt_columns: ClassVar[tuple[str, ...]] = ()
    """No columns, because a row does not state its task."""
    written_from: ClassVar[str | None] = None
    answers_how: ClassVar[str] = "answers for several tasks with their labels"
    unit_definition: ClassVar[str] = "row of one of the tasks; equal rows are records of their own"

    def _check_fields(self) -> None:
        super()._check_fields()
        unknown = sorted(set(self.tasks) - set(NAMES))
        if unknown:
            raise InputError(
                f"task.tasks must name tasks of GLUE, {', '.join(NAMES)}, got {unknown[0]!r}.",
                key="task.tasks",
                value=unknown[0],
            )
        if not self.tasks:
            raise InputError(
                "task.tasks must name at least one task of GLUE, got none.", key="task.tasks"
            )
        for name in self.tasks:
            self._member(name)  # rejects an invalid task early

    @property
    def from_nothing(self) -> None:
        """See ``TextTask.from_nothing``: None, because a prompt states which task it belongs to."""
        return

    @property
    def public_num_train_examples(self) -> int | None:
        """See ``Task.public_num_train_examples``: sum over tasks, each up to ``mixture_limit``."""
        if self.effective_source != "hub":
            return None
        sizes = [int(values["num_train_examples"]) for values in self.tasks.values()]
        return sum(min(size, self.mixture_limit or size) for size in sizes)

    def parts(self, split: str) -> tuple[str, ...]:
        """See ``Task.parts``: ``TASK_PART`` for each task's parts; a single part for training."""
        if split == TRAIN:
            return (TRAIN,)
        return tuple(
            f"{name}_{part}" for name in self.tasks for part in self._member(name).parts(split)
        )

    def members(self, part: str) -> Sequence[Member]:
        """See ``Task.members``."""
        if part == TRAIN:
            limit = self.mixture_limit
            return [Member(task=self._member(name), part=TRAIN, limit=limit) for name in self.tasks]
        name, _, member_part = part.partition("_")
        return (Member(task=self._member(name), part=member_part),)

    def examples(self, row: Mapping[str, Any]) -> Sequence[Example]:
        """See ``Task.examples``; never called, because each task makes its own examples."""
        raise NotImplementedError("a mixture's rows are of its members.")

    def prompt(self, row: Mapping[str, Any]) -> Example:
        """See ``TextTask.prompt``.

        Raises:
            InputError: Always, because a row does not state its task.
        """
        raise InputError(
            "A prompt belongs to one GLUE task, but the run trained a mixture of them.",
            key="task",
            hint="task=sst2 task.objective=text2text",
        )

    def record(self, row: Mapping[str, Any], text: str) -> None:
        """See ``TextTask.record``: None, because a mixture generates no rows."""
        return

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> Example:
        """See ``Task.canary``: a record of the first task."""
        return self._member(next(iter(self.tasks))).canary(read, learned, number=number)

    def _member(self, name: str) -> GlueTexts:
        values = self.tasks[name]
        try:
            parts = {"validation": tuple(values.get("parts", ("validation",)))}
            return GlueTexts(
                name=name,
                source=self.source,
                data_dir=None if self.data_dir is None else str(Path(self.data_dir) / name),
                hub_name=self.hub_name,
                hub_config=name,
                hub_revision=self.hub_revision,
                max_length=self.max_length,
                text_columns=tuple(values["text_columns"]),
                labels=tuple(values["labels"]),
                max_score=values.get("max_score"),
                split_parts=parts,
            )
        except (KeyError, TypeError) as error:
            raise InputError(
                f"task.tasks.{name} must have text_columns and labels, but at least one is"
                " missing.",
                key=f"task.tasks.{name}",
            ) from error
