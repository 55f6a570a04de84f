"""Histograms with Gaussian noise: mechanisms and epsilon for the ledger, and noisy counts.

``GaussianHistogram`` counts words. ``GaussianCounts`` counts cells that do not depend on the
records. Every cell gets noise, also if it is empty, so there is no threshold, and no part of delta
is needed for a threshold.

The histogram of words follows Ponomareva et al. 2022, section 3.1 and Appendix B, Theorem 1, with
add-or-remove-one neighbors. A unit adds to the counts of at most N words, at most m to each, and at
most k in L2 norm. The count of every word that occurs in a record gets N(0, std^2) added, and the
word is kept if the sum reaches the threshold. Half of delta is for the noise, and half for words
that only one unit has. A unit has at most N such words, and each of them passes the threshold with
a probability of at most delta / (2N).

The implementation differs from the printed paper in three ways. First, the threshold uses the
normal quantile. With erf^-1, as printed, words of a single unit would pass 83,000 times as often as
delta allows. Second, epsilon is the exact epsilon of the Gaussian mechanism, because the classical
formula is not a bound if epsilon is above 1 (the published 33.68 is actually 43.73). Third, k, m
and N are enforced, not assumed.
"""

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context, Decimal
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dpft.privacy.accounting.gdp import gaussian_epsilon, gaussian_mu
from dpft.strict_model import AtLeastOne, Delta, NotNegative, Positive, StrictModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SLACK = 1e-9
"""Relative tolerance for numbers in a ledger that follow from others, because libraries round
differently."""


class CountingMechanism(StrictModel):
    """Counts with Gaussian noise, and the public number of units that they count."""

    noise_std: Positive
    """Standard deviation of the noise on each count."""
    l2_cap: Positive
    """k: the counts of a unit are scaled down to this L2 norm."""
    delta: Delta
    """The delta at which epsilon holds."""
    noise_multiplier: Positive = Field(
        default_factory=lambda fields: fields["noise_std"] / fields["l2_cap"]
    )
    """noise_std divided by l2_cap."""
    num_examples: AtLeastOne | None = None
    """Number of examples or privacy units, treated as public."""
    num_examples_source: str | None = None
    """Source of the number of examples."""

    def check_derived(self, name: str, expected: float) -> None:
        """Reject a number that does not follow from the others.

        Raises:
            ValueError: The number differs by more than rounding.
        """
        value = getattr(self, name)
        if not math.isclose(value, expected, rel_tol=SLACK):
            raise ValueError(f"its {name} must be {expected!r}, got {value!r}.")

    def _check_fields(self) -> None:
        self.check_derived("noise_multiplier", self.noise_std / self.l2_cap)


class GaussianHistogram(CountingMechanism):
    """Histogram of words with Gaussian noise and a threshold, as a ledger contains it.

    Half of delta is for the noise, and half for the threshold.

    >>> published = dict(l2_cap=256, linf_cap=256, words_per_record=256, delta=1e-9)
    >>> round(GaussianHistogram(noise_std=10000, **published).threshold, 1)
    69661.3
    """

    name: Literal["gaussian_histogram"] = "gaussian_histogram"
    """Name of the mechanism."""
    linf_cap: Positive
    """m: a unit changes the count of one word by at most this number."""
    words_per_record: AtLeastOne
    """N: maximum number of words that are counted per record or unit."""
    threshold: NotNegative = Field(default_factory=lambda fields: _threshold(**fields))
    """A word is kept if its noisy count reaches this number: m + std * Phi^-1(1 - delta / (2N))."""

    def _check_fields(self) -> None:
        super()._check_fields()
        self.check_derived("threshold", _threshold(**dict(self)))

    @property
    def noise_delta(self) -> float:
        """Part of delta for the noise."""
        return self.delta / 2

    @property
    def threshold_delta(self) -> float:
        """Part of delta for words that only one unit has."""
        return self.delta / 2

    @property
    def epsilon(self) -> float:
        """Exact epsilon of the Gaussian mechanism (Balle and Wang 2018) at half of delta."""
        return gaussian_epsilon(1 / self.noise_multiplier, self.noise_delta)

    @property
    def epsilon_classical(self) -> float:
        """Epsilon by the paper's formula, which holds only for an epsilon of at most 1.

        The formula is (k / std) sqrt(2 ln(2.5 / delta)).

        >>> published = dict(l2_cap=256, linf_cap=256, words_per_record=256, delta=1e-9)
        >>> [round(GaussianHistogram(noise_std=s, **published).epsilon_classical, 2)
        ...  for s in (10000, 500, 50)]
        [0.17, 3.37, 33.68]
        """
        return math.sqrt(2 * math.log(2.5 / self.delta)) / self.noise_multiplier

    def most_words_expected(self, num_units: int) -> float:
        """Return a bound on the expected number of words that reach the threshold, for any records.

        The counts of n units add up to at most M = n * min(N m, k sqrt(N)). No count is above n *
        min(m, k), and at most n N counts are not zero. A count c passes with probability Q(c). If
        Q(c) <= u for c up to M / (n N), and Q(c) <= v c for larger c, then at most n N u + M v
        words are expected.

        >>> few = GaussianHistogram(
        ...     noise_std=6, l2_cap=1, linf_cap=1, words_per_record=256, delta=1e-3)
        >>> [round(few.most_words_expected(n), 2) for n in (10, 300)]
        [0.02, 119.01]
        """
        import numpy as np
        from scipy.special import ndtr

        within = math.sqrt(self.words_per_record) * self.l2_cap
        bound = min(self.words_per_record * self.linf_cap, within)
        share = bound / self.words_per_record
        most = max(share, num_units * min(self.linf_cap, self.l2_cap))
        counts = np.linspace(share, most, 100_000)
        chances = ndtr((counts - self.threshold) / self.noise_std)
        rare = num_units * self.words_per_record * float(chances[0])
        return rare + num_units * bound * float((chances / counts).max())


