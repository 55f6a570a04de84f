"""From a target epsilon to the smallest noise multiplier whose reported bound is within it.

Each search starts where a cheaper accountant ended: the central-limit formula guesses, RDP (always
there, never tight) comes down to PLD, and PLD to PRV, whose evaluations cost half a second. So no
accountant is asked about noise far below the answer, where they are slow or fail.
"""

import math
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Protocol

from dpft.errors import InputError, RunError
from dpft.privacy.accounting import gdp, pld, prv, rdp
from dpft.privacy.accounting.accountants import Accountants, headline_order
from dpft.privacy.accounting.mechanism import (
    AccountantError,
    AccountantTimeout,
    SampledGaussian,
)
from dpft.privacy.accounting.search import MAX_NOISE, Curve, smallest_noise
from dpft.privacy.accounting.summary import account
from dpft.records.ledger import Calibration

TOLERANCE = 0.02
"""Most by which the reported bound may fall short of the target."""

_GRIDS = {"rdp": rdp.GRID, "pld": pld.GRID, "prv": prv.GRID}


class Calibrate(Protocol):
    """What finds the noise of a target: ``calibrate_noise_multiplier``, or one begun before."""

    def __call__(
        self, *, eps: float, delta: float, sample_rate: float, steps: int, accountant: str
    ) -> tuple[float, Calibration]:
        """See ``calibrate_noise_multiplier``."""


def calibrate_noise_multiplier(
    *,
    eps: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: str = "prv",
    accountants: Accountants | None = None,
) -> tuple[float, Calibration]:
    """Returns the smallest noise multiplier that keeps the reported epsilon within ``eps``.

    Args:
        eps: Target epsilon, above 0.
        delta: Target delta, in (0, 1).
        sample_rate: Probability with which each unit joins a step, in (0, 1].
        steps: Number of noisy steps.
        accountant: Whose upper bound to hold to: "prv", "pld" or "rdp". Where it has no answer,
            the next in that order calibrates, and the result names it.
        accountants: Running accountants to share; by default some are started and ended here.

    Returns:
        The noise multiplier, of six significant digits, so that a report can print exactly what
        was used; and what chose it.

    Guarantees:
        ``account`` of the mechanism with ``accountant=calibration.accountant`` reports
        ``calibration.epsilon``, which is at most ``eps``.

    Raises:
        InputError: A value is out of range, or no noise multiplier gives ``eps``.
        RunError: No accountant found one, and one of them timed out, so that there may be one.
    """
    if not (eps > 0 and math.isfinite(eps)):
        raise InputError(
            f"privacy.eps must be a positive, finite number, got {eps}; "
            "privacy=none trains without a guarantee."
        )
    order = headline_order(accountant)
    unit_noise = SampledGaussian(
        noise_multiplier=1.0, sample_rate=sample_rate, steps=steps, delta=delta
    )
    with ExitStack() as stack:
        running = accountants or stack.enter_context(Accountants())
        return _Calibrator(unit_noise, eps, running).first_of(order)


class _Calibrator:
    """One target for one mechanism, whose noise is free, under running accountants."""

    def __init__(self, mechanism: SampledGaussian, eps: float, accountants: Accountants) -> None:
        self._mechanism = mechanism
        self._eps = eps
        self._accountants = accountants

    def first_of(self, order: tuple[str, ...]) -> tuple[float, Calibration]:
        """Returns the calibration by the first accountant of ``order`` that can.

        Raises:
            InputError: None can.
            RunError: None did, and one of them timed out.
        """
        self._accountants.start()
        search = {"rdp": self._by_rdp, "pld": self._by_pld, "prv": self._by_prv}
        errors: dict[str, AccountantError] = {}
        for name in order:
            try:
                noise_multiplier = search[name]()
                return noise_multiplier, self._confirm(name, noise_multiplier)
            except AccountantError as error:
                errors[name] = error
        late = [name for name, error in errors.items() if isinstance(error, AccountantTimeout)]
        if late:
            raise RunError(
                f"privacy.eps={self._eps:g}: no accountant found the noise, and {late[-1]} timed"
                f" out ({late[-1]}: {errors[late[-1]]}); {AccountantTimeout.way_out}."
            )
        last = order[-1]
        raise InputError(
            f"privacy.eps={self._eps:g} is out of reach of every accountant"
            f" ({last}: {errors[last]})."
        )

    def _by_rdp(self) -> float:
        guess = gdp.noise_multiplier(
            eps=self._eps,
            delta=self._mechanism.delta,
            sample_rate=self._mechanism.sample_rate,
            steps=self._mechanism.steps,
        )
        return smallest_noise(self._curve("rdp"), self._eps, start=guess)

    def _by_pld(self) -> float:
        return smallest_noise(self._curve("pld"), self._eps, start=self._enough)

    def _by_prv(self) -> float:
        """Starts where PLD meets the target less PRV's own error: one or two evaluations.

        Raises:
            AccountantError: PRV's error is a large part of ``eps``, or it has no answer here.
        """
        if self._mechanism.accounted_rate == 1:
            return smallest_noise(self._curve("prv"), self._eps, start=self._enough)
        margin = min(0.002, 0.02 * self._eps)
        reach = self._eps - prv.EPS_ERROR - margin
        if reach < self._eps / 2:
            raise AccountantError(f"its error of {prv.EPS_ERROR:g} is too large for this target")
        start = smallest_noise(self._curve("pld"), reach, start=self._enough)
        return smallest_noise(self._curve("prv"), self._eps, start=start, tolerance=3 * margin)

    @cached_property
    def _enough(self) -> float:
        """Noise that RDP finds enough, from where tighter accountants come down cheaply."""
        try:
            return self._by_rdp()
        except AccountantError:
            return MAX_NOISE

    def _curve(self, name: str) -> Curve:
        def upper_bound(noise_multiplier: float) -> float:
            epsilon = self._accountants.evaluate(name, self._at(noise_multiplier))
            assert epsilon.upper is not None
            return epsilon.upper

        return upper_bound

    def _at(self, noise_multiplier: float) -> SampledGaussian:
        return replace(self._mechanism, noise_multiplier=noise_multiplier)

    def _confirm(self, name: str, noise_multiplier: float) -> Calibration:
        """Returns the calibration as a report will show it.

        Raises:
            AccountantError: The report would be led by another accountant, or by a refined bound
                so far below the target that another accountant needs less noise.
        """
        report = account(self._at(noise_multiplier), accountant=name, accountants=self._accountants)
        if report.accountant != name or not self._is_met(report.epsilon, name):
            raise AccountantError("its bound is refused at the noise it asks for")
        exact = name == "prv" and self._mechanism.accounted_rate == 1
        grid = prv.EXACT if exact else _GRIDS[name]
        return Calibration(accountant=name, epsilon=report.epsilon, grid=grid)

    def _is_met(self, epsilon: float, name: str) -> bool:
        close = name == "rdp" or epsilon >= self._eps - TOLERANCE
        return epsilon <= self._eps and close
