"""One sentence or two, as a model with a classification head reads them."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpft.data.encoding import TokenEncoding
from dpft.data.tokenization import TokenizedExample
from dpft.errors import InputError
from dpft.kinds import SCORE
from dpft.tasks.records import LabeledExample


@dataclass(frozen=True, kw_only=True)
class SentenceEncoding(TokenEncoding):
    """Sentences with the tokenizer's own marks around and between them."""

    def rows(self, examples: Sequence[LabeledExample]) -> list[TokenizedExample]:
        """See ``Encoding.rows``; cuts the end of the longer sentence."""
        if not examples:
            return []
        columns = self._columns(examples)
        self._check_room(len(columns))
        encoded = self.tokenizer(
            *columns,
            truncation="longest_first",
            max_length=self.max_length,
            padding=False,
            split_special_tokens=True,
            verbose=False,
        )
        types = encoded.get("token_type_ids", [None] * len(examples))
        return [
            TokenizedExample(
                # an empty text of a tokenizer without marks: a row needs a token to be read at
                input_ids=ids or [self.layout.pad_token_id],
                labels=self._labels(example.label),
                token_type_ids=kind,
                truncated=is_cut,
            )
            for example, ids, kind, is_cut in zip(
                examples,
                encoded["input_ids"],
                types,
                self._cut(columns, encoded["input_ids"]),
                strict=True,
            )
        ]

    def _cut(self, columns: list[list[str]], rows: Sequence[Sequence[int]]) -> list[bool]:
        """Returns which rows lost a part; only those that fill their room are read again."""
        full = [at for at, ids in enumerate(rows) if len(ids) == self.max_length]
        if not full:
            return [False] * len(rows)
        whole = self.tokenizer(
            *([column[at] for at in full] for column in columns),
            padding=False,
            split_special_tokens=True,
            verbose=False,
        )["input_ids"]
        cut = {at for at, ids in zip(full, whole, strict=True) if len(ids) > self.max_length}
        return [at in cut for at in range(len(rows))]

    def _check_room(self, texts: int) -> None:
        """Refuses a length at which the tokenizer would cut nothing at all."""
        least = self.tokenizer.num_special_tokens_to_add(pair=texts > 1) + texts
        if self.max_length < least:
            raise InputError(
                f"task.max_length must be at least {least}, a token of each text and the"
                f" tokenizer's marks around them, got {self.max_length}; raise it."
            )

    def _columns(self, examples: Sequence[LabeledExample]) -> list[list[str]]:
        """Returns the first sentences and, where there are two, the second ones.

        A tokenizer without a mark between sentences gets them as one text of two lines.
        """
        if self.tokenizer.sep_token_id is None:
            return [["\n".join(example.texts) for example in examples]]
        return [list(column) for column in zip(*(e.texts for e in examples), strict=True)]

    def _labels(self, label: float) -> list[float]:
        if self.layout.answer == SCORE:
            return [label]
        return [float(index == label) for index in range(self.layout.outputs)]
