"""Accounting by privacy random variables (PRV), with prv_accountant: bounds on both sides.

Gopi et al. 2021 (arXiv 2106.02848), Theorem 5.5: the composition on a mesh of eps_error /
sqrt(steps/2 * log(12/delta_error)) is within (eps_error, delta_error) of the truth. Time and memory
grow with the number of mesh points, which is known in advance. A mesh that would be too large is
rejected at once, so that the answer does not depend on the speed of the machine. Without sampling
(sample_rate 1) the library fails, and is not needed. Composed Gaussians are one Gaussian, whose
epsilon is exact (Balle and Wang 2018, arXiv 1805.06530, Theorem 8).
"""

import math
import warnings
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from dpft.privacy.accounting.mechanism import (
    AccountantError,
    Epsilon,
    SampledGaussian,
    delta_within_rounding,
)

if TYPE_CHECKING:
    from prv_accountant import PRVAccountant

EPS_ERROR = 0.01
DELTA_ERROR_SHARE = 1e-3
MAX_POINTS = 2**20
"""Maximum number of points of the mesh: about 5 s and half a GiB."""

GRID = f"eps_error {EPS_ERROR:g}, delta_error delta/{1 / DELTA_ERROR_SHARE:.0f}"
EXACT = "exact analytic Gaussian"


def epsilon(mechanism: SampledGaussian, longest: int | None = None) -> Epsilon:
    """Return lower bound, estimate and upper bound, which are equal if sample_rate is 1.

    Args:
        mechanism: Mechanism to account for; its ``delta`` is the target.
        longest: Number of steps of a longer run of the same mechanism. The mesh of that run is
            cached and used for all smaller numbers of steps. It is finer than theirs would be, so
            the error stays within the same limits.

    Raises:
        AccountantError: The mesh would have more than ``MAX_POINTS`` points, or rounding could take
            more than half of delta.
        RuntimeError: The mesh is too coarse for the mechanism (from prv_accountant).
    """
    if mechanism.accounted_rate == 1:
        import dp_accounting

        # Gaussians compose: ``steps`` of them are one with noise_multiplier / sqrt(steps).
        noise = mechanism.noise_multiplier / math.sqrt(mechanism.steps)
        exact = dp_accounting.get_epsilon_gaussian(noise, mechanism.delta)
        return Epsilon(lower=exact, estimate=exact, upper=exact)
    import numpy as np

    # The library computes in long double: 80 bits on x86, but only 64 on some machines.
    delta = delta_within_rounding(mechanism, float(np.finfo(np.longdouble).eps))
    if longest is None:
        accountant = _accountant(mechanism)
    else:
        kept = _kept_accountant(replace(mechanism, steps=longest))
        if isinstance(kept, AccountantError):
            raise kept
        accountant = kept
    lower, estimate, upper = accountant.compute_epsilon(delta, [mechanism.steps])
    return Epsilon(lower=lower, estimate=estimate, upper=upper)


@lru_cache(maxsize=1)
def _kept_accountant(mechanism: SampledGaussian) -> "PRVAccountant | AccountantError":
    """Return the library's accountant or its error, cached because both take long to compute."""
    try:
        return _accountant(mechanism)
    except (ArithmeticError, RuntimeError) as error:
        return AccountantError(str(error))


def _accountant(mechanism: SampledGaussian) -> "PRVAccountant":
    """Return the library's accountant for up to the mechanism's number of steps."""
    import prv_accountant
    from prv_accountant.accountant import compute_safe_domain_size

    variable = prv_accountant.PoissonSubsampledGaussianMechanism(
        noise_multiplier=mechanism.noise_multiplier, sampling_probability=mechanism.accounted_rate
    )
    delta_error = mechanism.delta * DELTA_ERROR_SHARE
    # Required reach of the mesh (Remark 5.6), in nats, if so wide a mesh is feasible.
    steps = mechanism.steps
    half_width = float(compute_safe_domain_size([variable], [steps], EPS_ERROR, delta_error))
    points = 2 * half_width / (EPS_ERROR / math.sqrt(steps / 2 * math.log(12 / delta_error)))
    if not points <= MAX_POINTS:
        raise AccountantError(
            f"It needs a mesh of {points:.2g} points; at most {MAX_POINTS} are used."
        )
    with warnings.catch_warnings():
        # The library warns that it does not check eps_max; this value comes from the library
        # itself.
        warnings.simplefilter("ignore", UserWarning)
        return prv_accountant.PRVAccountant(
            prvs=[variable],
            eps_error=EPS_ERROR,
            delta_error=delta_error,
            max_self_compositions=[mechanism.steps],
            eps_max=half_width,
        )
