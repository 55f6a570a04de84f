"""Bugs as they happen in DP-SGD, planted beneath a run; ``dpft`` itself has no hook for them.

Each is a context manager; runs inside it report the epsilon of the mechanism they were meant to be.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from dpft.privacy import noise, sampling
from dpft.privacy.clipping import checks, recorder, styles
from dpft.privacy.clipping.products import GradientNorms, Lookup, Outer
from dpft.privacy.sampling import BinomialBlocks


@contextmanager
def noise_halved() -> Iterator[None]:
    """Every step's noise has half the standard deviation of the plan."""
    add_noise = noise.add_noise

    def halved(sums: Any, noise_std: float, *rest: Any, **more: Any) -> None:
        add_noise(sums, noise_std / 2, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "add_noise", halved)
        yield


@contextmanager
def clipping_off() -> Iterator[None]:
    """Each unit's gradient is added as it is, however long."""

    def ones(_: styles.Flat, of: Tensor) -> Tensor:
        return torch.ones_like(of)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(styles.Flat, "_factors", ones)
        yield


@contextmanager
def checks_off() -> Iterator[None]:
    """The clipper's checks accept every difference from single-example execution."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "EXACT", checks.Tolerance(losses=1e30, gradients=1e30, least_share=1))
        yield


def tied_weight_forgotten() -> AbstractContextManager[None]:
    """A tied weight's norm is that of its look-ups: what it does as the head is not counted."""

    def of_embedding(
        _: GradientNorms, embedding: GradientNorms, *uses: Outer | Lookup
    ) -> GradientNorms:
        return embedding

    return _tied_weights(of_embedding)


def tied_weight_halved() -> AbstractContextManager[None]:
    """A tied weight's norm counts for half of what it is."""
    tied_norms = recorder.tied_norms

    def half(*norms_and_uses: Any) -> GradientNorms:
        whole = tied_norms(*norms_and_uses)
        return GradientNorms(whole.square / 4, whole.error / 4, whole.rounding / 2)

    return _tied_weights(half)


@contextmanager
def rate_doubled() -> Iterator[None]:
    """Every unit joins a step with twice the probability of the plan."""

    def doubled(rate: float) -> BinomialBlocks:
        return BinomialBlocks(min(1.0, 2 * rate))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "BinomialBlocks", doubled)
        yield


@contextmanager
def noise_repeated() -> Iterator[None]:
    """Step 2k and 2k + 1, counted from 0, get the same noise."""
    keys: dict[int, bytes] = {}

    class Repeated(noise.BlockNoise):
        def __init__(self, stream: noise.NoiseStream, step: int) -> None:
            super().__init__(stream, step)
            self._step = step - step % 2
            self._key = keys.setdefault(self._step, self._key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "BlockNoise", Repeated)
        yield


@contextmanager
def _tied_weights(wrong_norms: Callable[..., GradientNorms]) -> Iterator[None]:
    """Compute the norms of tied weights, which are not formed, by ``wrong_norms``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "tied_norms", wrong_norms)
        for use in (Outer, Lookup):
            patch.setattr(use, "is_better_formed", property(lambda _: False))
        yield
