r"""What each token of a target that is JSON counts in its row's loss: public, stretch by stretch.

A comma or a colon outside of strings begins a stretch, so that a name, and each value, is one:

    "age" | :42 | ,"note" | :"says \"no\""}     or, without names,     42 | ,"says \"no\""]

A token counts as the stretch of its first letter does. What a row's tokens count follows from that
row's tokens alone, and its loss is still one number, so that clipping is what it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from dpft.kinds import IGNORED_LABEL


@dataclass(frozen=True)
class _Place:
    """Where in a target a token begins."""

    stretch: int = 0
    in_string: bool = False
    escaped: bool = False

    def after(self, letter: str) -> "_Place":
        if self.in_string:
            if self.escaped:
                return _Place(self.stretch, True)
            return _Place(self.stretch, letter != '"', letter == "\\")
        return _Place(self.stretch + (letter in ",:"), letter == '"')


@dataclass(frozen=True, kw_only=True)
class JsonWeights:
    """What the tokens of each stretch count; those of later ones, and of the end, count 1."""

    weights: tuple[float, ...]
    tokenizer: PreTrainedTokenizerBase = field(compare=False, repr=False)
    _steps: dict[tuple[_Place, int], tuple[int, _Place]] = field(
        default_factory=dict, compare=False, repr=False, init=False
    )

    def of(self, labels: Sequence[int]) -> list[float]:
        """Returns what each token of a row counts; 0 where no loss is.

        Args:
            labels: Token ids of the target, -100 before and behind it.
        """
        found, place = [], _Place()
        for token in labels:
            if token == IGNORED_LABEL:
                found.append(0.0)
                continue
            stretch, place = self._step(place, token)
            found.append(self.weights[stretch] if stretch < len(self.weights) else 1.0)
        return found

    def _step(self, place: _Place, token: int) -> tuple[int, _Place]:
        """Returns the stretch of a token that begins at a place, and where the next one begins."""
        known = self._steps.get((place, token))
        if known is None:
            if token == self.tokenizer.eos_token_id:
                return len(self.weights), place
            text = str(self.tokenizer.decode([token], clean_up_tokenization_spaces=False))
            after = place
            stretch = place.after(text[:1]).stretch if text else place.stretch
            for letter in text:
                after = after.after(letter)
            known = self._steps[place, token] = stretch, after
        return known
