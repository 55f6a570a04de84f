"""Conversations to token ids by the model's own chat template.

The template says where an answer begins and what ends it, so that a model tuned on conversations
reads them as it did before. A prompt's tokens are the same at training, where an answer follows,
and at generation: an answer whose first letters would join the prompt's last token, or that spells
one of the template's marks, is tokenised by itself, as text.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, cast

from jinja2.exceptions import TemplateError

from dpft.data.encoding import TextEncoding, TokenRows
from dpft.data.tokenization import Prompt, TokenizedExample, joined, start_id, token_ids
from dpft.errors import InputError
from dpft.tasks.base import Example

PLACE = "dpftplaceholder"
"""Stands for a message while the template's own words around it are looked up."""


@dataclass(frozen=True, kw_only=True)
class ChatEncoding(TextEncoding):
    """Conversations, for causal models whose tokenizer has a chat template."""

    def __post_init__(self) -> None:
        if self.tokenizer.chat_template is None:
            raise InputError(
                "task.messages needs a model whose tokenizer has a chat template, and this one has"
                " none; choose an instruction-tuned model, put a chat_template.jinja into"
                " model.path, or make texts by task.prompt and task.target."
            )
        assert self.ending  # looked up here: a template that does not fit is refused early

    @cached_property
    def ending(self) -> list[int]:
        """Tokens that end an answer: the template's mark, and another end-of-text token.

        Generation stops at the end-of-text token alone.
        """
        mark = self._ids([self._tail])[0]
        known = set(self._marks.values())
        last = max((at for at, token in enumerate(mark, 1) if token in known), default=0)
        end = cast(int, self.tokenizer.eos_token_id)
        return [*mark[:last], *([] if mark[:last][-1:] == [end] else [end])]

    def rows(self, examples: Sequence[Example]) -> list[TokenizedExample]:
        """See ``Encoding.rows``; a long history loses its beginning, a system message stays."""
        prompts = self._cuttable(examples)
        answers = self._answers(examples, prompts)
        end, start = [self.ending[-1]], start_id(self.tokenizer)
        return [
            joined(
                prompt,
                answer + self.ending if each.target else end,
                self.max_length,
                start=start,
                cut_end=each.cut_target_end,
            )
            for each, prompt, answer in zip(examples, prompts, answers, strict=True)
        ]

    def rows_together(self, examples: Sequence[Example]) -> TokenRows:
        """See ``Encoding.rows_together``."""
        return TokenRows(self.rows(examples) if examples else ())

    def _cuttable(self, examples: Sequence[Example]) -> list[Prompt]:
        """Returns each prompt in three parts: up to the first turn's text, history, what asks."""
        texts = [self._written(_messages(each), asks=True) for each in examples]
        silent = [self._written(_messages(each), asks=False) for each in examples]
        opening = [self._opening(each) for each in examples]
        ids, without, leads = (self._ids(column) for column in (texts, silent, opening))
        prompts = []
        for whole, turns, lead in zip(ids, without, leads, strict=True):
            start, end = common_prefix(whole, lead), common_prefix(whole, turns)
            start = min(start, end)
            prompts.append(
                Prompt(
                    start=whole[:start],
                    record=whole[start:end],
                    separator=whole[end:],
                    cut_start=True,
                )
            )
        return prompts

    def _opening(self, example: Example) -> str:
        """Returns the template's text before the first message that is not the system's."""
        messages = _messages(example)
        system = [message for message in messages[:1] if message["role"] == "system"]
        turn = {"role": "user", "content": PLACE}
        return self._written([*system, turn], asks=False).partition(PLACE)[0]

    def _answers(self, examples: Sequence[Example], prompts: Sequence[Prompt]) -> list[list[int]]:
        """Returns the ids of each answer, up to where its ending begins."""
        texts = [self._answer(example) for example in examples]
        read = [self._written(_messages(example), asks=True) for example in examples]
        together = self._ids([before + text for before, text in zip(read, texts, strict=True)])
        alone = token_ids(texts, self.tokenizer)
        answers = []
        for prompt, text, whole, own in zip(prompts, texts, together, alone, strict=True):
            ids = prompt.start + prompt.record + prompt.separator
            follows = whole[: len(ids)] == ids and not any(mark in text for mark in self._marks)
            answers.append(whole[len(ids) :] if follows else own)
        return answers

    def _answer(self, example: Example) -> str:
        """Returns the template's text between the prompt and an answer's end."""
        if not example.target:
            return ""
        return self._continuation(_messages(example), example.target).removesuffix(self._tail)

    @cached_property
    def _tail(self) -> str:
        """The template's text after an answer."""
        question = [{"role": "user", "content": "What?"}]
        return self._continuation(question, PLACE).rpartition(PLACE)[2]

    def _continuation(self, messages: list[dict[str, str]], answer: str) -> str:
        prompt = self._written(messages, asks=True)
        whole = self._written([*messages, {"role": "assistant", "content": answer}], asks=False)
        if not whole.startswith(prompt):
            raise InputError(
                "task.messages needs a chat template that writes a conversation and then its"
                " answer, and the model's does not; choose another model, or make texts by"
                " task.prompt and task.target."
            )
        return whole[len(prompt) :]

    def _written(self, messages: list[dict[str, str]], *, asks: bool) -> str:
        """Returns the messages as the template writes them."""
        try:
            written = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=asks
            )
        # What a template calls on a message raises Python's own errors; they may quote it.
        except (TemplateError, ValueError, TypeError, LookupError, ArithmeticError):
            raise InputError(
                "the model's chat template refuses a conversation of task.messages; most want user"
                " and assistant in turn, and some no system message."
            ) from None
        return str(written)

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of texts, the template's marks read as the tokens they are."""
        if not texts:
            return []
        encoded = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)
        return cast(list[list[int]], encoded["input_ids"])

    @cached_property
    def _marks(self) -> dict[str, int]:
        """The tokenizer's special tokens, and their ids."""
        added = self.tokenizer.added_tokens_decoder.items()
        return {token.content: number for number, token in added if token.special}


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns how many ids the two begin with in common."""
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _messages(example: Any) -> list[dict[str, str]]:
    """Returns a chat example's messages as chat templates take them."""
    return [asdict(message) for message in example.messages]
