"""Combination of the answers of all accountants into the reported epsilon, with warnings.

The headline (the reported epsilon) is always a proven upper bound and names its accountant. The
chosen accountant provides it, if this accountant has an answer that is not looser than RDP.
Otherwise, the next such accountant in the order prv, pld, rdp provides it. Printed epsilons and
deltas are rounded up, because a value below the proven one would claim too much.
"""

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal

from dpft.errors import InputError
from dpft.privacy.accounting import pld
from dpft.privacy.accounting.accountants import evaluate, headline_order
from dpft.privacy.accounting.mechanism import (
    AccountantError,
    Composition,
    Epsilon,
    Mechanism,
    SampledGaussian,
)
from dpft.strict_model import Delta, NotNegative, StrictModel


class Interval(StrictModel):
    """Interval that contains epsilon."""

    lower: float
    """Proven lower bound."""
    estimate: float
    """Estimate."""
    upper: NotNegative
    """Proven upper bound."""


class NoAnswer(StrictModel):
    """Result of an accountant without an answer."""

    error: str
    """Reason why there is no answer."""


Answer = NotNegative | Interval | NoAnswer


Epsilons = Mapping[str, Answer]
"""By accountant: an upper bound (rdp, pld), an estimate (gdp), an interval (prv), or the reason why
there is no answer."""


class Promise(StrictModel):
    """Epsilon, with the accountant that bounds it."""

    epsilon: NotNegative
    """The headline: a proven upper bound, unrounded."""
    delta: Delta
    """The delta at which epsilon holds."""
    accountant: str
    """Accountant of the headline."""


class EpsilonBound(Promise):
    """Upper bound on the cost of noisy steps, with the answers of all accountants."""

    epsilons: Epsilons
    """Answer of every accountant by name: an upper bound (rdp, pld), an estimate (gdp), an interval
    (prv), or the reason why there is no answer."""
    warnings: tuple[str, ...] = ()
    """Warnings for readers of epsilon, one sentence each."""


SIGNIFICANT = 4
"""Significant digits of a printed delta."""
DECIMALS = 4
"""Decimals of a printed epsilon."""
LARGEST_WRITTEN_OUT = 1e7
"""Threshold from which an epsilon is printed as a power of ten."""


def round_up(value: float, digits: int) -> float:
    """Return ``value`` rounded up to ``digits`` decimals, so that a printed bound is still a bound.

    >>> round_up(2.9901, 2), round_up(2.99, 2), round_up(0.0, 2)
    (3.0, 2.99, 0.0)
    """
    if abs(value) >= 2**53:  # No float of this size has decimals, nor has infinity.
        return value
    # repr, not the binary expansion: 2.99 is stored as 2.9900000000000002 and must stay 2.99.
    return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING))


def eps_text(epsilon: float) -> str:
    """Return an epsilon as text, rounded up.

    >>> eps_text(2.99991), eps_text(4.9510473e35)
    ('3.0000', '4.952e+35')
    """
    if LARGEST_WRITTEN_OUT <= epsilon < math.inf:
        return delta_text(epsilon)
    return f"{round_up(epsilon, DECIMALS):.{DECIMALS}f}"


def delta_text(delta: float) -> str:
    """Return a delta as text, rounded up.

    >>> delta_text(1 / (2 * 392_702)), delta_text(0.0125), delta_text(1e-5)
    ('1.274e-06', '0.0125', '1e-05')
    """
    if delta == 0:
        return "0"
    number = Decimal(repr(delta))
    last = number.adjusted() - SIGNIFICANT + 1
    return f"{float(number.quantize(Decimal(1).scaleb(last), ROUND_CEILING)):.{SIGNIFICANT}g}"


RDP_TOLERANCE = 0.03
"""A bound that exceeds RDP's by more than this is a numerical failure, not a tighter accountant."""

_Result = Epsilon | AccountantError


class AccountingReport(EpsilonBound):
    """Cost of a sampled Gaussian mechanism by all four accountants."""

    mechanism: SampledGaussian
    """The mechanism that was accounted for; ``delta`` is its delta."""


def account(
    mechanism: SampledGaussian, *, accountant: str = "prv", longest: int | None = None
) -> AccountingReport:
    """Run all four accountants on ``mechanism`` and choose the headline.

    Args:
        mechanism: Mechanism to account for.
        accountant: Accountant whose upper bound should be the headline: "prv", "pld" or "rdp".
        longest: Number of steps of the mesh for PRV; None: the number of steps of the mechanism.

    Raises:
        InputError: The bound of ``accountant`` may not be the headline, or no accountant can bound
            the mechanism.
    """
    order = headline_order(accountant)
    rdp, bound = _rdp_and_pld(mechanism)
    mesh = {} if longest in (None, mechanism.steps) else {"longest": longest}
    gdp, prv = _try("gdp", mechanism), _try("prv", mechanism, **mesh)
    results = {"rdp": rdp, "gdp": gdp, "pld": bound, "prv": prv}
    warnings = []
    if mechanism.sample_rate == 1:
        warnings.append(
            "sample_rate is 1: prv is the exact epsilon of the Gaussian mechanism (Balle and Wang "
            "2018), not a numerical composition."
        )
    leader, epsilon = _headline(order, results, warnings)
    if _disagree(results):
        leader, epsilon = _larger(leader, epsilon, results, warnings)
    return AccountingReport(
        mechanism=mechanism,
        epsilon=epsilon,
        delta=mechanism.delta,
        accountant=leader,
        epsilons={name: _answer(name, result) for name, result in results.items()},
        warnings=tuple(warnings),
    )


