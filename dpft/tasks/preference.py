"""Preference data: a prompt, the answer that a person chose, and the answer that they rejected.

One pair is one record. The objective (DPO, IPO or ORPO) raises the probability of the chosen answer
relative to the probability of the rejected answer (``dpft.data.preference_loss``).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from dpft.errors import InputError
from dpft.strict_model import Positive
from dpft.tasks.base import TASKS, OwnRows, Source, TextTask
from dpft.tasks.custom import ASSISTANT, USER, ChatExample, Message, is_day, read_message

METRICS = ("preference_accuracy", "preference_margin", "chosen_log_likelihood", "mean_length")


@TASKS.register("preference")
class PreferenceTask(OwnRows, TextTask):
    """Pairs of answers, ``conf/task/preference.yaml``."""

    source: Source = "local"
    prompt_column: str = Field(default="prompt", alias="prompt")
    """The column of the prompt: a text, or a list of {role, content}."""
    chosen_column: str = Field(default="chosen", alias="chosen")
    """The column of the better answer: a text, or a list of one message of the assistant."""
    rejected_column: str = Field(default="rejected", alias="rejected")
    """The column of the worse answer, in the same form."""
    objective: Literal["dpo", "ipo", "orpo"] = "dpo"
    """Loss of a pair: dpo (Rafailov et al. 2023), ipo (Azar et al. 2023) or orpo (Hong et al.
    2024), which needs no reference model."""
    beta: Positive = 0.1
    """Strength of the objective: for dpo and ipo, how close the model stays to the reference; for
    orpo, the weight of the odds ratio."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """For dpo, the share of pairs in which the two answers are assumed to be swapped."""
    chat_template: bool | None = None
    """Whether prompt and answer are formatted with the model's chat template; null uses a template
    if the model has one."""
    separator: str = "\n"
    """The text between prompt and answer if there is no chat template."""
    date: str | None = None
    """The day that a chat template uses as today, YYYY-MM-DD; null takes the day in UTC on which
    the run begins."""
    metrics: tuple[str, ...] = METRICS

    takes_file: ClassVar[bool] = True
    own_defaults: ClassVar[bool] = True
    holds_lists: ClassVar[bool] = True
    has_canaries: ClassVar[bool] = False
    """No canaries, because audits measure the loss of one row, but a pair has one loss for two
    rows."""
    is_checked_by_model: ClassVar[bool] = True
    unit_definition: ClassVar[str] = "pair (row of the data); equal ones are records of their own"

    def _check_fields(self) -> None:
        if self.label_smoothing and self.objective != "dpo":
            raise InputError(
                f"task.label_smoothing applies only to task.objective=dpo, got {self.objective}."
                " Remove the key.",
                key="task.label_smoothing",
                value=self.label_smoothing,
            )
        if self.date is not None and not is_day(self.date):
            raise InputError(
                f"task.date must be a day in ISO 8601, got {self.date!r}.",
                key="task.date",
                value=self.date,
                hint="task.date=2026-11-29",
            )
        super()._check_fields()

    def begun(self, date: str) -> Self:
        """See ``Task.begun``: chat templates insert the date."""
        return self.replace(date=self.date or date)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the prompt and of the two answers."""
        return (self.prompt_column, self.chosen_column, self.rejected_column)

    @property
    def untyped_columns(self) -> tuple[str, ...]:
        """All columns, because each may be a text or a list of messages."""
        return self.columns

    @property
    def prompt_columns(self) -> tuple[str, ...]:
        """The column of the prompt."""
        return (self.prompt_column,)

    def column_key(self, column: str) -> str | None:
        """See ``Task.column_key``."""
        keys = ("task.prompt", "task.chosen", "task.rejected")
        return dict(zip(self.columns, keys, strict=True)).get(column)

    def is_published(self, split: str) -> bool:
        """Return False, because your preference data is never a published data set."""
        return False

    def examples(self, row: Mapping[str, Any]) -> tuple[ChatExample, ...]:
        """Return the row's pair; see ``Task.examples``."""
        chosen = self._answer(row, self.chosen_column)
        rejected = self._answer(row, self.rejected_column)
        if chosen == rejected:
            raise InputError(
                f"the columns {self.chosen_column} and {self.rejected_column} must differ, but"
                " they contain the same answer.",
                key=self.rejected_column,
            )
        return (self._example(row, target=chosen, rejected=rejected),)

    def prompt(self, row: Mapping[str, Any]) -> ChatExample:
        """See ``TextTask.prompt``."""
        return self._example(row, target="")

    def record(self, row: Mapping[str, Any], text: str) -> dict[str, Any]:
        """See ``TextTask.record``: the prompt, and the text as the chosen answer."""
        return {self.prompt_column: row[self.prompt_column], self.chosen_column: text}

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> ChatExample:
        """See ``Task.canary``: the rejected answer is the chosen one reversed, then ``no``."""
        return self.examples(
            {
                self.prompt_column: " ".join(read),
                self.chosen_column: " ".join(learned),
                self.rejected_column: " ".join([*reversed(learned), "no"]),
            }
        )[0]

    def _example(
        self, row: Mapping[str, Any], *, target: str, rejected: str | None = None
    ) -> ChatExample:
        value = row[self.prompt_column]
        if isinstance(value, str):
            messages: tuple[Message, ...] = (Message(role=USER, content=value),)
        else:
            messages = self._messages(row, self.prompt_column)
        if not any(message.content.strip() for message in messages):
            raise InputError(
                f"the column {self.prompt_column} must contain a prompt, got an empty one.",
                key=self.prompt_column,
            )
        shown = "\n".join(message.content for message in messages)
        return ChatExample(
            prompt=shown + self.separator,
            separator=self.separator,
            target=target,
            rejected=rejected,
            group=shown,
            cut_start=True,
            messages=messages,
        )

    def _answer(self, row: Mapping[str, Any], column: str) -> str:
        """Return an answer, which is a text or a list of one message of the assistant."""
        value = row[column]
        if not isinstance(value, str):
            messages = self._messages(row, column)
            if len(messages) != 1 or messages[0].role != ASSISTANT:
                raise InputError(
                    f"the column {column} must contain a text or one message of the assistant.",
                    key=column,
                )
            value = messages[0].content
        if not value.strip():
            raise InputError(
                f"the column {column} must contain an answer, got an empty one.", key=column
            )
        return value

    def _messages(self, row: Mapping[str, Any], column: str) -> tuple[Message, ...]:
        value = row[column]
        if not isinstance(value, Sequence) or isinstance(value, str) or not value:
            raise InputError(
                f"the column {column} must contain a text or a list of messages, each"
                " {role, content}.",
                key=column,
            )
        try:
            return tuple(map(read_message, value))
        except InputError as error:
            raise InputError(f"the column {column} {error}", key=column) from None
