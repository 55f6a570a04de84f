r"""Conversion of table rows to text and back: compact JSON with a fixed order of columns.

The model reads the columns of the condition and generates the other columns:

    {"city":"Rome","label":true,   |   "age":42,"note":"says \"no\""}

The form ``array`` omits the names and takes fewer tokens: ``["Rome",true,  |  42,"says \"no\""]``.

From the schema, llguidance derives the tokens that may come next, and ends a text that has
``max_tokens`` tokens. Every value is therefore in range. A row whose text ends within an escape is
drawn again. In columns with a range or a list of values, the model draws from the whole
distribution, so that rare values keep their probability. In texts, it draws from the nucleus.
"""

import bisect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerFast, TopPLogitsWarper

from dpft.errors import InputError, RunError
from dpft.synthesis.schema import TEXT, Column, Misfit, Row, Schema

ARRAY = "array"
SLACK = 4
"""Number of tokens by which a value may exceed its length when tokenized separately."""
BODY = r'/([^"\\\x00-\x1f]|\\["\\nrtbf]|\\u00[01][0-9a-f])*/'
"""Regular expression of the content of a JSON string, as ``json.dumps`` writes it."""


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """The format in which the rows of a schema are written."""

    schema: Schema
    condition: tuple[str, ...] = ()
    """Columns that the model reads; it generates the other columns."""
    form: str = "object"

    def __post_init__(self) -> None:
        if not self.written:
            raise InputError(
                "condition must leave a column for the model to generate, got all of them. Remove"
                " one.",
                key="condition",
                value=list(self.condition),
            )

    @cached_property
    def given(self) -> tuple[Column, ...]:
        """The condition's columns."""
        return tuple(self.schema.named[name] for name in self.condition)

    @cached_property
    def written(self) -> tuple[Column, ...]:
        """The columns that the model writes, in the schema's order."""
        return tuple(c for c in self.schema.learned if c.name not in self.condition)

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """The fixed text before each column of the output, and after the last column."""
        names = [("," if at else "") + self._name(c) for at, c in enumerate(self.written)]
        return (*names, "]" if self.form == ARRAY else "}")

    def _name(self, column: Column) -> str:
        return "" if self.form == ARRAY else json.dumps(column.name, ensure_ascii=False) + ":"

    def prompt(self, row: Mapping[str, Any]) -> str:
        """Return the text that the model reads: at least the opening bracket."""
        return self._prompt([column.spell(row[column.name]) for column in self.given])

    def _prompt(self, values: Sequence[str]) -> str:
        pairs = zip(self.given, values, strict=True)
        texts = (f"{self._name(column)}{value}," for column, value in pairs)
        return ("[" if self.form == ARRAY else "{") + "".join(texts)

    def target(self, row: Mapping[str, Any]) -> str:
        """Return the text that the model writes after the prompt."""
        return self._target([column.spell(row[column.name]) for column in self.written])

    def _target(self, values: Sequence[str]) -> str:
        pairs = zip(self.literals, [*values, ""], strict=True)
        return "".join(before + value for before, value in pairs)

    def read(self, prompt: str, target: str) -> Row | None:
        """Return the row that both texts form, or None if they do not form a row of the schema."""
        target = target.removeprefix(" ").replace('\ufffd"', '"')  # a letter that was cut
        try:
            content = json.loads(prompt + target, parse_float=str, parse_int=str)
        except (ValueError, RecursionError):
            return None
        names = [column.name for column in (*self.given, *self.written)]
        if isinstance(content, list) and len(content) == len(names):
            content = dict(zip(names, content, strict=True))
        if not isinstance(content, dict) or [*content] != names:
            return None
        try:
            return {c.name: c.read(content[c.name]) for c in self.schema.learned}
        except Misfit:
            return None

    def json_weights(self, of_text: float) -> tuple[float, ...]:
        """Return the loss weights of a target's segments, which are names and values in turn.

        >>> from dpft.synthesis.schema import schema_of
        >>> columns = {"age": {"type": "integer", "minimum": 1, "maximum": 9},
        ...            "note": {"type": "text", "max_tokens": 9}}
        >>> RowFormat(schema=schema_of({"columns": columns})).json_weights(2.0)
        (1.0, 1.0, 1.0, 2.0)
        >>> RowFormat(schema=schema_of({"columns": columns}), form="array").json_weights(2.0)
        (1.0, 2.0)
        """
        values = [of_text if column.kind == TEXT else 1.0 for column in self.written]
        if self.form == ARRAY:
            return tuple(values)
        return tuple(weight for value in values for weight in (1.0, value))

    def truncated(self, row: Row, tokenizer: Any) -> Row:
        """Return a row whose texts have at most ``max_tokens`` tokens; longer texts lose their end.

        How a text is truncated depends only on this row.
        """
        texts = (column for column in self.written if column.kind == TEXT)
        return row | {c.name: _truncated_text(row[c.name], c, tokenizer) for c in texts}

    def longest(self, tokenizer: Any) -> tuple[int, int]:
        """Return the maximum numbers of tokens of a prompt and of a target; both are public.

        A model may write a value in more tokens than necessary, so each value has some extra
        tokens.
        """
        prompt = self._prompt([column.longest for column in self.given])
        target = self._target([column.longest for column in self.written])
        room = sum(SLACK + column.max_tokens for column in self.written)
        return count_tokens(prompt, tokenizer), count_tokens(target, tokenizer) + room

    @property
    def grammar(self) -> str:
        """The grammar of every target, in llguidance's variant of Lark.

        A target may begin with a blank, because some tokenizers begin each text with a blank.
        """
        parts, rules = ['" "?'], []
        for at, column in enumerate(self.written):
            parts += [json.dumps(self.literals[at], ensure_ascii=False), f"value_{at}"]
            if column.kind == TEXT:
                missing = '"null" | ' if column.missing else ""
                rules.append(f'value_{at}: {missing}"\\"" text_{at} "\\""')
                rules.append(f"text_{at}[max_tokens={column.max_tokens}]: {BODY}")
            else:
                rules.append(f"value_{at}: %json {json.dumps(column.json_schema)}")
        parts = [part for part in parts if part != '""']
        return "\n".join([f"start: {' '.join(parts)} {json.dumps(self.literals[-1])}", *rules])


