"""Texts that do not repeat themselves: transformers' own processors, of what is written alone.

transformers counts a causal model's prompt as part of the text. A table's words, which a sentence
should copy, would then be barred or penalized, and so would the end-of-text token that pads the
prompts of a batch on the left: a text would depend on the prompts beside its own.

Shapes: b prompts (times beams), t tokens so far, v tokens of the vocabulary.
"""

from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)


def repetition_processors(before: int, *, ngram: int, penalty: float) -> LogitsProcessorList:
    """Returns what keeps texts from repeating themselves; an empty list where all may be repeated.

    Args:
        before: Tokens of a row that were not written: the padded prompt, or a decoder's first one.
        ngram: No run of so many tokens is written twice; 0: any may be.
        penalty: What makes tokens that were written less likely; 1: nothing.
    """
    found: list[LogitsProcessor] = []
    if penalty != 1:
        found.append(_OfWritten(RepetitionPenaltyLogitsProcessor(penalty), before))
    if ngram:
        found.append(_OfWritten(NoRepeatNGramLogitsProcessor(ngram), before))
    return LogitsProcessorList(found)


class _OfWritten(LogitsProcessor):
    """A processor that sees what was written and not what was read."""

    def __init__(self, inner: LogitsProcessor, before: int) -> None:
        self._inner, self._before = inner, before

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns the logits, shape (b, v), as ``inner`` makes them of the written tokens.

        Args:
            input_ids: All tokens so far, shape (b, t).
            scores: Logits of the next one, shape (b, v).
        """
        written = input_ids[:, self._before :]
        if not written.shape[1]:
            return scores
        made: Tensor = self._inner(written, scores)
        return made
