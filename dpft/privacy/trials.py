"""The secret draw of a private search: how many trials, and what each one tries.

Papernot & Steinke 2022 (arXiv 2110.03620), Algorithm 1: their number is drawn first, then every
trial's setting, independently, uniformly and with replacement. Numbers come from a cryptographic
stream, for whoever can guess the number of trials has more than the bound allows.
"""

from collections.abc import Mapping, Sequence
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpft.privacy.accounting.selection import TrialCount
from dpft.privacy.cipher import Address, Purpose, keystream


class UniformStream:
    """Uniform float64 numbers in [0, 1) from ChaCha20, 53 random bits each."""

    def __init__(self, key: bytes) -> None:
        """Starts the stream of ``key`` (32 bytes)."""
        self._key = key
        self._draws = 0

    def draw(self, count: int) -> NDArray[np.float64]:
        """Returns the next ``count`` numbers, shape (count,)."""
        address = Address(Purpose.SEARCH, block=self._draws)
        self._draws += 1
        words = np.frombuffer(keystream(self._key, address, 8 * count), dtype=np.uint64)
        return (words >> np.uint64(11)) * np.float64(2.0**-53)


_WORDS = 4
"""Uniform numbers of 53 bits that make one of 212: a tail that a float would cut is drawn."""
_DIGITS = Context(prec=70)
_NOTHING = Decimal("1e-66")


def draw_count(count: TrialCount, stream: UniformStream) -> int:
    """Returns a number of trials, by inversion of the distribution function.

    The distribution is Definition 1's: P(1) = (1 - gamma) * eta / (gamma^-eta - 1), or
    (1 - gamma) / log(1/gamma) for eta=0, and P(k+1) = P(k) * (1 - gamma) * (k + eta) / (k + 1).
    Arithmetic in 70 digits keeps its far tail, too, within 1e-60 of what is accounted for.

    Args:
        count: Its distribution.
        stream: Where randomness comes from.
    """
    eta, gamma, uniform = Decimal(count.eta), Decimal(count.gamma), _uniform(stream)
    with localcontext(_DIGITS):
        tail = eta / (gamma**-eta - 1) if eta else -1 / gamma.ln()
        number, term = 1, (1 - gamma) * tail
        passed = term
        while passed <= uniform and term > _NOTHING:
            term *= (1 - gamma) * (number + eta) / (number + 1)
            passed += term
            number += 1
    return number


def draw_settings(
    space: Mapping[str, Sequence[Any]], number: int, stream: UniformStream
) -> list[dict[str, Any]]:
    """Returns the settings of ``number`` trials, each value drawn uniformly on its own.

    Args:
        space: Key to the values it may have, at least one.
        number: Of trials.
        stream: Where randomness comes from.
    """
    return [
        {key: values[_index(len(values), stream)] for key, values in space.items()}
        for _ in range(number)
    ]


def _uniform(stream: UniformStream) -> Decimal:
    """Returns a number in [0, 1) of 212 bits, which 70 digits hold."""
    bits = 0
    for word in stream.draw(_WORDS):
        bits = (bits << 53) | int(float(word) * 2**53)
    return _DIGITS.divide(Decimal(bits), Decimal(2 ** (53 * _WORDS)))


def _index(size: int, stream: UniformStream) -> int:
    return int(float(stream.draw(1)[0]) * size)
