"""How long the signal and the noise of a step are, measured while the one is added to the other.

Li et al. 2022 (arXiv 2110.05679), section 3.1.1 and Figure 3, right: with g the mean of the clipped
gradients and z the noise on it, an update's signal-to-noise ratio is ``r = ||g|| / ||z||``, and its
average over the first updates goes with the score at the end. It reads the records, and epsilon
does not cover it: it is for a run's private/ folder alone.

It is measured block by block, before the two are added: afterwards the noise is known only up to
the rounding of the noisy sum.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from dpft.parallel.ranks import Ranks

SIGNAL_STEPS = 30
"""Updates, from the first, over which the ratio is averaged (Li et al. 2022, section 3.1.1)."""


@dataclass(frozen=True, kw_only=True)
class SignalAndNoise:
    """The lengths of a step's mean clipped gradient and of the noise on it. Private."""

    signal: float
    """Norm of the clipped sum over the expected batch size; 0 where nobody was drawn."""
    noise: float
    """Norm of the noise over the expected batch size; above 0."""

    @property
    def ratio(self) -> float:
        """Signal to noise."""
        return self.signal / self.noise


class SignalMeter:
    """Adds up the squares of a step's clipped sum and of its noise, in float64.

    The noise counts in units of its standard deviation, so that no such unit overflows or vanishes.
    """

    def __init__(self, device: torch.device) -> None:
        """Starts with nothing measured, on the device of what is to be measured."""
        self._signal = torch.zeros((), dtype=torch.float64, device=device)
        self._noise = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, clipped_sum: Tensor, gaussians: Tensor) -> None:
        """Adds a block's squares; takes memory of one block, and changes neither tensor.

        Args:
            clipped_sum: The block of the sum before its noise, any dtype.
            gaussians: What its noise is ``noise_std`` times of, float64, of the same shape.
        """
        self._signal += vector_norm(clipped_sum, dtype=torch.float64).square()
        self._noise += vector_norm(gaussians).square()

    def share(self, ranks: Ranks) -> None:
        """Adds what the other ranks measured of theirs."""
        both = ranks.total(torch.stack((self._signal, self._noise)))
        self._signal, self._noise = both[0], both[1]

    def mean(self, noise_std: float, expected_batch_size: float) -> SignalAndNoise:
        """Returns what was measured of the mean gradient.

        Args:
            noise_std: Standard deviation of the noise on the sum.
            expected_batch_size: What the noisy sum is divided by.
        """
        return SignalAndNoise(
            signal=math.sqrt(float(self._signal)) / expected_batch_size,
            noise=math.sqrt(float(self._noise)) * noise_std / expected_batch_size,
        )
