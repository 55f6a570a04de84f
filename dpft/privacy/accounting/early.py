"""A calibration that begins before it is asked for, beside whatever else a command does first.

The accountants answer in processes of their own, and a thread that mostly waits for them asks.
"""

import time
from dataclasses import asdict, dataclass
from threading import Thread

from dpft.errors import DpftError
from dpft.privacy.accounting.accountants import Accountants
from dpft.privacy.accounting.calibration import calibrate_noise_multiplier
from dpft.records.ledger import Calibration

PATIENCE = 5.0
"""Seconds for the end of a calibration whose accountants were ended."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a calibration is asked for."""

    eps: float
    delta: float
    sample_rate: float
    steps: int
    accountant: str


class EarlyCalibration:
    """A context manager that calibrates in a thread, and answers when it is called.

    Called for another target than the one it began with, it calibrates for that one: what it
    returns or raises is always what ``calibrate_noise_multiplier`` does.
    """

    def __init__(self, target: Target | None) -> None:
        """Prepares; nothing runs before it is entered.

        Args:
            target: What to begin with; None: only the accountants' libraries are imported.
        """
        self._target = target
        self._accountants = Accountants()
        self._answer: tuple[float, Calibration] | DpftError | None = None
        self._thread = Thread(target=self._compute, name="calibration", daemon=True)
        self._closed = False

    def __enter__(self) -> "EarlyCalibration":
        self._accountants.start()
        if self._target is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def __call__(
        self, *, eps: float, delta: float, sample_rate: float, steps: int, accountant: str
    ) -> tuple[float, Calibration]:
        """Returns what ``calibrate_noise_multiplier`` does, and ends the accountants.

        Raises:
            InputError: As it does.
            RunError: As it does.
        """
        target = Target(
            eps=eps, delta=delta, sample_rate=sample_rate, steps=steps, accountant=accountant
        )
        if self._target is not None:
            self._thread.join()
        try:
            if target == self._target and self._answer is not None:
                return _given(self._answer)
            if self._closed:
                return calibrate_noise_multiplier(**asdict(target))
            return calibrate_noise_multiplier(**asdict(target), accountants=self._accountants)
        finally:
            self._close()

    def _compute(self) -> None:
        assert self._target is not None
        try:
            self._answer = calibrate_noise_multiplier(
                **asdict(self._target), accountants=self._accountants
            )
        except DpftError as error:
            self._answer = error
        except OSError:
            return  # no process could be started; whoever calls tries again, and is told

    def _close(self) -> None:
        """Ends the accountants, in the middle of an answer too."""
        if self._closed:
            return
        self._closed = True
        patience = time.monotonic() + PATIENCE
        while self._thread.is_alive() and time.monotonic() < patience:
            self._accountants.abandon()  # again, since one may just have been started
            self._thread.join(0.05)
        if not self._thread.is_alive():
            self._accountants.__exit__(None, None, None)


def _given(answer: tuple[float, Calibration] | DpftError) -> tuple[float, Calibration]:
    if isinstance(answer, DpftError):
        raise answer
    return answer
