"""The Persona-Chat task: from a persona and a dialogue to a reply (Zhang et al. 2018).

One record is one utterance with its history (Li et al. 2022, arXiv 2110.05679, section 2). The
persona and the speakers have their own tokens, as in the code on which Li et al. build (Hugging
Face's entry to ConvAI2). The reply is a turn of speaker2. Going backwards from the reply, the turns
of the history alternate between the speakers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from dpft.errors import InputError
from dpft.tasks.base import TASKS, Example, TextTask
from dpft.tasks.templates import objects_of, texts_of

PERSONA, OTHER, REPLIER = "<persona>", "<speaker1>", "<speaker2>"
TOKENS = (PERSONA, OTHER, REPLIER)
SILENCE = "__SILENCE__"
"""ParlAI's first turn of a dialogue that the replier opens; it has no words, so it is skipped."""

_SPELLED = re.compile("|".join(map(re.escape, TOKENS)))


@TASKS.register("personachat")
class PersonaChatTask(TextTask):
    """The configuration of Persona-Chat, ``conf/task/personachat.yaml``."""

    max_history: int | None = None
    """Number of most recent turns of the history that the model reads; null takes all that
    max_length allows."""
    use_persona: bool = True
    """Whether the model reads the persona."""
    eval_split: str = "validation"
    language: str | None = "en"
    metrics: tuple[str, ...] = ("token_f1", "perplexity", "distinct_1", "distinct_2", "mean_length")

    published_hub_name: ClassVar[str | None] = "AlekseyKorshuk/persona-chat"
    columns: ClassVar[tuple[str, ...]] = ("personality",)
    """The replier's persona."""
    optional_columns: ClassVar[tuple[str, ...]] = ("history", "candidates", "utterances")
    """One utterance (history and candidates), or the utterances of a dialogue (utterances)."""
    holds_lists: ClassVar[bool] = True
    prompt_columns: ClassVar[tuple[str, ...]] = ("personality", "history")
    """The persona and the turns before the reply."""
    special_tokens: ClassVar[tuple[str, ...]] = TOKENS
    """Tokens that start the persona, a turn of the other speaker, and a turn of the replier."""
    unit_definition: ClassVar[str] = (
        "utterance with its persona and history; the utterances of one dialogue, which share"
        " its turns, are records apart"
    )
    """One record is one utterance. The utterances of a dialogue share its turns, and reports state
    this."""

    def _check_fields(self) -> None:
        super()._check_fields()
        if self.max_history is not None and self.max_history < 0:
            raise InputError(
                f"task.max_history must be null (all) or at least 0, got {self.max_history}.",
                key="task.max_history",
                value=self.max_history,
                hint="task.max_history=null",
            )

    @property
    def untyped_columns(self) -> tuple[str, ...]:
        """All columns, because they contain lists."""
        return (*self.columns, *self.optional_columns)

    def examples(self, row: Mapping[str, Any]) -> tuple[Example, ...]:
        """Return one example for each utterance in the row.

        Args:
            row: ``personality``, a list of texts, and either ``history`` and ``candidates`` or
                ``utterances``. ``history`` and ``candidates`` are lists of texts; the gold reply is
                the last candidate. ``utterances`` is a list of objects with these two fields.

        Raises:
            InputError: The row does not have this form.
        """
        if "utterances" not in row:
            return (self._example(row),)
        utterances = objects_of(row["utterances"], "utterances")
        persona = {"personality": row["personality"]}
        return tuple(
            self._numbered(number, {**utterance, **persona})
            for number, utterance in enumerate(utterances, start=1)
        )

    def prompt(self, row: Mapping[str, Any]) -> Example:
        """See ``TextTask.prompt``.

        When a long prompt is cut, the persona and the replier's token are kept, and the oldest
        turns of the history are removed first.
        """
        persona = " ".join(_texts(row["personality"], "personality"))
        turns = _turns(row["history"])
        first = 0 if self.max_history is None else max(0, len(turns) - self.max_history)
        lead = f"{PERSONA}{persona}" if self.use_persona else ""
        history = "".join(f"{speaker}{text}" for speaker, text in turns[first:])
        return Example(
            prompt=f"{lead}{history}{REPLIER}",
            target="",
            group=" ".join([PERSONA, persona, *(f"{speaker} {text}" for speaker, text in turns)]),
            lead=lead,
            separator=REPLIER,
            cut_start=True,
        )

    def record(self, row: Mapping[str, Any], text: str) -> dict[str, Any]:
        """See ``TextTask.record``."""
        context = {column: row[column] for column in self.prompt_columns}
        return {**context, "candidates": [text]}

    def _numbered(self, number: int, utterance: Mapping[str, Any]) -> Example:
        try:
            return self._example(utterance)
        except InputError as error:
            raise InputError(f"utterance {number}: {error}", key="utterances") from None

    def _example(self, row: Mapping[str, Any]) -> Example:
        if "history" not in row or "candidates" not in row:
            raise InputError(
                "needs either the fields history and candidates (one utterance), or the field"
                " utterances (a list of objects with these two fields).",
                key="utterances",
            )
        candidates = texts_of(row["candidates"], "candidates")
        if not candidates:
            raise InputError(
                "candidates must contain the gold reply as the last of its texts.", key="candidates"
            )
        return replace(self.prompt(row), target=candidates[-1].strip())


def _turns(value: Any) -> list[tuple[str, str]]:
    """Return each turn of a history with the token of its speaker, oldest first."""
    texts = _texts(value, "history")
    speakers = [OTHER if (len(texts) - index) % 2 else REPLIER for index in range(len(texts))]
    turns = list(zip(speakers, texts, strict=True))
    return turns[1:] if texts[:1] == [SILENCE] else turns


def _texts(value: Any, column: str) -> Sequence[str]:
    """Return the texts of a column, changed so that they contain no special token.

    If a text contains the name of a special token, a blank is inserted into it, because the text of
    a record must not change the speaker.
    """
    stripped = (text.strip() for text in texts_of(value, column))
    return [_SPELLED.sub(lambda match: f"< {match[0][1:]}", text) for text in stripped]