def _threshold(
    noise_std: float, linf_cap: float, words_per_record: int, delta: float, **_: object
) -> float:
    from scipy.special import ndtri

    return linf_cap - noise_std * float(ndtri(delta / 2 / words_per_record))


class GaussianCounts(CountingMechanism):
    """Counts of public cells with Gaussian noise on every cell, also on cells without a unit."""

    name: Literal["gaussian_counts"] = "gaussian_counts"
    """Name of the mechanism."""
    cells: AtLeastOne
    """Number of cells: the public product of the columns' values."""
    threshold_delta: ClassVar[float] = 0.0
    """No part of delta is for a threshold."""

    @property
    def epsilon(self) -> float:
        """Exact epsilon of the Gaussian mechanism (Balle and Wang 2018) at all of delta."""
        return gaussian_epsilon(1 / self.noise_multiplier, self.delta)


Histogram = GaussianHistogram | GaussianCounts
"""The one step that the ledger of a histogram can contain."""


def noise_std_for(*, eps: float, l2_cap: float, delta: float) -> float:
    """Return the least noise whose exact epsilon is at most ``eps``, rounded up to six digits.

    Args:
        eps: Target epsilon, above 0.
        l2_cap: k, the L2 sensitivity of the counts.
        delta: Total delta, of which half is for the noise.
    """
    digits = Context(prec=6, rounding=ROUND_CEILING)
    return float(digits.create_decimal(Decimal(repr(l2_cap / gaussian_mu(eps, delta / 2)))))


def noise_std_for_counts(*, eps: float, l2_cap: float, delta: float) -> float:
    """Return the noise as ``noise_std_for`` does, for counts whose noise uses all of delta."""
    return noise_std_for(eps=eps, l2_cap=l2_cap, delta=2 * delta)


def words_above_threshold(
    words: Sequence[str], counts: "NDArray[np.float64]", mechanism: GaussianHistogram, key: bytes
) -> list[tuple[str, int]]:
    """Return the words whose noisy count reaches the threshold, with their rounded counts.

    Args:
        words: Every word that occurs in a record, each once.
        counts: Count of each word, shape (len(words),). A unit changes the counts by at most the
            mechanism's caps.
        mechanism: Noise and threshold.
        key: 32 secret bytes, used only for this release.

    Returns:
        Words and counts of at least 1, sorted by descending count and then by word. Only the secret
        noise depends on the order in which the words were given.

    Guarantees:
        A word that only one unit has passes with a probability of at most the threshold's delta
        divided by N. A noisy count that only reaches the threshold because it was rounded up to the
        grid does not pass.
    """
    import numpy as np

    from dpft.privacy.noise import grid

    noisy = noisy_counts(counts, mechanism.noise_std, key)
    places = np.flatnonzero(noisy >= mechanism.threshold + grid(mechanism.noise_std)).tolist()
    kept_counts = [(words[at], max(1, round(float(noisy[at])))) for at in places]
    return sorted(kept_counts, key=lambda pair: (-pair[1], pair[0]))


def noisy_counts(
    counts: "NDArray[np.float64]", noise_std: float, key: bytes
) -> "NDArray[np.float64]":
    """Return the counts with N(0, noise_std^2) added to each, on the grid of the noise.

    The noise is that of training steps: ChaCha20, float64, rounded once together with the count.
    """
    import torch

    from dpft.privacy.cipher import AgingKey
    from dpft.privacy.noise import NoiseStream, add_noise

    if not len(counts):
        return counts
    held = torch.nn.Parameter(torch.zeros(len(counts), dtype=torch.float64))
    held.grad = torch.tensor(counts, dtype=torch.float64)
    add_noise([held], noise_std, NoiseStream(torch.device("cpu"), AgingKey(key)))
    noisy: NDArray[np.float64] = held.grad.numpy()
    return noisy
