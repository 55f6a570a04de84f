"""The curve of a run's epsilon over its steps, computed beside the run.

The accountants' processes stand back behind the training, and a thread that mostly waits for them
collects their answers, so that neither the first steps nor the first line wait.
"""

from collections.abc import Callable
from dataclasses import replace
from threading import Event, Thread
from types import TracebackType
from typing import Self

from dpft.errors import InputError, RunError
from dpft.privacy.accounting.accountants import Accountants
from dpft.privacy.accounting.curve import EpsilonCurve, curve_grid, curve_of, rdp_curve
from dpft.privacy.accounting.limits import Limits
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.accounting.over_steps import Failure, epsilon_over_steps, failures

NICENESS = 10
"""A tenth of a processor where the training takes all of it: a curve of five seconds is there
within a minute, and would take many at 19."""
PATIENCE = 5.0
"""Seconds that the end of a run which broke off waits for an answer under way."""


class CurveInBackground:
    """A context manager that computes one mechanism's curve while its block runs.

        with CurveInBackground(plan.event(), accountant="prv") as background:
            ...  # background.curve is None at first
            curve = background.wait()

    Attributes:
        failures: Which accountants gave no bound at which points; known once the curve is there.
    """

    def __init__(
        self,
        mechanism: SampledGaussian,
        accountant: str,
        *,
        steps_within: Callable[[int], int] = lambda steps: steps,
    ) -> None:
        """Prepares for a mechanism.

        Args:
            mechanism: All of its steps.
            accountant: Whose upper bound leads; by "rdp" nothing runs beside the block.
            steps_within: From a number of the mechanism's steps to the run's that they bound.
        """
        self._mechanism, self.accountant = mechanism, accountant
        self._steps_within = steps_within
        self.failures: list[Failure] = []
        self._curve: EpsilonCurve | None = None
        self._ended = Event()
        self._thread = Thread(target=self._compute, name="epsilon over steps", daemon=True)

    def __enter__(self) -> Self:
        if self.accountant != "rdp":
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)

    @property
    def curve(self) -> EpsilonCurve | None:
        """The curve, or None as long as it is not there."""
        return self._curve

    def wait(self) -> EpsilonCurve:
        """Returns the curve once it is there; RDP's where no other accountant gave one."""
        if self._thread.ident is not None:
            self._thread.join()
        if self._curve is None:
            self._curve = self._of_run(rdp_curve(self._mechanism))
        return self._curve

    def _compute(self) -> None:
        with Accountants(Limits(niceness=NICENESS)) as accountants:
            try:
                reports = epsilon_over_steps(
                    self._mechanism,
                    accountant=self.accountant,
                    accountants=accountants,
                    grid=curve_grid(self._mechanism.steps),
                    one_mesh=True,
                    goes_on=lambda: not self._ended.is_set(),
                )
            except (InputError, RunError):
                return  # no bound of a single step: the run's own accounting says why
        if not self._ended.is_set():
            self.failures, self._curve = failures(reports), self._of_run(curve_of(reports))

    def _of_run(self, curve: EpsilonCurve) -> EpsilonCurve:
        return replace(curve, steps=tuple(map(self._steps_within, curve.steps)))
