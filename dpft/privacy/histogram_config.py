"""The section ``privacy`` of ``dpft tokenizer``: what a private histogram of words promises."""

import math
from dataclasses import dataclass

from dpft.errors import InputError
from dpft.privacy.plan import CHUNK, EXAMPLE, check_delta, default_delta
from dpft.privacy.privacy_config import check_num_examples

HISTOGRAM, NONE = "histogram", "none"
NOT_PRIVATE = "made_without_privacy"
"""Key of a tokenizer's own tokenizer_config.json, which goes with it wherever it is copied."""


@dataclass(frozen=True, kw_only=True)
class HistogramPrivacy:
    """(eps, delta) for a histogram of words; noise is given by eps, or by tokenizer.noise_std."""

    name: str = HISTOGRAM
    """What is private: a histogram of words; none (privacy=none): nothing, and no word is left out,
    for comparison and for public texts."""
    eps: float | None = None
    """The promised epsilon, which the noise is calibrated to; give it or tokenizer.noise_std."""
    delta: float | None = None
    """The promised delta, half of it for the noise, half for the threshold; null takes
    1 / (10 * num_examples), of a published task 1 / (2 * num_examples) (task.default_delta)."""
    num_examples: int | None = None
    """Public number of records, or of units; null takes the task's, or counts what is read."""
    unit: str = EXAMPLE
    """Whose words are hidden: a record's, or those of all rows of one value of a column, such as
    customer_id."""
    allow_large_delta: bool = False
    """Release under a delta so large that it promises little."""
    noise_seed: int | None = None
    """For tests: makes the noise reproducible, and so not private."""

    def __post_init__(self) -> None:
        if self.name not in (HISTOGRAM, NONE):
            raise InputError(f"privacy.name must be {HISTOGRAM} or {NONE}, got {self.name!r}.")
        if not self.promises:
            promised = [
                key for key in ("eps", "delta", "noise_seed") if getattr(self, key) is not None
            ]
            if promised or self.has_units:
                raise InputError(
                    "privacy=none makes a vocabulary without a guarantee and has no"
                    f" privacy.{[*promised, 'unit'][0]}, got both; drop one of the two."
                )
        if self.eps is not None and not (math.isfinite(self.eps) and self.eps > 0):
            raise InputError(f"privacy.eps must be positive and finite, got {self.eps}.")
        if self.delta is not None and not 0 < self.delta < 1:
            raise InputError(
                f"privacy.delta must be in (0, 1), got {self.delta}; null takes a small enough one."
            )
        check_num_examples(self.num_examples)
        if not self.unit.strip():
            raise InputError(
                "privacy.unit must be example, or the name of a column such as customer_id, got"
                f" {self.unit!r}."
            )
        if self.unit == CHUNK:
            raise InputError(
                "privacy.unit=chunk is of dpft train alone: words are counted of whole records;"
                " take privacy.unit=example for both."
            )

    @property
    def promises(self) -> bool:
        """Whether there is a guarantee: noise, a threshold and a ledger."""
        return self.name != NONE

    @property
    def has_units(self) -> bool:
        """Whether a unit is all records of one value of a column."""
        return self.unit != EXAMPLE

    def delta_for(self, num_examples: int, rule: str) -> float:
        """Returns delta: the given one, or what ``default_delta`` makes of the number of units.

        Raises:
            InputError: It promises nothing, and ``allow_large_delta`` does not say so.
        """
        delta = default_delta(num_examples, rule) if self.delta is None else self.delta
        check_delta(delta, num_examples=num_examples, allow_large=self.allow_large_delta)
        return delta
