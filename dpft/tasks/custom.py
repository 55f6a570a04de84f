"""Your own data (``task=custom``): prompts and targets, plain texts, labels, or conversations.

The keys of ``task=custom`` select the form of the data (`form_of`):

- templates of a prompt and a target
- one template of a plain text
- a text and the column of its class
- messages: the model learns the assistant's last message and reads the earlier messages
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from pydantic import Field

from dpft.errors import InputError
from dpft.strict_model import Positive, values_of
from dpft.tasks.base import (
    TASKS,
    Example,
    LabeledExample,
    OwnRows,
    Record,
    Source,
    Task,
    TextTask,
    is_unicode,
)
from dpft.tasks.classification import CLS, ClassificationTask, as_number, but_is_empty, class_number
from dpft.tasks.templates import ColumnTemplate, spelled

FORM_KEYS = ("prompt", "target", "text", "messages", "label")
TEMPLATES, PLAIN, CHAT, LABELS = (
    frozenset({"prompt", "target"}),
    frozenset({"text"}),
    frozenset({"messages"}),
    frozenset({"text", "label"}),
)
FORMS = (
    "task.prompt and task.target (templates such as '{question}' and '{answer}'), only task.text"
    " (plain text), task.messages (the column of a conversation), or task.label with task.text and"
    " task.labels (classes)"
)
"""Description of the four forms, for messages."""


class CustomFields(OwnRows):
    """The fields of every form. Without a form, the task is incomplete."""

    source: Source = "local"
    prompt_template: str | None = Field(default=None, alias="prompt")
    """Template of the text that the model reads, which has no loss unless ``learn_prompt`` is set.
    """
    target_template: str | None = Field(default=None, alias="target")
    """Template of the text that the model learns to generate after the prompt."""
    learn_prompt: bool = False
    """Whether the model also learns to generate the prompt, and thus whole rows without a
    prompt."""
    json_weights: tuple[Positive, ...] = ()
    """Loss weight of each segment of a JSON target, which commas and colons outside strings
    separate; other segments and the end have weight 1."""
    text_template: str | None = Field(default=None, alias="text")
    """Template of a text to learn as a whole, or to classify with ``task.label``."""
    messages_column: str | None = Field(default=None, alias="messages")
    """The column that contains a list of {role, content} or of {from, value}."""
    completion_column: str | None = Field(default=None, alias="completion")
    """The column that contains the messages that follow ``task.messages``, with the answer last.
    """
    merge_system: bool = False
    """Whether a system message becomes the beginning of the user's first message."""
    date: str | None = None
    """The day that a chat template uses as today, YYYY-MM-DD; null takes the day in UTC on which
    the run begins."""
    label_column: str | None = Field(default=None, alias="label")
    """The column that contains the class. With task.prompt and task.target, the column may contain
    only the names in task.labels."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; public."""
    objective: str = CLS
    """cls for a new classification head, or infilling for label words that the language model
    predicts."""
    template: str = ""
    """For infilling with masked language models: text with <S1> and [MASK]."""
    causal_template: str = ""
    """For infilling with causal and seq2seq models: text that ends with [MASK]."""
    label_words: dict[str, str] = Field(default_factory=dict)
    """For infilling: the word that represents each label."""

    takes_file: ClassVar[bool] = True
    own_defaults: ClassVar[bool] = True

    def _check_fields(self) -> None:
        form = self._form
        if form is not LABELS and (self.label_words or (self.labels and not self.label_column)):
            raise InputError(
                "task.labels and task.label_words need task.label=COLUMN, which is not given."
                f" Give exactly one of {FORMS}.",
                key="task.label",
            )
        if self.learn_prompt and form not in (TEMPLATES, None):
            raise InputError(
                "task.learn_prompt=true applies only to task.prompt and task.target. Remove the"
                " key: task.text is always learned as a whole.",
                key="task.learn_prompt",
                value=True,
            )
        if self.json_weights and (self.learn_prompt or form not in (TEMPLATES, None)):
            raise InputError(
                "task.json_weights applies only to task.prompt and task.target without"
                " task.learn_prompt. Remove the key.",
                key="task.json_weights",
                value=self.json_weights,
            )
        if (self.completion_column or self.merge_system or self.date) and form not in (CHAT, None):
            raise InputError(
                "task.completion, task.merge_system and task.date apply only to task.messages."
                " Remove these keys.",
                key="task.messages",
            )
        if self.date is not None and not is_day(self.date):
            raise InputError(
                f"task.date must be a day in ISO 8601, got {self.date!r}.",
                key="task.date",
                value=self.date,
                hint="task.date=2026-11-29",
            )
        super()._check_fields()

    @property
    def lacks(self) -> str | None:
        """A message that asks for the keys of a form, or None if a form is given."""
        return f"task=custom needs one of {FORMS}, got none." if self._form is None else None

    @property
    def columns(self) -> tuple[str, ...]:
        """No columns: the form determines which columns are read."""
        return ()

    @property
    def untyped_columns(self) -> tuple[str, ...]:
        """All columns, because a template can insert numbers as well as text."""
        return self.columns

    def is_published(self, split: str) -> bool:
        """Return False, because your own rows are never published."""
        return False

    def examples(self, row: Mapping[str, Any]) -> Sequence[Record]:
        """See ``Task.examples``; each form overrides this method."""
        raise InputError(f"task=custom needs one of {FORMS}.", key="task")

    @property
    def _form(self) -> frozenset[str] | None:
        """The form of data that the given keys select; see ``form_of``."""
        fields = type(self).model_fields.items()
        return form_of({field.alias or name: getattr(self, name) for name, field in fields})


