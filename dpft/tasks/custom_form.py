"""What all forms of your own data share: their configuration, and which form its keys choose.

Nothing of it counts as published, also from the hub (docs/design.md, rule 8).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dpft.errors import InputError
from dpft.tasks.base import OwnRows
from dpft.tasks.classification import CLS
from dpft.tasks.records import Record

FORM_KEYS = ("prompt", "target", "text", "messages", "label")
TEMPLATES, PLAIN, CHAT, LABELS = (
    frozenset({"prompt", "target"}),
    frozenset({"text"}),
    frozenset({"messages"}),
    frozenset({"text", "label"}),
)
FORMS = (
    "task.prompt and task.target (templates such as '{question}' and '{answer}'), task.text alone"
    " (plain text), task.messages (the column of a conversation), or task.label with task.text and"
    " task.labels (classes)"
)
"""The four forms, in words."""


@dataclass(frozen=True, kw_only=True)
class CustomFields(OwnRows):
    """The fields of every form; by itself, a task whose form is not chosen yet."""

    source: str = "local"
    prompt_template: str | None = field(default=None, metadata={"key": "prompt"})
    """Template of what the model reads; no loss on it, unless ``learn_prompt``."""
    target_template: str | None = field(default=None, metadata={"key": "target"})
    """Template of what the model learns to write after it."""
    learn_prompt: bool = False
    """Whether the model learns to write the prompt, too, and so whole rows from nothing."""
    text_template: str | None = field(default=None, metadata={"key": "text"})
    """Template of a text to learn as a whole, or, with ``task.label``, to classify."""
    messages_column: str | None = field(default=None, metadata={"key": "messages"})
    """The column that holds a list of {role, content}."""
    label_column: str | None = field(default=None, metadata={"key": "label"})
    """The column that holds the class."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; public."""
    objective: str = CLS
    """cls: a new classification head; infilling: label words by the language model."""
    template: str = ""
    """For infilling with masked language models: words with <S1> and [MASK]."""
    causal_template: str = ""
    """For infilling with causal and seq2seq models: ends with [MASK]."""
    label_words: dict[str, str] = field(default_factory=dict)
    """For infilling: label to the word that stands for it."""

    takes_file: ClassVar[bool] = True
    own_defaults: ClassVar[bool] = True

    def __post_init__(self) -> None:
        form = form_of(self._given())
        if form is not LABELS and (self.label_words or (self.labels and not self.label_column)):
            raise InputError(
                "task.labels and task.label_words are for task.label=COLUMN, got them without it;"
                f" give exactly one of {FORMS}."
            )
        if self.learn_prompt and form not in (TEMPLATES, None):
            raise InputError(
                "task.learn_prompt=true is for task.prompt and task.target, got it with another"
                " form; drop it (task.text is learned as a whole without it)."
            )
        super().__post_init__()

    @property
    def lacks(self) -> str | None:
        """A sentence that asks for the keys of a form, where none is given."""
        none = form_of(self._given()) is None
        return f"task=custom needs one of {FORMS}, got none." if none else None

    @property
    def columns(self) -> tuple[str, ...]:
        """No columns: which ones are read, the form says."""
        return ()

    @property
    def untyped_columns(self) -> tuple[str, ...]:
        """All columns, since a template writes numbers as well as text."""
        return self.columns

    def is_published(self, split: str) -> bool:
        """Returns False: rows of your own are never published ones."""
        return False

    def examples(self, row: Mapping[str, Any]) -> Sequence[Record]:
        """See ``Task.examples``; a form has its own."""
        raise InputError(f"task=custom reads rows in one of {FORMS}.")

    def _given(self) -> dict[str, str | None]:
        return {
            "prompt": self.prompt_template,
            "target": self.target_template,
            "text": self.text_template,
            "messages": self.messages_column,
            "label": self.label_column,
        }


def form_of(values: Mapping[str, Any]) -> frozenset[str] | None:
    """Returns the form that the given keys choose; None where none is given.

    Args:
        values: Configuration key to value; None: not given.

    Raises:
        InputError: They are keys of several forms, or a part of one's.
    """
    given = frozenset(key for key in FORM_KEYS if values.get(key) is not None)
    if not given:
        return None
    for form in (TEMPLATES, PLAIN, CHAT, LABELS):
        # with templates, the label's column is one that only some words may stand in
        if given in (form, form | {"label"} if form is TEMPLATES else form):
            return form
    names = " and ".join(f"task.{key}" for key in FORM_KEYS if key in given)
    raise InputError(f"task=custom needs exactly one of {FORMS}, got {names}.")
