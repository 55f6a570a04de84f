"""Gaps of a text, filled one after the other: T5's form of an answer, which a model is held to.

A model that has learned hidden spans (Raffel et al. 2020, section 3.3.4) reads a sentinel in the
place of each gap, and writes each sentinel again, in order, with what fills the gap. Here the
sentinels come by themselves: where the model would end a fill, with whatever sentinel or with the
end of the text, the next gap's follows, and after the last fill the end. So every gap is filled,
also by a model that has learned little, and what fills it is the model's choice alone.

Shapes: b prompts, k beams of each, t tokens so far, v tokens of the vocabulary.
"""

from collections.abc import Sequence

from torch import Tensor
from transformers import LogitsProcessor

from dpft.errors import InputError

NEVER = float("-inf")


class GapFilling(LogitsProcessor):
    """Lets a model write nothing but what fills the gaps of some prompts."""

    def __init__(
        self,
        gaps: Sequence[int],
        *,
        sentinels: Sequence[int],
        end: int,
        before: int,
        max_new_tokens: int,
    ) -> None:
        """Takes how many gaps each of b prompts has.

        Args:
            gaps: At least one each; a prompt has the first ones of ``sentinels``.
            sentinels: Token ids, in the order in which they stand in a text.
            end: The end-of-text token.
            before: Tokens of a row that were not written.
            max_new_tokens: Shared alike by a prompt's gaps.

        Raises:
            InputError: There is no room for a token in every gap.
        """
        self._gaps, self._before = gaps, before
        self._sentinels, self._end = list(sentinels), end
        most = max(gaps)
        if max_new_tokens < 2 * most + 1:
            raise InputError(
                f"decode.max_new_tokens must be at least {2 * most + 1} for the {most} gaps of a"
                f" text, got {max_new_tokens}; raise it."
            )
        # Each gap takes its sentinel, too, and the text its end.
        self._longest = [(max_new_tokens - 1) // count - 1 for count in gaps]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns the logits, shape (b * k, v), with those of sentinels and end as they may follow.

        Args:
            input_ids: All tokens so far, shape (b * k, t).
            scores: Logits of the next one, shape (b * k, v).
        """
        beams = len(scores) // len(self._gaps)
        marks = [*self._sentinels, self._end]
        made = scores.clone()
        made[:, marks] = NEVER
        for row, tokens in enumerate(input_ids[:, self._before :].tolist()):
            prompt = row // beams
            places = [at for at, token in enumerate(tokens) if token in self._sentinels]
            length = len(tokens) - places[-1] - 1 if places else 0
            is_last = len(places) >= self._gaps[prompt]
            following = self._end if is_last else self._sentinels[len(places)]
            if not places or length >= self._longest[prompt]:
                made[row] = NEVER
                made[row, following] = 0
            elif length:
                made[row, following] = scores[row, marks].logsumexp(dim=0)
        return made
