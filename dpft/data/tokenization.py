"""Examples to token ids: one record, one sequence; never packed, never split.

Record, separator and target are tokenised apart, so that no token spans a boundary: the prompt's
tokens are the same at training, where the target follows, and at generation, where it does not.
A text that spells a special token, such as ``<|endoftext|>``, is read as text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from dpft.errors import InputError
from dpft.tasks.base import Example

IGNORED_LABEL = -100
"""Label of a token that carries no loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedExample:
    """One record in tokens."""

    input_ids: list[int]
    """What the model reads. For a causal model of texts: beginning-of-text token where the
    tokenizer writes one, prompt, target, end-of-text."""
    labels: list[int] | list[float]
    """For a causal model of texts, as long as ``input_ids``: the token itself on target and
    end-of-text, -100 on the prompt. For a seq2seq model: target and end-of-text. For a label:
    probabilities of the label words or classes, or the score."""
    token_type_ids: list[int] | None = None
    """Which of two sentences each token is of, for models that are told."""
    answer: int | None = None
    """Where the label word is predicted: position of the mask, or of the last token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prompt:
    """A prompt in the three parts that cutting tells apart."""

    start: list[int]
    record: list[int]
    separator: list[int]

    def cut_to(self, length: int) -> list[int]:
        """Returns at most ``length`` ids: the record loses its end, then the rest gives way."""
        room = max(0, length - len(self.start) - len(self.separator))
        ids = self.start + self.record[:room] + self.separator
        return ids[len(ids) - length :] if len(ids) > length else ids


def tokenize(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, *, max_length: int
) -> list[TokenizedExample]:
    """Returns each example in tokens, cut to ``max_length`` on its own.

    What does not fit is cut from the end of the record: the separator, the target and the
    end-of-text token stay. A target too long by itself loses its beginning.

    Args:
        examples: The records.
        tokenizer: Has an end-of-text token.
        max_length: Most tokens in one example.
    """
    prompts = _prompts(examples, tokenizer)
    targets = token_ids([example.target for example in examples], tokenizer)
    end = tokenizer.eos_token_id
    return [
        _joined(prompt, [*target, end], max_length)
        for prompt, target in zip(prompts, targets, strict=True)
    ]


def tokenize_prompts(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    max_new_tokens: int,
) -> list[list[int]]:
    """Returns each example's prompt in tokens, cut as in ``tokenize`` with room for an answer.

    Args:
        examples: The records; their targets are not read.
        tokenizer: The same as at training.
        max_length: Most tokens of prompt and answer together, such as the model's positions.
        max_new_tokens: Most tokens of the answer.

    Raises:
        InputError: There is no room for a prompt.
    """
    room = max_length - max_new_tokens
    if room < 1:
        raise InputError(
            f"decode.max_new_tokens must leave room for the prompt in {max_length} positions,"
            f" got {max_new_tokens}; set it to {max_length - 1} or less."
        )
    return [prompt.cut_to(room) for prompt in _prompts(examples, tokenizer)]


def _joined(prompt: _Prompt, target: list[int], max_length: int) -> TokenizedExample:
    target = target[-max_length:]
    prompt_ids = prompt.cut_to(max_length - len(target))
    return TokenizedExample(
        input_ids=prompt_ids + target, labels=[IGNORED_LABEL] * len(prompt_ids) + target
    )


def _prompts(examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> list[_Prompt]:
    start = _start_ids(tokenizer)
    records = [example.prompt.removesuffix(example.separator) for example in examples]
    separators = [example.separator for example in examples]
    return [
        _Prompt(start=start, record=record, separator=separator)
        for record, separator in zip(
            token_ids(records, tokenizer), token_ids(separators, tokenizer), strict=True
        )
    ]


def _start_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the beginning-of-text token if the tokenizer opens every text with it (Llama)."""
    opening = tokenizer("")["input_ids"][:1]
    return opening if opening == [tokenizer.bos_token_id] else []


def token_ids(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Returns the ids of each text, without special tokens.

    One call, which a fast tokenizer spreads over the cores; equal texts are tokenised once (E2E's
    42,061 records are 4,862 distinct ones), and share a list.
    """
    if not texts:
        return []
    distinct = list(dict.fromkeys(texts))
    ids = tokenizer(
        distinct,
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        verbose=False,
    )["input_ids"]
    ids_of = dict(zip(distinct, ids, strict=True))
    return [ids_of[text] for text in texts]
