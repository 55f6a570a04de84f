"""Tokenize one example into one sequence; examples are never packed or split.

Record, separator and target are tokenised apart, so that no token spans a boundary: the prompt's
tokens are the same at training, where the target follows, and at generation, where it does not.
A text that spells a special token, such as ``<|endoftext|>``, is read as text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard, cast

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dpft.constants import IGNORED_LABEL
from dpft.data.training_records import batched
from dpft.errors import InputError
from dpft.tasks.base import Example

AT_ONCE = 1024
"""Texts that a fast tokenizer is given: it holds some 150 bytes of each token until all are read.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedExample:
    """One record in tokens."""

    input_ids: list[int]
    """What the model reads. For a causal model of texts: beginning-of-text token where the
    tokenizer writes one, prompt, target, end-of-text."""
    labels: list[int] | list[float]
    """For a causal model of texts, as long as ``input_ids``: the token itself on target and
    end-of-text, and on a prompt that is learned; else -100. For a seq2seq model: target and
    end-of-text. For a label: probabilities of the label words or classes, or the score."""
    token_type_ids: list[int] | None = None
    """Which of two sentences each token is of, for models that are told."""
    answer: int | None = None
    """Where the label word is predicted: position of the mask, or of the last token."""
    truncated: bool = False
    """Whether a part of the record's texts had no room; private."""

    @property
    def has_label(self) -> bool:
        """Whether there is anything to learn; a text without a target has nothing."""
        return any(label != IGNORED_LABEL for label in self.labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedPrompt:
    """A prompt in the three parts that cutting tells apart, in token ids."""

    start: list[int]
    """What opens the prompt; stays while the record can give way."""
    record: list[int]
    """The record's own text, which is cut where there is no room."""
    separator: list[int]
    """What ends the prompt; stays while the record can give way."""
    cut_start: bool
    """Whether the record loses its beginning, not its end."""

    def __len__(self) -> int:
        return len(self.start) + len(self.record) + len(self.separator)

    def cut_to(self, length: int) -> list[int]:
        """Return at most ``length`` ids: the record gives way at its end or its beginning first.

        Where the rest has no room either, its own beginning goes.
        """
        room = max(0, length - len(self.start) - len(self.separator))
        kept = max(0, len(self.record) - room) if self.cut_start else 0
        ids = self.start + self.record[kept : kept + room] + self.separator
        return ids[len(ids) - length :] if len(ids) > length else ids


def tokenize(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    special_tokens: Sequence[str] = (),
) -> list[TokenizedExample]:
    """Return each example in tokens, cut to ``max_length`` on its own.

    What does not fit is cut from the middle of the prompt, at the end that the example names:
    the prompt's lead and separator, the target and the end-of-text token stay. A target too long
    by itself loses its beginning, or its end where the example says so. An example whose target
    is empty has no label at all.

    Args:
        examples: The records.
        tokenizer: Has an end-of-text token.
        max_length: Most tokens in one example.
        special_tokens: As ``token_ids``, for the prompts.
    """
    prompts = cuttable_prompts(examples, tokenizer, special_tokens)
    targets = token_ids([example.target for example in examples], tokenizer)
    end, start = tokenizer.eos_token_id, start_id(tokenizer)
    return [
        join_prompt_and_target(
            prompt,
            [*target, end],
            max_length,
            start=start,
            cut_end=example.cut_target_end,
            learns_prompt=example.learns_prompt,
        )
        for example, prompt, target in zip(examples, prompts, targets, strict=True)
    ]


def join_prompt_and_target(
    prompt: TokenizedPrompt,
    target: list[int],
    max_length: int,
    *,
    start: int,
    cut_end: bool,
    learns_prompt: bool = False,
) -> TokenizedExample:
    """Return the row of a prompt and a target that ends with the end-of-text token.

    Args:
        prompt: Gives way to the target.
        target: Token ids; the end-of-text token alone stands for none, and has no label.
        max_length: Most tokens in the row.
        start: Read where there is no prompt.
        cut_end: Whether a target too long by itself loses its end, not its beginning.
        learns_prompt: Whether the prompt's tokens have labels, all but the first, which nothing
            stands before.
    """
    is_empty, whole = len(target) == 1, len(target)
    # A text cut at its end keeps a token before it, from which its first one is predicted.
    target = target[: max_length - 1] if cut_end else target[-max_length:]
    room = max_length - len(target)
    prompt_ids = prompt.cut_to(room) or [start][:room]
    ids = prompt_ids + target
    ignored_prompt = prompt_ids[:1] if learns_prompt else prompt_ids
    ignored = len(ids) if is_empty else len(ignored_prompt)
    return TokenizedExample(
        input_ids=ids,
        labels=[IGNORED_LABEL] * ignored + ids[ignored:],
        truncated=len(target) < whole or len(prompt) > room,
    )


def cut_prompts(
    prompts: Sequence[TokenizedPrompt], max_length: int, max_new_tokens: int = 0
) -> list[list[int]]:
    """Return each prompt in tokens, cut as in ``tokenize`` with room for an answer.

    Args:
        prompts: As ``cuttable_prompts``, by the same tokenizer as at training.
        max_length: Most tokens of prompt and answer together, such as the model's positions.
        max_new_tokens: Most tokens of the answer.

    Raises:
        InputError: There is no room for a prompt.
    """
    room = max_length - max_new_tokens
    if room < 1:
        raise InputError(
            f"decode.max_new_tokens must leave room for the prompt in {max_length} positions,"
            f" got {max_new_tokens}.",
            key="decode.max_new_tokens",
            value=max_new_tokens,
            hint=f"decode.max_new_tokens={max_length - 1}",
        )
    return [prompt.cut_to(room) for prompt in prompts]


def start_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token that a causal model reads first where there is no prompt.

    The beginning-of-text token, or the end-of-text token where there is none.
    """
    start = tokenizer.bos_token_id
    return int(cast(int, tokenizer.eos_token_id) if start is None else cast(int, start))


def cuttable_prompts(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    special_tokens: Sequence[str] = (),
) -> list[TokenizedPrompt]:
    """Return the examples' prompts, not yet cut; their targets are not read."""
    opening = opening_ids(tokenizer)
    start = opening or [start_id(tokenizer)]
    parts = [prompt_parts(example) for example in examples]
    leads, records, separators = (
        token_ids([part[index] for part in parts], tokenizer, special_tokens) for index in range(3)
    )
    return [
        TokenizedPrompt(
            start=(start if example.after_start else opening) + lead,
            record=record,
            separator=sep,
            cut_start=example.cut_start,
        )
        for example, lead, record, sep in zip(examples, leads, records, separators, strict=True)
    ]


def prompt_parts(example: Example) -> tuple[str, str, str]:
    """Return a prompt's lead, its record and its separator."""
    end = len(example.prompt) - len(example.separator)
    return example.lead, example.prompt[len(example.lead) : end], example.separator


def opening_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the beginning-of-text token if the tokenizer opens every text with it (Llama)."""
    opening = tokenizer("")["input_ids"][:1]
    return opening if opening == [tokenizer.bos_token_id] else []


def special_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the tokens that the tokenizer puts before and after every text."""
    around = list(tokenizer("")["input_ids"])
    opening = {tokenizer.bos_token_id, tokenizer.cls_token_id}
    start = around[: sum(token in opening for token in around[:1])]
    return start, around[len(start) :]


def lost_a_part(
    rows: Sequence[Sequence[int]],
    max_length: int,
    read_whole: Callable[[list[int]], Sequence[Sequence[int]]],
) -> list[bool]:
    """Return which rows lost a part.

    Args:
        rows: Token ids, cut to ``max_length``.
        max_length: The room of a row.
        read_whole: From the places of the rows that fill their room, at least one, to the same
            rows without a bound: no others are read again.
    """
    full = [at for at, ids in enumerate(rows) if len(ids) == max_length]
    whole = read_whole(full) if full else []
    cut = {at for at, ids in zip(full, whole, strict=True) if len(ids) > max_length}
    return [at in cut for at in range(len(rows))]


def token_ids(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, special_tokens: Sequence[str] = ()
) -> list[list[int]]:
    """Return the ids of each text.

    One call, which a fast tokenizer spreads over the cores; equal texts are tokenised once (E2E's
    42,061 records are 4,862 distinct ones), and share a list.

    Args:
        texts: What is read.
        tokenizer: Its own special tokens are read as text.
        special_tokens: Those tokens, known to it, that are read as the tokens they spell.
    """
    if not texts:
        return []
    if special_tokens:
        return _ids_with_tokens(texts, tokenizer, special_tokens)
    distinct = list(dict.fromkeys(texts))
    ids_of = dict(zip(distinct, _plain_ids(distinct, tokenizer), strict=True))
    return [ids_of[text] for text in texts]


def _plain_ids(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> Sequence[list[int]]:
    """Return the ids of texts, at least one, without marks around them or special tokens."""
    if has_plain_call(tokenizer):
        return _fast_ids(texts, tokenizer)
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        verbose=False,
    )
    return cast(list[list[int]], encoded["input_ids"])


def has_plain_call(tokenizer: PreTrainedTokenizerBase) -> TypeGuard[PreTrainedTokenizerFast]:
    """Return whether a tokenizer is a fast one whose class reads texts as fast ones do."""
    kind = type(tokenizer)
    return (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and kind.__call__ is PreTrainedTokenizerFast.__call__
        and kind._encode_plus is PreTrainedTokenizerFast._encode_plus
    )


def _fast_ids(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """Return the ids that calling the tokenizer gives, without masks and offsets for each text."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True  # That is, read what spells one as text.
    return [
        encoding.ids
        for batch in batched(texts, AT_ONCE)
        for encoding in backend.encode_batch_fast(batch, add_special_tokens=False)
    ]


def _ids_with_tokens(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, special_tokens: Sequence[str]
) -> list[list[int]]:
    ids = cast(list[int], tokenizer.convert_tokens_to_ids(list(special_tokens)))
    special_token_ids = dict(zip(special_tokens, ids, strict=True))
    between = re.compile(f"({'|'.join(map(re.escape, special_tokens))})")
    batched = [[piece for piece in between.split(text) if piece] for text in texts]
    plain = list(dict.fromkeys(p for parts in batched for p in parts if p not in special_token_ids))
    ids_of = dict(zip(plain, token_ids(plain, tokenizer), strict=True))
    ids_of |= {token: [number] for token, number in special_token_ids.items()}
    return [[number for piece in parts for number in ids_of[piece]] for parts in batched]
