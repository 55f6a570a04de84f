"""The accountants under their limits, behind one call, each answer kept.

Calibration and report ask about the same mechanisms; sharing one ``Accountants`` saves them the
start-up of the libraries (a second each) and the repeated answers.
"""

from collections.abc import Mapping
from dataclasses import asdict
from types import TracebackType
from typing import Any, Protocol, Self

from dpft.errors import InputError
from dpft.privacy.accounting import gdp
from dpft.privacy.accounting.limits import LimitedProcess, Limits
from dpft.privacy.accounting.mechanism import AccountantError, Epsilon, Mechanism, SampledGaussian

LEADING_ACCOUNTANTS = ("prv", "pld", "rdp")
"""Accountants whose proven upper bound may be reported, in the order in which they are asked."""

_LIBRARY = {"rdp": "dp_accounting", "pld": "dp_accounting", "prv": "prv_accountant"}

_Key = tuple[str, Mechanism, tuple[tuple[str, Any], ...]]


class Answering(Protocol):
    """What answers questions about mechanisms: ``Accountants``, or something before them."""

    def prefetch(self, name: str, mechanism: SampledGaussian) -> None:
        """See ``Accountants``."""

    def evaluate(self, name: str, mechanism: Mechanism, **options: float) -> Epsilon:
        """See ``Accountants``."""


class Accountants:
    """A context manager: two child processes, one per library, and the answers so far.

    Use it from one thread:

        with Accountants() as accountants:
            noise_multiplier, calibration = calibrate_noise_multiplier(..., accountants=accountants)
            report = account(..., accountants=accountants)
    """

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._processes = {
            library: LimitedProcess(library, limits) for library in set(_LIBRARY.values())
        }
        self._asked: dict[str, _Key] = {}
        self._answers: dict[_Key, Epsilon | AccountantError] = {}
        self._abandoned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes.values():
            process.close()

    def start(self) -> None:
        """Starts every library's process, so that all import at the same time."""
        if not self._abandoned:
            for process in self._processes.values():
                process.start()

    def abandon(self) -> None:
        """Ends what is under way: nobody waits for an answer any more.

        Unlike all else it may be called from another thread than the one that asks, whose
        questions all end with an AccountantError from now on.
        """
        self._abandoned = True
        for process in self._processes.values():
            process.kill()

    def prefetch(self, name: str, mechanism: SampledGaussian, **options: float) -> None:
        """Lets an idle process begin on an answer that ``evaluate`` will ask for."""
        key = _key(name, mechanism, options)
        if key not in self._answers and _LIBRARY[name] not in self._asked:
            self._ask(key)

    def evaluate(self, name: str, mechanism: Mechanism, **options: float) -> Epsilon:
        """Returns what accountant ``name`` says of ``mechanism``.

        Args:
            name: "rdp", "pld", "prv" or "gdp" (the last in this process: it is a formula).
            mechanism: What to account for; a composition by "rdp" and "pld" alone.
            options: Passed to the accountant's ``epsilon``, such as pld's ``interval``.

        Raises:
            AccountantTimeout: It was ended at a limit of time.
            AccountantError: It has no answer, or none within the limit of memory.
        """
        if name in ("gdp", "prv") and not isinstance(mechanism, SampledGaussian):
            raise AccountantError("It is not asked about differing mechanisms.")
        if name == "gdp":
            assert isinstance(mechanism, SampledGaussian)
            return gdp.epsilon(mechanism)
        key = _key(name, mechanism, options)
        while key not in self._answers:
            if _LIBRARY[name] not in self._asked:
                self._ask(key)
            self._collect(_LIBRARY[name])
        answer = self._answers[key]
        if isinstance(answer, AccountantError):
            raise answer
        return answer

    def _ask(self, key: _Key) -> None:
        if self._abandoned:
            raise AccountantError("It is not waited for.")
        name, mechanism, options = key
        question = {"accountant": name, "mechanism": asdict(mechanism), "options": dict(options)}
        self._processes[_LIBRARY[name]].ask(question)
        self._asked[_LIBRARY[name]] = key

    def _collect(self, library: str) -> None:
        key = self._asked.pop(library)
        try:
            self._answers[key] = Epsilon(**self._processes[library].answer())
        except AccountantError as error:
            self._answers[key] = error


def headline_order(accountant: str) -> tuple[str, ...]:
    """Returns ``accountant``, then the others in the order they may replace it.

    Raises:
        InputError: No such accountant may lead (gdp is an estimate).
    """
    if accountant not in LEADING_ACCOUNTANTS:
        known = ", ".join(LEADING_ACCOUNTANTS)
        why = "; gdp is an estimate and is only shown beside them" if accountant == "gdp" else ""
        raise InputError(f"privacy.accountant must be one of {known}, got {accountant!r}{why}.")
    return (accountant, *(name for name in LEADING_ACCOUNTANTS if name != accountant))


def _key(name: str, mechanism: Mechanism, options: Mapping[str, Any]) -> _Key:
    return (name, mechanism, tuple(sorted(options.items())))
