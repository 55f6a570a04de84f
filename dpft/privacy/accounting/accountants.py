"""Runs accountants in child processes, under limits of time and memory, and keeps their answers.

Accountants can take minutes or terabytes outside the settings they were made for, inside C code
that no exception interrupts. A process of its own can always be ended, and two of them use two
cores. Time is the child's own processor time, so that whether an accountant answers does not
depend on what else the machine does; a wide limit of wall time is there for a child that waits for
ever.

Calibration and report ask about the same mechanisms; sharing one ``Accountants`` saves them the
start-up of the libraries (a second each) and the repeated answers.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

from dpft.errors import InputError
from dpft.privacy.accounting import gdp
from dpft.privacy.accounting.mechanism import (
    AccountantError,
    AccountantTimeout,
    Epsilon,
    Mechanism,
    SampledGaussian,
)

WORKER = "dpft.privacy.accounting.worker"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one accountant may take to answer one question.

    Attributes:
        seconds: Processor time of one answer, and of the import before the first.
        wall_seconds: Wall time of the same, whatever else the machine does.
        memory: Address space in bytes.
        niceness: How far it stands back behind other processes, from 0 (not) to 19.
        grace: Seconds past the above after which a child that did not end itself is killed.
    """

    seconds: float = 20.0
    wall_seconds: float = 300.0
    memory: int = 2 * 2**30
    niceness: int = 0
    grace: float = 5.0


class LimitedProcess:
    """One child, started at the first question and again after each time it had to be ended.

    Questions and answers alternate: ``ask`` returns at once, ``answer`` waits. The child dies with
    ``close``, with its stdin (when the parent is gone) or at its own alarm, whichever comes first.
    """

    def __init__(self, library: str, limits: Limits, *, module: str = WORKER) -> None:
        numbers = (limits.seconds, limits.wall_seconds, limits.memory, limits.niceness)
        self._arguments = [module, library, *map(str, numbers)]
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline = 0.0

    def start(self) -> None:
        """Starts the child if there is none, so that it imports while the parent works."""
        if self._process is None:
            self._process = subprocess.Popen(
                # -P: never import from the folder the user happens to stand in.
                [sys.executable, "-P", "-m", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
            )
            self._deadline = time.monotonic() + self._limits.wall_seconds + self._limits.grace

    def ask(self, question: Mapping[str, Any]) -> None:
        """Hands the child a question and returns at once."""
        self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        ready_by = max(self._deadline, time.monotonic() + self._limits.grace)
        self._deadline = ready_by + self._limits.wall_seconds
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # It ended while importing; ``answer`` finds out and says why.
            return

    def answer(self) -> dict[str, Any]:
        """Waits for the answer to the question asked.

        Raises:
            AccountantTimeout: The child was over a limit of time.
            AccountantError: It found no answer, was over the limit of memory, or ended; the
                sentence says which.
        """
        line = self._read_line()
        if not line.endswith(b"\n"):
            raise self._end(ended=True)
        self._deadline = 0.0
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise AccountantError(answer["error"])
        return answer

    def kill(self) -> None:
        """Kills the child, so that a thread which waits for its answer learns that it ended."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Ends the child, whatever it is doing."""
        if self._process is not None:
            self._end()

    def _read_line(self) -> bytes:
        """Returns one line of at most a pipe's atomic size, or less where none comes in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        remaining = max(0.0, self._deadline - time.monotonic())
        ready, _, _ = select.select([self._process.stdout], [], [], remaining)
        return self._process.stdout.readline() if ready else b""

    def _end(self, *, ended: bool = False) -> AccountantError:
        """Kills the child and returns, as an error, why it had not answered.

        Args:
            ended: Its pipe was closed or its time is up, so that it has an exit status to wait for.
        """
        assert self._process is not None
        late = time.monotonic() >= self._deadline
        code = self._process.poll() if late or not ended else self._exit_status()
        self._process.kill()
        self._process.communicate()
        self._process = None
        self._deadline = 0.0
        if code == -signal.SIGPROF:
            return AccountantTimeout(
                f"It timed out after {self._limits.seconds:g} s of processor time."
            )
        if late or code == -signal.SIGALRM:
            return AccountantTimeout(f"It timed out after {self._limits.wall_seconds:g} s.")
        return AccountantError(f"Its process ended early (exit status {code}).")

    def _exit_status(self) -> int | None:
        """Returns what the child ended with; a closed pipe comes a moment before it."""
        assert self._process is not None
        try:
            return self._process.wait(self._limits.grace)
        except subprocess.TimeoutExpired:
            return None


def _environment() -> dict[str, str]:
    """Returns an environment in which the child imports what the parent can.

    One BLAS thread: more gain nothing on these vectors and reserve address space each.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": path}


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

    def __exit__(self, *_: object) -> None:
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