def account_composition(composition: Composition, *, accountant: str = "pld") -> EpsilonBound:
    """Run PLD and RDP, which compose different mechanisms, and choose the headline.

    Args:
        composition: Composition to account for.
        accountant: Accountant whose upper bound should be the headline; "prv" means "pld" here.

    Raises:
        InputError: The bound of ``accountant`` may not be the headline, or no accountant can bound
            the composition.
    """
    order = tuple(name for name in headline_order(accountant) if name != "prv")
    warnings: list[str] = []
    results = dict(zip(("rdp", "pld"), _rdp_and_pld(composition), strict=True))
    leader, epsilon = _headline(order, results, warnings)
    return EpsilonBound(
        epsilon=epsilon,
        delta=composition.delta,
        accountant=leader,
        epsilons={name: _answer(name, result) for name, result in results.items()},
        warnings=tuple(warnings),
    )


def _rdp_and_pld(mechanism: Mechanism) -> tuple[_Result, _Result]:
    """Return both bounds; PLD uses the fine grid if the coarse one makes its bound too loose."""
    rdp = _try("rdp", mechanism)
    bound = _try("pld", mechanism)
    if _above(bound, rdp):
        bound = _try("pld", mechanism, interval=pld.FINE_INTERVAL)
    return rdp, bound


def _try(name: str, mechanism: Mechanism, **options: float) -> _Result:
    try:
        return evaluate(name, mechanism, **options)
    except AccountantError as error:
        return error


def _headline(
    order: tuple[str, ...], results: Mapping[str, _Result], warnings: list[str]
) -> tuple[str, float]:
    """Return the headline accountant and its bound; warn why preferred accountants are not used."""
    for name in order:
        result = results[name]
        if isinstance(result, AccountantError):
            warnings.append(f"{name} gave no bound: {result}")
        elif _above(result, results["rdp"]):
            warnings.append(
                f"{name} is rejected: its bound exceeds that of RDP by more than {RDP_TOLERANCE}."
            )
        elif result.upper is not None:
            return name, result.upper
    raise InputError(
        "no accountant can bound this mechanism, because its noise_multiplier is too small for its "
        "sample_rate and steps. Raise noise_multiplier or lower steps.",
        key="noise_multiplier",
    )


def _above(result: _Result, rdp: _Result) -> bool:
    return _upper(result) > _upper(rdp) + RDP_TOLERANCE


def _upper(result: _Result) -> float:
    if isinstance(result, AccountantError) or result.upper is None:
        return math.nan  # Compares false with everything: a missing bound rejects no other.
    return result.upper


def _disagree(results: Mapping[str, _Result]) -> bool:
    """Return whether PRV's estimate and PLD differ by more than 0.02 + 1 %."""
    prv, bound = results["prv"], _upper(results["pld"])
    if isinstance(prv, AccountantError) or prv.estimate is None or math.isnan(bound):
        return False
    return abs(prv.estimate - bound) > 0.02 + 0.01 * bound


def _larger(
    leader: str, epsilon: float, results: Mapping[str, _Result], warnings: list[str]
) -> tuple[str, float]:
    """Return the largest of the headline and the bounds that disagree, and add a warning.

    If two bounds disagree, one of them is wrong. Nothing indicates which one, so only the larger
    bound is safe. A bound that was rejected because it is looser than RDP's is not used.
    """
    usable = [name for name in ("prv", "pld") if not _above(results[name], results["rdp"])]
    bounds = {name: _upper(results[name]) for name in usable} | {leader: epsilon}
    largest = max(bounds, key=lambda name: bounds[name])
    prv = results["prv"]
    assert isinstance(prv, Epsilon) and prv.estimate is not None
    warnings.append(
        f"prv's estimate ({prv.estimate:.4f}) and pld ({eps_text(_upper(results['pld']))})"
        " disagree."
    )
    return largest, bounds[largest]


def _answer(name: str, result: _Result) -> Answer:
    if isinstance(result, AccountantError):
        return NoAnswer(error=str(result))
    if name == "prv":
        lower, estimate, upper = result.lower, result.estimate, result.upper
        assert lower is not None and estimate is not None and upper is not None
        return Interval(lower=lower, estimate=estimate, upper=upper)
    value = result.estimate if result.upper is None else result.upper
    assert value is not None
    return value
