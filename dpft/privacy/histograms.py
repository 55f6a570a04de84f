"""The release of a histogram of words: noise on every count, and the words that reach a threshold.

What it costs is in ``accounting.gaussian_histogram``. The noise is that of training steps
(``noise``): ChaCha20, float64, rounded once with the count to a grid.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpft.privacy.keys import AgingKey
from dpft.privacy.mechanisms.histogram import GaussianHistogram
from dpft.privacy.noise import NoiseStream, add_noise, grid

CPU = torch.device("cpu")


def released(
    words: Sequence[str],
    counts: NDArray[np.float64],
    mechanism: GaussianHistogram,
    key: bytes,
) -> list[tuple[str, int]]:
    """Returns the words whose noisy count reaches the threshold, and these counts, rounded.

    Args:
        words: Every word that any record has, each once.
        counts: The count of each; a unit moves them by at most the mechanism's caps. Shape
            (len(words),).
        mechanism: How much noise, and which threshold.
        key: 32 secret bytes, used for this release alone.

    Returns:
        Words and counts of at least 1, the largest first, equal ones by the word: nothing of it
        depends on the order in which the words were given but the noise, which no one knows.

    Guarantees:
        A word of one unit alone passes with a probability of at most the threshold's delta over N:
        a count that the grid rounded up to the threshold does not pass.
    """
    noisy = noisy_counts(counts, mechanism.noise_std, key)
    kept = np.flatnonzero(noisy >= mechanism.threshold + grid(mechanism.noise_std)).tolist()
    found = [(words[at], max(1, round(float(noisy[at])))) for at in kept]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


def noisy_counts(counts: NDArray[np.float64], noise_std: float, key: bytes) -> NDArray[np.float64]:
    """Returns the counts with N(0, noise_std^2) added to each, on the noise's grid."""
    if not len(counts):
        return counts
    held = nn.Parameter(torch.zeros(len(counts), dtype=torch.float64))
    held.grad = torch.tensor(counts, dtype=torch.float64)
    add_noise([held], noise_std, NoiseStream(CPU, AgingKey(key)))
    noisy: NDArray[np.float64] = held.grad.numpy()
    return noisy
