"""Your own conversations: the assistant's last message is learned, those before it are read.

The model's own chat template writes them (``dpft.data.chat``); here they are only checked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpft.errors import InputError
from dpft.tasks.base import TextTask
from dpft.tasks.custom_form import CustomFields
from dpft.tasks.custom_texts import TEXT_METRICS
from dpft.tasks.records import Example, is_unicode

ASSISTANT = "assistant"
ROLES = ("system", "user", ASSISTANT)


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: str
    """One of ``ROLES``."""
    content: str


@dataclass(frozen=True, kw_only=True)
class ChatExample(Example):
    """A conversation; ``prompt`` shows its messages, ``messages`` are what a template writes."""

    messages: tuple[Message, ...]
    """Those before the assistant's last one, which is ``target``; at least one."""


@dataclass(frozen=True, kw_only=True)
class CustomChats(CustomFields, TextTask):
    """``task.messages``."""

    def __post_init__(self) -> None:
        if not self.metrics:
            object.__setattr__(self, "metrics", TEXT_METRICS)
        super().__post_init__()

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of the conversation."""
        return (self._column,)

    @property
    def holds_lists(self) -> bool:
        """See ``TextTask.holds_lists``."""
        return True

    @property
    def prompt_columns(self) -> tuple[str, ...]:
        """The column of the conversation, of which a prompt leaves out the answer."""
        return self.columns

    @property
    def unit_definition(self) -> str:
        """One record is a conversation, whoever takes part in others."""
        return "conversation (row of the data); equal ones are records of their own"

    def column_key(self, column: str) -> str | None:
        """See ``Task.column_key``."""
        return "task.messages"

    def examples(self, row: Mapping[str, Any]) -> tuple[ChatExample, ...]:
        """Returns the row's one conversation; see ``Task.examples``."""
        messages = self._messages(row)
        if messages[-1].role != ASSISTANT:
            raise InputError(
                f"{self._what} must end with a message of the assistant, which is what is learned."
            )
        answer = messages[-1].content
        return (replace(self.prompt(row), target=answer if answer.strip() else ""),)

    def prompt(self, row: Mapping[str, Any]) -> ChatExample:
        """Returns the messages before an answer; an assistant's last message is left out."""
        messages = self._messages(row)
        before = messages[:-1] if messages[-1].role == ASSISTANT else messages
        if not before:
            raise InputError(f"{self._what} must hold a message before the assistant's answer.")
        shown = "\n".join(f"{message.role}: {message.content}" for message in before)
        return ChatExample(prompt=shown, target="", group=shown, cut_start=True, messages=before)

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> ChatExample:
        """See ``Task.canary``."""
        said = [
            {"role": "user", "content": " ".join(read)},
            {"role": ASSISTANT, "content": " ".join(learned)},
        ]
        return self.examples({self._column: said})[0]

    def record(self, row: Mapping[str, Any], text: str) -> dict[str, Any]:
        """Returns the conversation with the text as the assistant's answer."""
        said = [*self.prompt(row).messages, Message(role=ASSISTANT, content=text)]
        return {self._column: [{"role": m.role, "content": m.content} for m in said]}

    def _messages(self, row: Mapping[str, Any]) -> tuple[Message, ...]:
        value = row[self._column]
        if not isinstance(value, Sequence) or isinstance(value, str) or not value:
            raise InputError(
                f"{self._what} must hold a list of messages, each {{role, content}}; .csv holds no"
                " lists, .jsonl and .parquet do."
            )
        return tuple(self._message(one) for one in value)

    def _message(self, value: Any) -> Message:
        if not isinstance(value, Mapping):
            raise InputError(f"{self._what} must hold messages of the form {{role, content}}.")
        role, content = value.get("role"), value.get("content")
        if role not in ROLES:
            raise InputError(f"{self._what} must give each message a role of {', '.join(ROLES)}.")
        if not isinstance(content, str) or not is_unicode(content):
            raise InputError(f"{self._what} must give each message a text as its content.")
        return Message(role=role, content=content)

    @property
    def _column(self) -> str:
        return self.messages_column or ""

    @property
    def _what(self) -> str:
        return f"the column {self._column}, which task.messages names,"