def form_of(values: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the form that the given keys select, or None if no key is given.

    Raises:
        InputError: The keys belong to several forms, or are incomplete for one form.
    """
    given_keys = frozenset(key for key in FORM_KEYS if values.get(key) is not None)
    if not given_keys:
        return None
    for form in (TEMPLATES, PLAIN, CHAT, LABELS):
        # with templates, task.label names a column whose only allowed values are task.labels
        if given_keys in (form, form | {"label"} if form is TEMPLATES else form):
            return form
    names = " and ".join(f"task.{key}" for key in FORM_KEYS if key in given_keys)
    raise InputError(f"task=custom needs exactly one of {FORMS}, got {names}.", key="task")


TWO_CLASSES = 2


class CustomLabels(CustomFields, ClassificationTask):
    """Labeled texts: ``task.label`` with ``task.text`` and ``task.labels``."""

    texts_per_record: ClassVar[int] = 1
    """One text per record, which ``<S1>`` represents."""

    def _check_fields(self) -> None:
        if not self.metrics:
            two = len(self.labels) == TWO_CLASSES
            object.__setattr__(self, "metrics", ("accuracy", "f1") if two else ("accuracy",))
        super()._check_fields()
        assert self._text.columns  # parsed here: bad braces fail early

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the template, each once, and the column of the label."""
        return tuple(dict.fromkeys((*self._text.columns, self._label)))

    def column_key(self, column: str) -> str | None:
        """See ``Task.column_key``."""
        return self._text.key if column in self._text.columns else "task.label"

    def examples(self, row: Mapping[str, Any]) -> tuple[LabeledExample, ...]:
        """Return the row's one example."""
        text = self._text.fill(row).strip()
        return (LabeledExample(texts=(text,), label=self.label(row[self._label])),)

    def label(self, value: Any) -> float:
        """Return the number of the class that a value names.

        Names take precedence. A number is an index into ``task.labels``, starting at 0, but only if
        no class has a number as its name.

        Raises:
            InputError: The value is not one of the task's classes. The message does not quote it.
        """
        name = spelled(value)
        if name in self.labels:
            return float(self.labels.index(name))
        if any(as_number(label) is not None for label in self.labels):
            raise InputError(
                f"the column {self._label}, which task.label names, must contain one of"
                f" {', '.join(self.labels)}{but_is_empty(value)}.",
                key=self._label,
            )
        return class_number(
            self.labels,
            value,
            f"the column {self._label}, which task.label names,",
            key=self._label,
        )

    def prediction(self, text: str) -> float:
        """See ``LabelTask.prediction``."""
        name = text.strip()
        is_label = name in self.labels
        return float(self.labels.index(name)) if is_label else super().prediction(text)

    @property
    def _label(self) -> str:
        return self.label_column or ""

    @cached_property
    def _text(self) -> ColumnTemplate:
        return ColumnTemplate.parse(self.text_template or "", key="task.text")


TEXT_METRICS = ("bleu", "rouge_l", "perplexity", "distinct_1", "distinct_2", "mean_length")
PLAIN_METRICS = ("perplexity",)
"""Metrics of plain text, which has no prompt and therefore no generated answers to score."""


class CustomTexts(CustomFields, TextTask):
    """Texts: ``task.prompt`` and ``task.target``, or only ``task.text``."""

    def _check_fields(self) -> None:
        if not self.metrics:
            plain = self.text_template is not None
            object.__setattr__(self, "metrics", PLAIN_METRICS if plain else TEXT_METRICS)
        super()._check_fields()
        assert self._prompt.columns or self._target.columns  # parsed here: bad braces fail early
        if self.learn_prompt:
            prompt = self._prompt
            if prompt.columns and not prompt.literals[-1] + self._target.literals[0]:
                raise InputError(
                    # Otherwise a generated text could not be split into prompt and target.
                    "task.learn_prompt=true needs text or a line break between the last column of"
                    " task.prompt and the first column of task.target, got none after"
                    f" {{{prompt.columns[-1]}}}. End task.prompt with \\n, for example.",
                    key="task.prompt",
                )
        if self.label_column is not None and self.label_column not in self.columns:
            raise InputError(
                f"task.label must be one of {', '.join(self.columns)}, the columns of task.prompt"
                f" and task.target, got {self.label_column!r}.",
                key="task.label",
                value=self.label_column,
            )
        if self.label_column is not None and not self.labels:
            raise InputError(
                f"task.label={self.label_column} needs the allowed values of this column in"
                " task.labels, got none.",
                key="task.labels",
                hint="'task.labels=[positive,negative]'",
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
        """Return the row's one example; its target is empty if all its columns are blank."""
        target = "" if self._target.is_blank(row) else self._target.fill(row)
        example = replace(self.prompt(row), target=target)
        if self.text_template is None:
            return (example,)
        return (replace(example, group=target, cut_target_end=True),)

    def prompt(self, row: Mapping[str, Any]) -> Example:
        """See ``TextTask.prompt``: the template's own text is kept when a prompt is cut."""
        if not self.has_label(row):
            raise InputError(
                f"the column {self.label_column}, which task.label names, must contain one of"
                f" {', '.join(self.labels)}.",
                key=self.label_column,
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
        """See ``Task.canary``: a canary is cut and learned like the other records."""
        plain = super().canary(read, learned, number=number)
        return replace(
            plain,
            cut_target_end=self.text_template is not None,
            after_start=self.learn_prompt,
            learns_prompt=self.learn_prompt,
        )

    @property
    def written_columns(self) -> tuple[str, ...]:
        """The columns of the target, as named in the user's file."""
        return tuple(dict.fromkeys(map(self._in_file, self._target.columns)))

    @property
    def from_nothing(self) -> "CustomTexts | None":
        """See ``TextTask.from_nothing``: a learned prompt and its target become one text."""
        if not self.learn_prompt:
            return None if self.prompt_columns else self
        return WholeRows(**values_of(self, CustomFields))

    def record(self, row: Mapping[str, Any], text: str) -> dict[str, Any] | None:
        """See ``TextTask.record``: the prompt's columns, and the target's columns from the text.

        The columns have the names in the user's file. As in training, a blank text gives no row.
        """
        written = self._target.read(text)
        if written is None or self._target.is_blank(written) or not self.has_label(written):
            return None
        prompt_values = {column: row[column] for column in self.prompt_columns}
        return {
            self._in_file(column): value
            for column, value in (prompt_values | written | prompt_values).items()
        }

    def has_label(self, row: Mapping[str, Any]) -> bool:
        """Return whether the value in the label column is one of ``task.labels``.

        Return True for a row without that column, and if there is no label column.
        """
        if self.label_column is None or self.label_column not in row:
            return True
        return spelled(row[self.label_column]) in self.labels

    def _in_file(self, column: str) -> str:
        """Return the user's own name of a column: its alias, if it has exactly one."""
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


class WholeRows(CustomTexts):
    """Rows with a learned prompt. A model generates prompt and target as one text."""

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


SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
ROLES = (SYSTEM, "developer", USER, ASSISTANT, TOOL)
SAME_AS = {
    **dict.fromkeys(("human",), USER),
    **dict.fromkeys(("gpt", "chatgpt", "model", "bing", "bard"), ASSISTANT),
    **dict.fromkeys(("function", "observation", "function_response"), TOOL),
}
"""Role names in the data sets of other programs, such as ShareGPT, and the role of each."""
FUNCTION_CALL = "function_call"
"""ShareGPT's role for an assistant's message that contains a call: {"name": …, "arguments": …}."""
OF_TEMPLATES = ("tool_calls", "tool_call_id", "name", "reasoning_content")
"""Names of further fields of a message that chat templates read."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: str
    """One of ``ROLES``."""
    content: str
    more: str = ""
    """Further fields that a chat template reads, such as tool_calls, as JSON; empty if there are
    none."""

    @property
    def calls_tool(self) -> bool:
        """Whether the message is a tool call."""
        return bool(self.more) and "tool_calls" in json.loads(self.more)


@dataclass(frozen=True, kw_only=True)
class ChatExample(Example):
    """A conversation: ``prompt`` shows its messages, and a template formats ``messages``."""

    messages: tuple[Message, ...]
    """The messages before the assistant's last message, which is ``target``; at least one."""

    def with_system_merged(self) -> "ChatExample":
        """Return the example with its system message at the beginning of the user's first message.

        An example without one of the two messages is returned unchanged.
        """
        system = self.messages[0]
        place = next((at for at, message in enumerate(self.messages) if message.role == USER), None)
        if system.role not in (SYSTEM, "developer") or place is None:
            return self
        first = self.messages[place]
        merged = replace(first, content=f"{system.content}\n\n{first.content}")
        messages = (*self.messages[1:place], merged, *self.messages[place + 1 :])
        return replace(self, messages=messages)


class CustomChats(CustomFields, TextTask):
    """Conversations: ``task.messages`` and ``task.completion``."""

    holds_lists: ClassVar[bool] = True
    is_checked_by_model: ClassVar[bool] = True
    unit_definition: ClassVar[str] = (
        "conversation (row of the data); equal ones are records of their own"
    )
    """One record is one conversation, even if its participants take part in others."""

    def _check_fields(self) -> None:
        if not self.metrics:
            object.__setattr__(self, "metrics", TEXT_METRICS)
        super()._check_fields()

    def begun(self, date: str) -> Self:
        """See ``Task.begun``: chat templates insert the date."""
        return self.replace(date=self.date or date)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the conversation."""
        return (*self.prompt_columns, *filter(None, [self.completion_column]))

    @property
    def prompt_columns(self) -> tuple[str, ...]:
        """The column of the conversation; a prompt omits its answer."""
        return (self.messages_column or "",)

    def column_key(self, column: str) -> str | None:
        """See ``Task.column_key``."""
        return "task.messages" if column == self.messages_column else "task.completion"

    def examples(self, row: Mapping[str, Any]) -> tuple[ChatExample, ...]:
        """Return the row's one conversation; see ``Task.examples``."""
        *before, last = (
            message for column in self.columns for message in self._messages(row, column)
        )
        what = self._what(self.columns[-1])
        if last.role != ASSISTANT:
            raise InputError(
                f"{what} must end with a message of the assistant, which the model learns.",
                key=self.columns[-1],
            )
        if last.calls_tool:
            raise InputError(
                f"{what} must end with a text of the assistant, got a tool call, which the model"
                " does not learn.",
                key=self.columns[-1],
            )
        target = last.content if last.content.strip() else ""
        return (replace(self._example(before), target=target),)

    def prompt(self, row: Mapping[str, Any]) -> ChatExample:
        """Return the messages before an answer; an assistant's last message is omitted."""
        return self._example(self._asked(row))

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> ChatExample:
        """See ``Task.canary``."""
        conversation = [
            {"role": USER, "content": " ".join(read)},
            {"role": ASSISTANT, "content": " ".join(learned)},
        ]
        if self.completion_column is None:
            return self.examples({self.columns[0]: conversation})[0]
        return self.examples(
            {self.columns[0]: conversation[:1], self.completion_column: conversation[1:]}
        )[0]

    def record(self, row: Mapping[str, Any], text: str) -> dict[str, Any]:
        """Return the conversation with the text as the assistant's answer."""
        pairs = zip(row[self.columns[0]], self._asked(row), strict=False)
        asked = [_in_form_of(form, message) for form, message in pairs]
        answer = {"role": ASSISTANT, "content": text}
        if "role" not in asked[0]:
            answer = {"from": "gpt", "value": text}
        if self.completion_column is not None:
            return {self.columns[0]: asked, self.completion_column: [answer]}
        return {self.columns[0]: [*asked, answer]}

    def _asked(self, row: Mapping[str, Any]) -> list[Message]:
        """Return the messages to which a model replies."""
        messages = self._messages(row, self.columns[0])
        has_answer = messages[-1].role == ASSISTANT and self.completion_column is None
        return messages[:-1] if has_answer else messages

    def _example(self, messages: Sequence[Message]) -> ChatExample:
        """Return the example of the messages before an answer."""
        if not messages:
            what = self._what(self.columns[0])
            raise InputError(
                f"{what} must contain a message before the assistant's answer.", key=self.columns[0]
            )
        shown = "\n".join(map(_shown, messages))
        example = ChatExample(
            prompt=shown, target="", group=shown, cut_start=True, messages=tuple(messages)
        )
        return example.with_system_merged() if self.merge_system else example

    def _messages(self, row: Mapping[str, Any], column: str) -> list[Message]:
        value = row[column]
        if not isinstance(value, Sequence) or isinstance(value, str) or not value:
            raise InputError(
                f"{self._what(column)} must contain a list of messages, each {{role, content}};"
                " .jsonl and .parquet can contain lists, .csv cannot.",
                key=column,
            )
        try:
            return [read_message(item) for item in value]
        except InputError as error:
            raise InputError(f"{self._what(column)} {error}", key=column) from None

    def _what(self, column: str) -> str:
        return f"the column {column}, which {self.column_key(column)} names,"


def is_day(text: str) -> bool:
    """Return whether a text is a day in ISO 8601, such as 2026-11-29."""
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except (TypeError, ValueError):
        return False


def _in_form_of(original: Mapping[str, Any], message: Message) -> dict[str, Any]:
    """Return a message as {from, value} if ``original`` has this form, else as {role, content}."""
    if original.get("role"):
        return {
            "role": message.role,
            "content": message.content,
            **json.loads(message.more or "{}"),
        }
    value = original.get("value")
    return {"from": original["from"], "value": value if isinstance(value, str) else message.content}


def _shown(message: Message) -> str:
    """Return a message as text, which determines a record's fingerprint and group."""
    return f"{message.role}: {message.content}" + (f" {message.more}" if message.more else "")


def read_message(value: Any) -> Message:
    """Return a message given as {role, content}, or as ShareGPT's {from, value}.

    Raises:
        InputError: The message has another form. The error does not quote it.
    """
    if not isinstance(value, Mapping):
        raise InputError("must contain messages of the form {role, content}.", key=None)
    name = value.get("role") or value.get("from")
    role = SAME_AS.get(name, name) if isinstance(name, str) else None
    content = value.get("value") if value.get("content") is None else value["content"]
    others = {key: value[key] for key in OF_TEMPLATES if value.get(key)}
    if role == FUNCTION_CALL:
        role, others, content = ASSISTANT, {"tool_calls": [_json(content)]}, None
    if role not in ROLES:
        raise InputError(f"must give each message one of the roles {', '.join(ROLES)}.", key=None)
    if others.get("tool_calls"):
        others["tool_calls"] = _tool_calls(others["tool_calls"])
        content = "" if content is None else content
    text = _text(content)
    if text is None or not is_unicode(text):
        raise InputError(
            "must give each message a text as its content; images and sound are not supported.",
            key=None,
        )
    try:
        more = json.dumps(others, ensure_ascii=False) if others else ""
    except (TypeError, ValueError, RecursionError):
        more = None
    if more is None or not is_unicode(more):
        raise InputError(f"must contain JSON values under {', '.join(OF_TEMPLATES)}.", key=None)
    return Message(role=role, content=text, more=more)


def _text(content: Any) -> str | None:
    """Return the text of a message, whose parts are joined; None if a part is not text."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str) or part.get("type") != "text":
            return None
        texts.append(text)
    return "".join(texts)


def _tool_calls(calls: Any) -> list[Any]:
    """Return tool calls as chat templates read them: with arguments as values, not as JSON."""
    if not isinstance(calls, list):
        raise InputError("must give a message's tool_calls as a list.", key=None)
    read = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InputError(
                "must give each of a message's tool_calls the name of a function.", key=None
            )
        arguments = _json(function.get("arguments"))
        identity = {"id": call["id"]} if call.get("id") is not None else {}
        named = {"name": function["name"], "arguments": arguments}
        read.append({**identity, "type": "function", "function": named})
    return read


def _json(value: Any) -> Any:
    """Return the value of a JSON text; any other value is returned unchanged."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


@TASKS.register("custom")
class CustomTask(CustomFields):
    """A task on your own data before its form is known; ``chosen`` returns the form's class."""

    @classmethod
    def chosen(cls, values: Mapping[str, Any]) -> type[Task]:
        """Return the class of the form that the keys select, or this class if no form is given.

        Raises:
            InputError: The keys belong to several forms, or are incomplete for one form.
        """
        classes: dict[frozenset[str] | None, type[Task]] = {
            TEMPLATES: CustomTexts,
            PLAIN: CustomTexts,
            CHAT: CustomChats,
            LABELS: CustomLabels,
            None: CustomTask,
        }
        return classes[form_of(values)]

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> Record:
        """See ``Task.canary``; each form overrides this method."""
        raise InputError(f"{self.lacks}", key="task")
