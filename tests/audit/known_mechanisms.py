"""Mechanisms of known privacy, as scores of canaries: what audits must not, and must, find."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RUNS = 1000
MOST_WRONG = 68
"""A right test at 95 % exceeds the truth in at most so many of 1,000 runs, but for one case in 200:
the quantile of 99.5 % of the binomial of chance 5 %."""


def randomized_response(eps: float, canaries: int, rng: np.random.Generator):
    """Return scores and coins; a score's sign is the coin, told truly in e^eps of e^eps + 1 cases.

    Its size is noise, so that no two scores are equal.
    """
    included = rng.random(canaries) < 0.5
    truly = rng.random(canaries) < math.exp(eps) / (1 + math.exp(eps))
    scores = np.where(included == truly, 1.0, -1.0) * (1 + rng.random(canaries))
    return scores, included


def gaussian(mu: float, canaries: int, rng: np.random.Generator):
    """Return scores and coins of canaries in directions of their own, each mu-Gaussian-DP."""
    included = rng.random(canaries) < 0.5
    return rng.normal(size=canaries) + mu * included, included


def common_chance(share: float, eps: float, canaries: int, rng: np.random.Generator):
    """Return those of randomized response in a share of the runs, of noise in the others."""
    return randomized_response(eps if rng.random() < share else 0.0, canaries, rng)


def runs(mechanism, *values, count: int = RUNS, seed: int = 22) -> Iterator:
    """Yield the scores and coins of runs of a mechanism."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield mechanism(*values, rng)


@dataclass(frozen=True, kw_only=True)
class ApproximateTradeOff:
    """The lowest curve that (epsilon, delta)-differential privacy allows: Dong et al., Prop. 2.5.

    Attributes:
        epsilon: At least 0.
        delta: In [0, 1).
    """

    epsilon: float
    delta: float = 0.0

    def __call__(self, alpha: NDArray[np.float64] | float, /) -> NDArray[np.float64] | float:
        steep = 1 - self.delta - math.exp(min(self.epsilon, 700.0)) * alpha
        flat = math.exp(-self.epsilon) * (1 - self.delta - alpha)
        return np.maximum(0.0, np.maximum(steep, flat))
