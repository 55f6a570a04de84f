"""One sentence or two, as a model with a classification head reads them."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpft.data.collation import SCORE
from dpft.data.encoding import Encoding
from dpft.data.tokenization import TokenizedExample
from dpft.tasks.base import LabelledExample


@dataclass(frozen=True, kw_only=True)
class SentenceEncoding(Encoding):
    """Sentences with the tokenizer's own marks around and between them."""

    def rows(self, examples: Sequence[LabelledExample]) -> list[TokenizedExample]:
        """See ``Encoding.rows``; cuts the end of the longer sentence."""
        if not examples:
            return []
        encoded = self.tokenizer(
            *self._columns(examples),
            truncation="longest_first",
            max_length=self.max_length,
            padding=False,
            split_special_tokens=True,
            verbose=False,
        )
        types = encoded.get("token_type_ids", [None] * len(examples))
        return [
            TokenizedExample(input_ids=ids, labels=self._labels(example.label), token_type_ids=kind)
            for example, ids, kind in zip(examples, encoded["input_ids"], types, strict=True)
        ]

    def _columns(self, examples: Sequence[LabelledExample]) -> list[list[str]]:
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
