"""Nucleus sampling (Holtzman et al. 2020, arXiv 1904.09751), each text from numbers of its own.

transformers' own sampling draws for a whole batch from torch's global generator: a text would then
depend on the texts beside it, and training's generators would move. Here every prompt has a
stream of uniform numbers by its place, and by which attempt at a text it is, and the token is the
one at which the cumulative distribution passes the number.

Shapes: b prompts, v tokens of the vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)


def root_seed(seed: int | None) -> int:
    """Returns the seed, or fresh entropy of the operating system for None."""
    entropy = np.random.SeedSequence(seed).entropy
    assert isinstance(entropy, int)
    return entropy


def uniforms(root: int, places: Sequence[int], length: int, *, attempt: int = 0) -> Tensor:
    """Returns a random number in [0, 1) for each token that may be written, float64.

    Args:
        root: What ``root_seed`` returned.
        places: Each prompt's place among all prompts, shape (b,).
        length: Most tokens of a text.
        attempt: How often these prompts were written after before.

    Returns:
        Shape (b, length); a row depends on ``root``, its prompt's place and the attempt alone.
    """
    again = (attempt,) if attempt else ()
    seeds = [np.random.SeedSequence(root, spawn_key=(place, *again)) for place in places]
    rows = [np.random.default_rng(seed).random(length) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def nucleus_processors(draws: Tensor, *, top_p: float, temperature: float) -> LogitsProcessorList:
    """Returns what makes transformers' greedy search sample from the nucleus.

    Args:
        draws: What ``uniforms`` returned, shape (b, length), for one call of ``generate``.
        top_p: The likeliest tokens that hold this much of the probability are the nucleus.
        temperature: What the logits are divided by.
    """
    cut = [TemperatureLogitsWarper(temperature), TopPLogitsWarper(top_p)]
    return LogitsProcessorList([*cut, _Choice(draws)])


class _Choice(LogitsProcessor):
    """Chooses each text's next token by its next random number; no other token stays possible."""

    def __init__(self, draws: Tensor) -> None:
        self._columns = iter(draws.unbind(dim=1))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns scores of shape (b, v): 0 for the chosen token, minus infinity for others."""
        cumulative = scores.double().softmax(dim=-1).cumsum(dim=-1)
        drawn = next(self._columns).to(scores.device)[:, None] * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, drawn, right=True)
        # Logits that are not numbers are passed by no number.
        chosen = chosen.clamp(max=scores.shape[1] - 1)
        return torch.full_like(scores, float("-inf")).scatter(1, chosen, 0.0)
