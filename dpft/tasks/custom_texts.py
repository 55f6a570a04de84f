"""Your own texts: a prompt and a target made by templates, or a plain text as a whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from dpft.errors import InputError
from dpft.tasks.base import TextTask
from dpft.tasks.columns import ColumnTemplate
from dpft.tasks.custom_form import CustomFields
from dpft.tasks.records import Example
from dpft.tasks.values import spelled

TEXT_METRICS = ("bleu", "rouge_l", "perplexity", "distinct_1", "distinct_2", "mean_length")
PLAIN_METRICS = ("perplexity",)
"""Plain text has no prompt, so there is nothing to write an answer to."""


@dataclass(frozen=True, kw_only=True)
class CustomTexts(CustomFields, TextTask):
    """``task.prompt`` and ``task.target``, or ``task.text`` alone."""

    def __post_init__(self) -> None:
        if not self.metrics:
            plain = self.text_template is not None
            object.__setattr__(self, "metrics", PLAIN_METRICS if plain else TEXT_METRICS)
        super().__post_init__()
        assert self._prompt.columns or self._target.columns  # parsed here: bad braces fail early
        if self.learn_prompt:
            _check_divisible(self._prompt, self._target)
        if self.label_column is not None and self.label_column not in self.columns:
            raise InputError(
                "task.label must be a column of task.prompt or task.target, got"
                f" {self.label_column!r}; choose of {', '.join(self.columns)}."
            )
        if self.label_column is not None and not self.labels:
            raise InputError(
                f"task.label={self.label_column} needs the words that may stand in that column, got"
                " none; give task.labels=[positive,negative], say."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the templates, each once."""
        return tuple(dict.fromkeys((*self._prompt.columns, *self._target.columns)))

    @property
    def prompt_columns(self) -> tuple[str, ...]:
        """The columns of ``task.prompt``."""
        return tuple(dict.fromkeys(self._prompt.columns))

    def column_key(self, column: str) -> str | None:
        """See ``Task.column_key``."""
        return self._prompt.key if column in self._prompt.columns else self._target.key

    def examples(self, row: Mapping[str, Any]) -> tuple[Example, ...]:
        """Returns the row's one example; its target is empty where all its columns are blank."""
        target = "" if self._target.is_blank(row) else self._target.fill(row)
        example = replace(self.prompt(row), target=target)
        if self.text_template is None:
            return (example,)
        return (replace(example, group=target, cut_target_end=True),)

    def prompt(self, row: Mapping[str, Any]) -> Example:
        """See ``TextTask.prompt``: what the template says itself stays where a prompt is cut."""
        if not self.has_label(row):
            raise InputError(
                f"the column {self.label_column}, which task.label names, must hold one of"
                f" {', '.join(self.labels)}."
            )
        text = self._prompt.fill(row)
        return Example(
            prompt=text,
            target="",
            group=text,
            lead=self._prompt.lead,
            separator=self._prompt.separator,
            cut_target_end=self.text_template is not None,
            after_start=self.learn_prompt,
            learns_prompt=self.learn_prompt,
        )

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> Example:
        """See ``Task.canary``: cut and learned as the user's own records are."""
        plain = super().canary(read, learned, number=number)
        return replace(
            plain,
            cut_target_end=self.text_template is not None,
            after_start=self.learn_prompt,
            learns_prompt=self.learn_prompt,
        )

    @property
    def written_columns(self) -> tuple[str, ...]:
        """The columns of the target, as the user's file names them."""
        return tuple(dict.fromkeys(map(self._in_file, self._target.columns)))

    @property
    def from_nothing(self) -> "CustomTexts | None":
        """See ``TextTask.from_nothing``: a learned prompt and its target are one text."""
        if not self.learn_prompt:
            return None if self.prompt_columns else self
        return WholeRows(**{field.name: getattr(self, field.name) for field in fields(self)})

    def record(self, row: Mapping[str, Any], text: str) -> dict[str, Any] | None:
        """See ``TextTask.record``: the prompt's columns, and the target's as the text holds them.

        They have the names of the user's file. A text of blanks alone is no row, as in training.
        """
        written = self._target.read(text)
        if written is None or self._target.is_blank(written) or not self.has_label(written):
            return None
        given = {column: row[column] for column in self.prompt_columns}
        return {self._in_file(column): value for column, value in (given | written | given).items()}

    def has_label(self, row: Mapping[str, Any]) -> bool:
        """Returns whether what stands in the label's column is one of ``task.labels``.

        True of a row without that column, and where no column is the label's.
        """
        if self.label_column is None or self.label_column not in row:
            return True
        return spelled(row[self.label_column]) in self.labels

    def _in_file(self, column: str) -> str:
        """Returns the user's own name of a column: its alias, where it has exactly one."""
        aliases = [alias for alias, name in self.column_aliases.items() if name == column]
        return aliases[0] if len(aliases) == 1 else column

    @cached_property
    def _prompt(self) -> ColumnTemplate:
        text = self.prompt_template or ""
        return ColumnTemplate.parse(text, key="task.prompt", needs_column=False)

    @cached_property
    def _target(self) -> ColumnTemplate:
        if self.text_template is not None:
            return ColumnTemplate.parse(self.text_template, key="task.text")
        return ColumnTemplate.parse(self.target_template or "", key="task.target")


@dataclass(frozen=True, kw_only=True)
class WholeRows(CustomTexts):
    """Rows whose prompt was learned, as a model writes them from nothing: in one text."""

    @cached_property
    def _prompt(self) -> ColumnTemplate:
        return ColumnTemplate.parse("", key="task.prompt", needs_column=False)

    @cached_property
    def _target(self) -> ColumnTemplate:
        prompt = ColumnTemplate.parse(
            self.prompt_template or "", key="task.prompt", needs_column=False
        )
        target = ColumnTemplate.parse(self.target_template or "", key="task.target")
        return prompt.followed_by(target)


def _check_divisible(prompt: ColumnTemplate, target: ColumnTemplate) -> None:
    """Refuses a prompt and a target that, written as one text, could not be told apart again.

    Raises:
        InputError: Nothing stands between the prompt's last column and the target's first.
    """
    if prompt.columns and not prompt.literals[-1] + target.literals[0]:
        raise InputError(
            "task.learn_prompt=true needs words or a line break between the last column of"
            f" task.prompt and the first of task.target, got none after {{{prompt.columns[-1]}}};"
            " end task.prompt with \\n, for instance."
        )
