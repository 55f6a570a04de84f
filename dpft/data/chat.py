"""Conversion of conversations to token ids with the chat template of the model.

The template determines the beginning and the end of an answer. A model that was tuned on
conversations therefore reads them in the same format as before. A template may add text around an
answer: a lead-in, such as the empty thinking block of Qwen3, or a tail, such as ``<|im_end|>``. The
model learns both. `ChatEncoding.answer` removes both from generated text.

The tokens of a prompt are the same in training, when an answer follows, and in generation. If the
first characters of an answer would merge with the last token of the prompt, the answer is therefore
tokenized separately. The same applies if the answer contains the text of a special token. The
generation prompt of a template may contain text that a finished conversation does not have before
its answer, such as the ``<think>`` of DeepSeek-R1. That text is removed from the prompt.

This module renders templates without ``apply_chat_template``, which always inserts the current
date. A run that resumes on a later day must read the same records.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from os.path import commonprefix
from typing import Any, NamedTuple, cast

from jinja2 import Template
from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import _compile_jinja_template

from dpft.data.encoding import TextEncoding, TokenRows
from dpft.data.tokenization import (
    TokenizedExample,
    TokenizedPrompt,
    join_prompt_and_target,
    start_id,
    token_ids,
)
from dpft.errors import InputError
from dpft.tasks.base import Example

PLACE = "dpftplaceholder"
"""Placeholder message. The text around it comes from the template."""
BLOCK = re.compile(r"(<\w+>|\[\w+\])?\s*(</\w+>|\[/\w+\])")
"""An empty block of a lead-in, such as ``<think></think>``. The prompt may contain its start."""
PARTS = ("prompt", "opening", "turns")
"""Fields of `RenderedConversation` that determine where a long prompt may be cut."""


class Around(NamedTuple):
    """The text that a template adds around an answer."""

    dropped: str
    """End of the generation prompt that a finished conversation does not contain."""
    lead: str
    """Text between the prompt and the answer."""
    tail: str
    """Text after the answer."""


class RenderedConversation(NamedTuple):
    """A conversation as rendered by the template."""

    prompt: str
    opening: str
    """Text of the template before the first message that is not a system message."""
    turns: str
    """Messages before the answer, without the text that asks for an answer."""
    lead: str = ""
    """Lead-in of the template; empty if the template renders this answer without it."""
    content: str = ""
    """Answer without lead-in and tail; empty if there is no answer."""


@dataclass(frozen=True, kw_only=True)
class ChatEncoding(TextEncoding):
    """Encoding of conversations, for causal models whose tokenizer has a chat template."""

    date: str | None = None
    """Date that the template uses as the current date, such as 2026-11-29; None: today."""

    def __post_init__(self) -> None:
        if self.tokenizer.chat_template is None:
            raise InputError(
                "task.messages needs a tokenizer with a chat template, but the model's tokenizer"
                " has none. Choose an instruction-tuned model, such as model=smollm2-135m-instruct,"
                " add chat_template.jinja to model.path, or use task.prompt and task.target.",
                key="task.messages",
            )
        assert self.ending  # computed here to reject an unsuitable template early

    @cached_property
    def ending(self) -> list[int]:
        """Tokens that end an answer: the template's tail, followed by the end-of-text token.

        Generation stops only at the end-of-text token.
        """
        tail = self._ids([self._around.tail.rstrip()])[0]
        end = cast(int, self.tokenizer.eos_token_id)
        return [*tail, *([] if tail[-1:] == [end] else [end])]

    def check(self, example: Any) -> None:
        """See ``Encoding.check``; the template must accept the conversation."""
        try:
            self._written(example)
        except InputError:
            merged = example.with_system_merged()
            if merged is not example and self._accepts(merged):
                raise InputError(
                    "the model's chat template does not accept a system message. Put its text"
                    " before the user's first message.",
                    key="task.merge_system",
                    value=False,
                    hint="task.merge_system=true",
                ) from None
            raise

    def _accepts(self, example: Any) -> bool:
        try:
            self._written(example)
        except InputError:
            return False
        return True

    def rows(self, examples: Sequence[Example]) -> list[TokenizedExample]:
        """See ``Encoding.rows``; a long history loses its beginning but keeps a system message."""
        written = [self._written(example) for example in examples]
        prompts = self._in_parts(written)
        answers = self._answers(written, prompts)
        end, start = [self.ending[-1]], start_id(self.tokenizer)
        return [
            join_prompt_and_target(
                prompt,
                answer + self.ending if example.target else end,
                self.max_length,
                start=start,
                cut_end=example.cut_target_end,
            )
            for example, prompt, answer in zip(examples, prompts, answers, strict=True)
        ]

    def rows_together(self, examples: Sequence[Example]) -> TokenRows:
        """See ``Encoding.rows_together``."""
        return TokenRows(self.rows(examples) if examples else ())

    def answer_ids(self, ids: list[int]) -> list[int]:
        """See ``TokenEncoding.answer_ids``; removes a lead-in that ends with a special token.

        The decoded text does not contain special tokens, so `answer` cannot find them.
        """
        opening, closing = self._lead_marks
        if not self._has_mark(closing):
            return ids
        end = self._ids([closing])[0]
        places = [at for at in range(len(ids)) if ids[at : at + len(end)] == end]
        if places:
            return ids[places[0 if opening is None else -1] + len(end) :]
        begin = self._ids([opening])[0] if opening is not None else None
        return [] if begin is not None and ids[: len(begin)] == begin else ids

    def answer(self, text: str) -> str:
        """See ``TokenEncoding.answer``; removes the lead-in and the tail of the template.

        If the lead-in is an empty thinking block, a thinking block that the model has filled is
        removed as well. A text that ends inside the block has no answer.
        """
        opening, closing = self._lead_marks
        if opening is None:
            content = text.removeprefix(closing)
        elif closing in text:
            # The answer follows the last closing mark, as in the templates of such models.
            content = text.rpartition(closing)[2]
        else:
            is_inside = not self._has_mark(closing) and text.startswith(opening)
            content = "" if is_inside else text
        tail = self._around.tail
        for mark in self._marks:
            tail = tail.replace(mark, "")
        return content.strip().removesuffix(tail.strip()).rstrip()

    def reference(self, example: Example) -> str:
        """See ``TextEncoding.reference``; returns the answer as rendered by the template.

        A template may trim an answer, or remove its thinking.
        """
        written = self._written(example)
        return self.answer((written.lead + written.content).strip())

    @cached_property
    def _lead_marks(self) -> tuple[str | None, str]:
        """The text that opens the lead-in's thinking block, and the text that ends the lead-in.

        The first text is None if the lead-in is not a block, and empty if the prompt opens the
        block.
        """
        lead = self._around.lead.strip()
        block = BLOCK.fullmatch(lead)
        return (None, lead) if block is None else (block[1] or "", block[2])

    def _cuttable(self, examples: Sequence[Example]) -> list[TokenizedPrompt]:
        """Return each prompt in three parts: the opening, the history and the generation prompt."""
        return self._in_parts([self._written(replace(example, target="")) for example in examples])

    def _in_parts(self, written: Sequence[RenderedConversation]) -> list[TokenizedPrompt]:
        columns = ([getattr(conversation, name) for conversation in written] for name in PARTS)
        prompts = []
        for whole, opening, turns in zip(*map(self._ids, columns), strict=True):
            end = common_prefix(whole, turns)
            start = min(common_prefix(whole, opening), end)
            prompts.append(
                TokenizedPrompt(
                    start=whole[:start],
                    record=whole[start:end],
                    separator=whole[end:],
                    cut_start=True,
                )
            )
        return prompts

    def _answers(
        self, written: Sequence[RenderedConversation], prompts: Sequence[TokenizedPrompt]
    ) -> list[list[int]]:
        """Return the ids of each answer, including its lead-in but not its ending."""
        together = self._ids(
            [
                conversation.prompt + conversation.lead + conversation.content
                for conversation in written
            ]
        )
        leads = self._ids([conversation.lead for conversation in written])
        contents = token_ids([conversation.content for conversation in written], self.tokenizer)
        answers = []
        for prompt, conversation, whole, lead, content in zip(
            prompts, written, together, leads, contents, strict=True
        ):
            ids = prompt.start + prompt.record + prompt.separator
            follows = whole[: len(ids)] == ids and not self._has_mark(conversation.content)
            answers.append(whole[len(ids) :] if follows else lead + content)
        return answers

    def _written(self, example: Any) -> RenderedConversation:
        """Return a conversation as rendered by the template.

        Raises:
            InputError: The template does not accept the conversation. The message does not quote
                it.
        """
        messages = [
            {"role": message.role, "content": message.content, **json.loads(message.more or "{}")}
            for message in example.messages
        ]
        dropped, usual_lead, tail = self._around
        asked = self._rendered(messages, asks=True)
        prompt = asked.removesuffix(dropped)
        system = [message for message in messages[:1] if message["role"] in ("system", "developer")]
        first = {"role": "user", "content": PLACE}
        parts = RenderedConversation(
            prompt=prompt,
            opening=self._rendered([*system, first], asks=False).partition(PLACE)[0],
            turns=self._rendered(messages, asks=False),
        )
        if not example.target:
            whole = prompt
        else:
            whole = self._rendered([*messages, _answer(example.target)], asks=False)
        if not whole.startswith(prompt):
            raise InputError(
                "the model's chat template does not write this conversation followed by its answer."
                " A template may require that a user's message is the last one before the answer.",
                key="task.messages",
            )
        answer = whole[len(prompt) :].removesuffix(tail)
        lead = usual_lead if answer.startswith(usual_lead) else ""
        return parts._replace(lead=lead, content=answer.removeprefix(lead))

    @cached_property
    def _around(self) -> Around:
        """The template's text around an answer, taken from a rendered one-question conversation."""
        question = [{"role": "user", "content": "What?"}]
        asked = self._rendered(question, asks=True)
        whole = self._rendered([*question, _answer(PLACE)], asks=False)
        before, has_answer, tail = whole.rpartition(PLACE)
        prompt = commonprefix([asked, before])
        if prompt not in (asked, before):
            # The texts diverge inside a mark, such as <think> and </think>.
            added = (token.content for token in self.tokenizer.added_tokens_decoder.values())
            ends = (prompt.rfind(mark) + len(mark) for mark in ("\n", *added) if mark in prompt)
            prompt = prompt[: max(ends, default=0)]
        silent = self._rendered(question, asks=False)
        if not has_answer or len(prompt) < len(commonprefix([silent, asked])):
            raise InputError(
                "task.messages needs a chat template that writes a conversation followed by its"
                " answer, but the model's template does not. Choose another model, or use"
                " task.prompt and task.target.",
                key="task.messages",
            )
        return Around(dropped=asked[len(prompt) :], lead=before[len(prompt) :], tail=tail)

    def _rendered(self, messages: list[dict[str, Any]], *, asks: bool) -> str:
        """Return the messages as rendered by the template."""
        try:
            return self._template.render(
                **self.tokenizer.special_tokens_map,
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=asks,
                strftime_now=self._now.strftime,
            )
        # Expressions of a template can raise built-in Python errors, which may quote a message.
        except (
            *(TemplateError, ValueError, TypeError, LookupError, ArithmeticError),
            *(AttributeError, RecursionError),
        ):
            raise InputError(
                "the model's chat template does not accept the conversation. Most templates require"
                " that user and assistant take turns, and some accept no system or tool messages.",
                key="task.messages",
            ) from None

    @cached_property
    def _template(self) -> Template:
        return cast(Template, _compile_jinja_template(self.tokenizer.get_chat_template()))

    @cached_property
    def _now(self) -> datetime:
        return datetime.now() if self.date is None else datetime.fromisoformat(self.date)

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts, in which special tokens of the template become their own ids."""
        if not texts:
            return []
        encoded = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)
        return cast(list[list[int]], encoded["input_ids"])

    @cached_property
    def _marks(self) -> dict[str, int]:
        """Special tokens of the tokenizer, and their ids."""
        added = self.tokenizer.added_tokens_decoder.items()
        return {token.content: number for number, token in added if token.special}

    def _has_mark(self, text: str) -> bool:
        """Return whether a text contains the text of a special token of the tokenizer."""
        return any(mark in text for mark in self._marks)


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences of ids."""
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
