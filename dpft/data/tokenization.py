"""Tokenization of one example into one sequence; examples are never packed or split.

Record, separator and target are tokenized separately, so that no token spans a boundary. The tokens
of the prompt are therefore the same in training, when the target follows, and in generation. If a
record contains the text of a special token, such as ``<|endoftext|>``, it is read as plain text.
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
"""Number of texts that a fast tokenizer reads in one call, which stores about 150 bytes per token
until all texts are read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedExample:
    """One record in tokens."""

    input_ids: list[int]
    """Input of the model. For a causal model of texts: the beginning-of-text token if the tokenizer
    adds one, prompt, target, end-of-text token."""
    labels: list[int] | list[float]
    """For a causal model of texts, as long as ``input_ids``: the token itself for the target, the
    end-of-text token and a prompt that is learned, otherwise -100. For a seq2seq model: target and
    end-of-text token. For a label: probabilities of the label words or classes, or the score."""
    token_type_ids: list[int] | None = None
    """Index (0 or 1) of the sentence that each token belongs to, for models that use it."""
    answer: int | None = None
    """Position at which the label word is predicted: the mask, or the last token."""
    truncated: bool = False
    """Whether a part of the record's texts did not fit; private."""

    @property
    def has_label(self) -> bool:
        """Whether the row has an answer to learn, which requires a target."""
        return any(label != IGNORED_LABEL for label in self.labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedPrompt:
    """A prompt as token ids, in three parts that are cut differently."""

    start: list[int]
    """Beginning of the prompt, which is kept as long as the record can be cut."""
    record: list[int]
    """Text of the record, which is cut first if there is not enough room."""
    separator: list[int]
    """End of the prompt, which is kept as long as the record can be cut."""
    cut_start: bool
    """Whether the record loses its beginning instead of its end."""

    def __len__(self) -> int:
        return len(self.start) + len(self.record) + len(self.separator)

    def cut_to(self, length: int) -> list[int]:
        """Return at most ``length`` ids; the record is cut first, at its end or its beginning.

        If the other parts do not fit either, they lose their beginning.
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
    """Return each example in tokens, cut to ``max_length`` independently of other examples.

    In a long example, the record text in the middle of the prompt is cut, at the side that
    ``cut_start`` selects. The lead and separator of the prompt, the target and the end-of-text
    token are kept. A target that is too long on its own loses its beginning, or its end if the
    example says so. An example with an empty target has no label.

    Args:
        examples: Records to tokenize.
        tokenizer: Tokenizer with an end-of-text token.
        max_length: Maximum number of tokens of an example.
        special_tokens: As in ``token_ids``, for the prompts.
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
        prompt: Prompt, which is cut before the target.
        target: Token ids. If the target is only the end-of-text token, it is empty and has no
            label.
        max_length: Maximum number of tokens in the row.
        start: Token that the model reads if there is no prompt.
        cut_end: Whether a target that is too long on its own loses its end instead of its
            beginning.
        learns_prompt: Whether the tokens of the prompt have labels, except the first token, which
            no token precedes.
    """
    is_empty, whole = len(target) == 1, len(target)
    # A text that is cut at its end keeps one token before it, to predict its first token.
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
    """Return each prompt in tokens, cut as in ``tokenize``, with room for an answer.

    Args:
        prompts: Prompts of ``cuttable_prompts``, from the same tokenizer as in training.
        max_length: Maximum number of tokens of prompt and answer together, such as the positions of
            the model.
        max_new_tokens: Maximum number of tokens of the answer.

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
    """Return the token that a causal model reads first if there is no prompt.

    This is the beginning-of-text token, or the end-of-text token if the tokenizer has no
    beginning-of-text token.
    """
    start = tokenizer.bos_token_id
    return int(cast(int, tokenizer.eos_token_id) if start is None else cast(int, start))


def cuttable_prompts(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    special_tokens: Sequence[str] = (),
) -> list[TokenizedPrompt]:
    """Return the prompts of the examples before cutting; their targets are not read."""
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
    """Return the lead, the record and the separator of a prompt."""
    end = len(example.prompt) - len(example.separator)
    return example.lead, example.prompt[len(example.lead) : end], example.separator


def opening_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the beginning-of-text token if the tokenizer adds it to every text (Llama).

    Return an empty list for other tokenizers.
    """
    opening = tokenizer("")["input_ids"][:1]
    return opening if opening == [tokenizer.bos_token_id] else []


def special_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the tokens that the tokenizer adds before and after every text."""
    around = list(tokenizer("")["input_ids"])
    opening = {tokenizer.bos_token_id, tokenizer.cls_token_id}
    start = around[: sum(token in opening for token in around[:1])]
    return start, around[len(start) :]


def lost_a_part(
    rows: Sequence[Sequence[int]],
    max_length: int,
    read_whole: Callable[[list[int]], Sequence[Sequence[int]]],
) -> list[bool]:
    """Return whether each row was truncated.

    Args:
        rows: Token ids, cut to ``max_length``.
        max_length: Maximum number of tokens of a row.
        read_whole: Function that takes the positions of one or more rows and returns these rows
            without a limit. It is called only for rows of ``max_length`` tokens, so no other row is
            tokenized again.
    """
    full = [at for at, ids in enumerate(rows) if len(ids) == max_length]
    whole = read_whole(full) if full else []
    cut = {at for at, ids in zip(full, whole, strict=True) if len(ids) > max_length}
    return [at in cut for at in range(len(rows))]


def token_ids(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, special_tokens: Sequence[str] = ()
) -> list[list[int]]:
    """Return the ids of each text.

    A single call tokenizes all texts, and a fast tokenizer distributes it over the cores. Equal
    texts are tokenized once and share a list. For example, the 42,061 records of E2E have 4,862
    distinct texts.

    Args:
        texts: Texts to tokenize.
        tokenizer: Tokenizer, whose special tokens are read as text.
        special_tokens: Special tokens that are nevertheless recognized as tokens in the texts.
    """
    if not texts:
        return []
    if special_tokens:
        return _ids_with_tokens(texts, tokenizer, special_tokens)
    distinct = list(dict.fromkeys(texts))
    ids_of = dict(zip(distinct, _plain_ids(distinct, tokenizer), strict=True))
    return [ids_of[text] for text in texts]


def _plain_ids(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> Sequence[list[int]]:
    """Return the ids of texts, at least one, without added or recognized special tokens."""
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
    """Return whether a tokenizer is fast and its class does not override how texts are encoded."""
    kind = type(tokenizer)
    return (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and kind.__call__ is PreTrainedTokenizerFast.__call__
        and kind._encode_plus is PreTrainedTokenizerFast._encode_plus
    )


def _fast_ids(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    """Return the ids that the tokenizer gives, without computing masks and offsets."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True  # A special token's text is plain text.
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
