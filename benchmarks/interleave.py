"""Two configurations timed in turns, so that what slows one slows the other.

In two processes, whose peak memory is then known (``compare``), or in one (``take_turns``).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.memory import ENVIRONMENT, failure
from benchmarks.workload import WholeRun, Workload

ROOT = Path(__file__).parent.parent
CHECKED_RUN = 100
"""Micro-batches of the run of which checks are a share."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Ratios of one configuration to another.

    Attributes:
        ratios: Of the seconds, one for each pair.
        memory: Of the peaks of the processes, after the same number of micro-batches.
        seconds: Median of each, the first configuration first.
        first: Seconds of the first configuration's first micro-batches, which a clipper checks.
        self_check: Seconds of the first configuration's self-check; None without a clipper.
    """

    ratios: tuple[float, ...]
    memory: float
    seconds: tuple[float, float]
    first: tuple[float, ...] = ()
    self_check: float | None = None

    @property
    def median(self) -> float:
        """The median ratio of times."""
        return statistics.median(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile of the ratios of times."""
        if len(self.ratios) < 2:
            return self.ratios[0], self.ratios[0]
        first, _, third = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return first, third

    @property
    def checks(self) -> float | None:
        """Share of the clipper's checks in the time of ``CHECKED_RUN`` micro-batches."""
        if self.self_check is None:
            return None
        each = self.seconds[0]
        seconds = self.self_check + sum(one - each for one in self.first)
        return seconds / (CHECKED_RUN * each + seconds)


class Process:
    """A worker process; alive until left."""

    def __init__(self, workload: Workload | WholeRun) -> None:
        """Start it; ``wait_until_ready`` says when it has warmed up."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(workload.threads)}
        if workload.memory_limit_bytes is not None:
            environment |= ENVIRONMENT
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", workload.worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self._tell(json.dumps(asdict(workload)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def wait_until_ready(self) -> dict[str, Any]:
        """Return what the worker says when it has warmed up.

        Raises:
            OutOfMemory: Its memory did not suffice.
            RuntimeError: It failed for another reason.
        """
        return self._hear()

    def time_one(self) -> float:
        """Return the seconds of one micro-batch, or of one update where that is timed."""
        return float(self.measure_one()["seconds"])

    def measure_one(self) -> dict[str, Any]:
        """Return everything that the worker reports of one micro-batch, update or step."""
        self._tell("go")
        return self._hear()

    def finish(self) -> int:
        """End the worker; return its peak memory in bytes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return int(self._hear()["peak_bytes"])

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            exit_code = self._process.wait()
            self._errors.seek(0)
            raise failure(exit_code, self._errors.read())
        answer: dict[str, Any] = json.loads(line)
        return answer


def compare(measured: Workload, baseline: Workload, *, pairs: int) -> Comparison:
    """Time both in turns, ``pairs`` times each.

    Raises:
        RuntimeError: A worker failed.
    """
    with Process(measured) as first, Process(baseline) as second:
        begun = first.wait_until_ready()
        second.wait_until_ready()
        times = [(first.time_one(), second.time_one()) for _ in range(pairs)]
        memory = first.finish() / second.finish()
    return Comparison(
        ratios=tuple(a / b for a, b in times),
        memory=memory,
        seconds=(
            statistics.median(a for a, _ in times),
            statistics.median(b for _, b in times),
        ),
        first=tuple(begun["first"]),
        self_check=begun["self_check"],
    )


@dataclass
class Timings:
    """Seconds of private and of ordinary micro-batches, pair by pair."""

    private: list[float] = field(default_factory=list)
    ordinary: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Private over ordinary, one for each pair."""
        return [a / b for a, b in zip(self.private, self.ordinary, strict=True)]

    @property
    def spread(self) -> str:
        """The median of the ratios, and their quartiles."""
        first, middle, third = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return f"{middle:.2f} ({first:.2f} to {third:.2f})"

    @property
    def milliseconds(self) -> str:
        """The median of each."""
        medians = map(statistics.median, (self.private, self.ordinary))
        return " / ".join(f"{1000 * seconds:.0f}" for seconds in medians)


def take_turns(
    private: Callable[[], object],
    ordinary: Callable[[], object],
    *,
    pairs: int,
    warm_up: int = 2,
    before: Callable[[], object] = lambda: None,
) -> Timings:
    """Time both in turns in this process, ``pairs`` times each.

    Args:
        private: A private micro-batch.
        ordinary: An ordinary one.
        pairs: How often, at least twice.
        warm_up: Pairs that are run before and not timed.
        before: What is done before each pair, untimed.
    """
    timings = Timings()
    for number in range(-warm_up, pairs):
        before()
        took, other = _seconds(private), _seconds(ordinary)
        if number >= 0:
            timings.private.append(took)
            timings.ordinary.append(other)
    return timings


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