def count_tokens(text: str, tokenizer: Any) -> int:
    """Return the number of tokens of a text."""
    return len(tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])


def _truncated_text(value: Any, column: Column, tokenizer: Any) -> Any:
    """Return a text cut to ``max_tokens`` tokens of its JSON spelling between the quotes."""
    # A letter has at most six tokens, because an escape has six characters. Short texts are
    # therefore not tokenized.
    if value is None or 6 * len(value) <= column.max_tokens:
        return value

    def fits(text: str) -> bool:
        return count_tokens(column.spell(text)[1:-1], tokenizer) <= column.max_tokens

    if fits(value):
        return value
    lengths = range(1, len(value))
    return value[: bisect.bisect_left(lengths, True, key=lambda length: not fits(value[:length]))]


def check_tokenizer(tokenizer: Any) -> None:
    """Reject a tokenizer that loses characters of a row.

    Raises:
        InputError: The tokenizer loses characters, or is not a fast tokenizer.
    """
    probe = '{"a":"é  \\n\\"東","b":-1.50,"c":null}'
    ids = tokenizer(probe, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    back = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    is_fast = isinstance(tokenizer, PreTrainedTokenizerFast)
    if str(back).removeprefix(" ") != probe or not is_fast:
        raise InputError(
            "model must have a tokenizer.json and a tokenizer that preserves every character."
            " Choose a generative model.",
            key="model",
            hint="model=gpt2",
        )


def compile_grammar(rows: RowFormat, tokenizer: Any) -> tuple[Any, int]:
    """Return llguidance's matcher at the start of a target, and the size of its vocabulary.

    Raises:
        InputError: llguidance is not installed.
        RunError: The grammar of the schema is too large for llguidance.
    """
    try:
        import llguidance.hf
    except ImportError:
        raise InputError(
            "dpft synthesize needs llguidance, which is not installed.",
            key=None,
            hint="pip install 'dpft[synthesis]'",
        ) from None
    tokens = llguidance.hf.from_tokenizer(tokenizer)
    matcher = llguidance.LLMatcher(tokens, llguidance.grammar_from("lark", rows.grammar))
    if matcher.is_error():
        reason = " ".join(matcher.get_error().split())
        raise RunError(
            f"the schema makes too large a grammar ({reason[:200]}). Simplify the schema."
        )
    return matcher, int(tokens.vocab_size)


class RowConstraint(LogitsProcessor):
    """Logits processor that allows only continuations of a row and cuts texts to the nucleus."""

    TEXT_SHARE = 1 / 3
    """If more than this share of the vocabulary is allowed, the position is inside a text."""

    def __init__(self, grammar: tuple[Any, int], rows: int, *, before: int, top_p: float) -> None:
        """Begin a batch.

        Args:
            grammar: The result of ``compile_grammar``.
            rows: Number of rows in the batch.
            before: Number of tokens before the targets.
            top_p: Probability mass of the nucleus in texts.
        """
        import llguidance.torch

        self._library, self._before = llguidance.torch, before
        matcher, self._size = grammar
        self._matchers = [matcher.deep_copy() for _ in range(rows)]
        self._executor = llguidance.LLExecutor()
        self._nucleus = TopPLogitsWarper(top_p) if top_p < 1 else None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the logits, with minus infinity for each token that cannot follow.

        Args:
            input_ids: All tokens so far, shape (b, t).
            scores: Logits of the next token, shape (b, v).
        """
        if input_ids.shape[1] > self._before:
            for matcher, token in zip(self._matchers, input_ids[:, -1].tolist(), strict=True):
                if not matcher.is_stopped():
                    matcher.consume_token(token)
        # The mask is applied here, because llguidance's own function would first compile a kernel.
        mask = self._library.allocate_token_bitmask(len(scores), self._size)
        places = [(matcher, at) for at, matcher in enumerate(self._matchers)]
        self._library.fill_next_token_bitmask_par(self._executor, places, mask)
        bits = np.unpackbits(mask.numpy().view(np.uint8), axis=1, bitorder="little")
        allowed = torch.zeros(scores.shape, dtype=torch.bool)
        width = min(scores.shape[1], self._size)
        allowed[:, :width] = torch.from_numpy(bits[:, :width] == 1)
        held = scores.masked_fill(~allowed.to(scores.device), float("-inf"))
        if self._nucleus is None:
            return held
        in_text = (allowed.sum(1) > self.TEXT_SHARE * self._size).to(scores.device)
        held[in_text] = self._nucleus(input_ids[in_text], held[in_text])
        return held
