"""The four accountants by name, and the order in which their bounds are reported.

Outside the settings that they were made for, the libraries can take minutes or terabytes inside C
code that no exception interrupts. Each accountant therefore computes the size of its grid before it
calls its library. If that grid is too large, the accountant gives no answer (``prv.MAX_POINTS``,
``pld.MAX_POINTS``). Answers are cached, because a calibration, a report and a curve evaluate the
same mechanisms.

>>> evaluate("rdp", SampledGaussian(noise_multiplier=2, sample_rate=1, steps=1, delta=1e-5))
Epsilon(lower=None, estimate=None, upper=2.165715659029443)
"""

import warnings
from functools import lru_cache
from typing import Any

from dpft.errors import InputError
from dpft.privacy.accounting import gdp, pld, prv, rdp
from dpft.privacy.accounting.mechanism import (
    AccountantError,
    Epsilon,
    Mechanism,
    SampledGaussian,
)

LEADING_ACCOUNTANTS = ("prv", "pld", "rdp")
"""Accountants whose proven upper bound may be the headline, in the order in which they are
tried."""

MODULES = {"rdp": rdp, "gdp": gdp, "pld": pld, "prv": prv}
KEPT_ANSWERS = 4096


def evaluate(name: str, mechanism: Mechanism, **options: float) -> Epsilon:
    """Return the answer of one accountant for a mechanism.

    Args:
        name: "rdp", "gdp", "pld" or "prv".
        mechanism: Mechanism to account for; only "rdp" and "pld" accept a composition.
        options: Passed to the accountant's ``epsilon``, such as the ``interval`` of "pld".

    Raises:
        AccountantError: The accountant has no answer. The message states the reason.
    """
    if name in ("gdp", "prv") and not isinstance(mechanism, SampledGaussian):
        raise AccountantError("It does not support a composition of different mechanisms.")
    answer = _answer(name, mechanism, tuple(sorted(options.items())))
    if isinstance(answer, str):
        raise AccountantError(answer)
    return answer


@lru_cache(maxsize=KEPT_ANSWERS)
def _answer(name: str, mechanism: Mechanism, options: tuple[tuple[str, Any], ...]) -> Epsilon | str:
    """Return the answer, or the reason why there is no answer."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's warnings, in settings that libraries reject
            answer: Epsilon = MODULES[name].epsilon(mechanism, **dict(options))
    except MemoryError:
        return "It needs more memory than the machine has."
    except (ArithmeticError, ValueError, RuntimeError, AssertionError) as error:
        return " ".join(str(error).split()) or f"It failed with {type(error).__name__}."
    return answer


def headline_order(accountant: str) -> tuple[str, ...]:
    """Return ``accountant``, then the others in the order in which they may replace it.

    Raises:
        InputError: The bound of ``accountant`` may not be the headline (gdp is an estimate).
    """
    if accountant not in LEADING_ACCOUNTANTS:
        choices = ", ".join(LEADING_ACCOUNTANTS)
        why = ", which only estimates epsilon" if accountant == "gdp" else ""
        raise InputError(
            f"privacy.accountant must be one of {choices}, got {accountant!r}{why}.",
            key="privacy.accountant",
            value=accountant,
            hint=f"privacy.accountant={LEADING_ACCOUNTANTS[0]}",
        )
    return (accountant, *(name for name in LEADING_ACCOUNTANTS if name != accountant))
