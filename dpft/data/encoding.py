"""From a task's records to the rows a kind of model reads: what every encoding is, and texts'.

Label words are in ``label_words``, sentences for a classifier in ``sentences``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from dpft.data.collation import Layout
from dpft.data.tokenization import TokenizedExample, tokenize, tokenize_prompts
from dpft.kinds import SEQ2SEQ
from dpft.tasks.base import Example


@dataclass(frozen=True, kw_only=True)
class Encoding(ABC):
    """A tokenizer, and how rows made with it lie in a batch."""

    tokenizer: PreTrainedTokenizerBase
    layout: Layout
    max_length: int
    """Most tokens in a row; each record is cut on its own."""

    @abstractmethod
    def rows(self, examples: Sequence[Any]) -> list[TokenizedExample]:
        """Returns each record as a row, in order.

        Args:
            examples: Records of the kind the task makes.

        Raises:
            InputError: ``max_length`` leaves no room for what must not be cut.
        """


@dataclass(frozen=True, kw_only=True)
class TextEncoding(Encoding):
    """Prompts and targets, for models that write."""

    def rows(self, examples: Sequence[Example]) -> list[TokenizedExample]:
        """See ``Encoding.rows``; for a seq2seq model prompt and target are cut apart."""
        if self.layout.kind != SEQ2SEQ:
            return tokenize(examples, self.tokenizer, max_length=self.max_length)
        sources = self.prompts(examples, max_length=self.max_length, max_new_tokens=0)
        empty = [
            Example(prompt="", target=example.target, group=example.group) for example in examples
        ]
        targets = tokenize(empty, self.tokenizer, max_length=self.max_length)
        return [
            TokenizedExample(input_ids=source, labels=_target(row))
            for source, row in zip(sources, targets, strict=True)
        ]

    def prompts(
        self, examples: Sequence[Example], *, max_length: int, max_new_tokens: int
    ) -> list[list[int]]:
        """Returns what the model reads before it writes, in tokens.

        Args:
            examples: The records; their targets are not read.
            max_length: Most tokens of prompt and answer together.
            max_new_tokens: Most tokens of the answer; a seq2seq model writes them elsewhere.

        Raises:
            InputError: There is no room for a prompt.
        """
        if self.layout.kind != SEQ2SEQ:
            return tokenize_prompts(
                examples, self.tokenizer, max_length=max_length, max_new_tokens=max_new_tokens
            )
        end = self.tokenizer.eos_token_id
        prompts = tokenize_prompts(
            examples, self.tokenizer, max_length=max_length - 1, max_new_tokens=0
        )
        return [[*prompt, end] for prompt in prompts]


def _target(row: TokenizedExample) -> list[int]:
    """Returns the labels a decoder learns: target and end-of-text."""
    return [int(label) for label in row.labels if label >= 0]
