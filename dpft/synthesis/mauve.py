"""MAUVE: how near two sets of texts are, by a model's features of them; from 0.004 to 1.

Pillutla et al. 2021 (arXiv 2102.01454): features of all texts, reduced to the directions of 90 % of
their variance, are put into groups by k-means, a tenth as many as there are texts of the smaller
set. P and Q are the shares of the groups. Of mixtures R = w P + (1 - w) Q the curve of
(exp(-c KL(Q | R)), exp(-c KL(P | R))), c = 5, bounds an area, MAUVE: 1 of equal shares, and 1 / 252
of disjoint ones, c! c! / (2c)! (the integral of (1 - x^(1/c))^c).

Features are the last hidden state behind a text's last token, as in the paper, of whatever model is
at hand: here the generator itself. So a figure compares with that of real texts beside it, and with
none that another model made.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

SCALE = 5.0
MIXTURES = 25
"""Points of the curve between its ends, as the authors' code has them."""
FEWEST = 50
"""Texts of a set, below which groups would be of a text or two."""
TEXTS_OF_A_GROUP = 10
VARIANCE = 0.9
BATCH = 64
Features = NDArray[np.float64]
Embed = Callable[[Sequence[str]], Features]
"""Returns the features of texts, shape (texts, width)."""


def frontier_area(one: Sequence[float], other: Sequence[float], *, points: int = MIXTURES) -> float:
    """Returns the area under the curve of two distributions over the same groups.

    >>> round(frontier_area([0.5, 0.5], [0.5, 0.5]), 9)
    1.0
    >>> round(252 * frontier_area([1.0, 0.0], [0.0, 1.0], points=10_000), 3)
    1.0

    Args:
        one: Shares of the groups, P.
        other: Theirs in the other set, Q.
        points: Mixtures that are looked at.
    """
    p, q = np.asarray(one, np.float64), np.asarray(other, np.float64)
    curve = [(0.0, 1.0)]
    for weight in np.linspace(1e-6, 1 - 1e-6, points):
        mixture = weight * p + (1 - weight) * q
        curve.append(tuple(np.exp(-SCALE * _divergence(each, mixture)) for each in (q, p)))
    curve.append((1.0, 0.0))
    x, y = np.array(sorted(curve, key=lambda point: (point[0], -point[1]))).T
    return min(1.0, float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2)))


def _divergence(p: Features, mixture: Features) -> float:
    there = p > 0
    return float(np.sum(p[there] * np.log(p[there] / mixture[there])))


def mauve(one: Features, other: Features) -> float | None:
    """Returns MAUVE of two sets of features; None where one has fewer than ``FEWEST``.

    Args:
        one: Shape (texts, width).
        other: Shape (texts, width).
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.preprocessing import normalize

    fewer = min(len(one), len(other))
    if fewer < FEWEST:
        return None
    together = normalize(np.concatenate([one, other]))
    if np.ptp(together, axis=0).max() > 0:
        together = PCA(VARIANCE, svd_solver="full").fit_transform(together)
    count = min(fewer // TEXTS_OF_A_GROUP, len(np.unique(together.round(9), axis=0)))
    groups = KMeans(count, n_init=5, max_iter=500, random_state=0).fit_predict(together)
    sides = groups[: len(one)], groups[len(one) :]
    p, q = (np.bincount(side, minlength=count) / len(side) for side in sides)
    return frontier_area(p.tolist(), q.tolist())


def embedding(model: Any, tokenizer: Any, *, most_tokens: int) -> Embed:
    """Returns what gives features of texts by a causal model.

    Args:
        model: The model; it is put into evaluation.
        tokenizer: Its own.
        most_tokens: A longer text loses its end.
    """

    def embed(texts: Sequence[str]) -> Features:
        model.eval()
        found = []
        for start in range(0, len(texts), BATCH):
            rows = tokenizer(
                list(texts[start : start + BATCH]), add_special_tokens=False,
                split_special_tokens=True, truncation=True, max_length=most_tokens,
            )["input_ids"]  # fmt: skip
            rows = [row or [int(tokenizer.eos_token_id)] for row in rows]
            longest = max(map(len, rows))
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
            there = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
            with torch.no_grad():
                states = model(
                    input_ids=ids.to(model.device),
                    attention_mask=there.to(model.device),
                    output_hidden_states=True,
                ).hidden_states[-1]
            last = there.sum(1).to(states.device) - 1
            found.append(states[torch.arange(len(rows), device=states.device), last].double().cpu())
        return np.asarray(torch.cat(found).numpy())

    return embed
