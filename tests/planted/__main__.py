"""Plant each fault in a copy of the source and run the tests that must detect it.

    python -m tests.planted                       # all faults; this is `make mutants`
    python -m tests.planted noise/ clipping/c2    # faults whose names contain one of the arguments
    python -m tests.planted --without-detectors   # only the control runs: each fault must survive

The first run checks that the listed tests pass without any fault. A fault counts as caught only if
each of its tests fails. With ``--without-detectors`` the listed tests are skipped and
``test_control.py`` runs instead. It uses dpft like an ordinary user, so a fault that it reports as
caught is a crash and not a silent error.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from queue import SimpleQueue

from tests.planted.fault import ROOT, DoesNotApplyError, Fault
from tests.planted.faults import FAULTS
from tests.planted.forked import Forks

COPIED = ("dpft", "conf", "tests", "pyproject.toml")
CONTROL = "tests/planted/test_control.py"
STOPPED = "DPFT_PLANTED_STOPS_PRIVATE_RUNS"
"""Environment variable that tells the control run that dpft must stop a private run."""
SECONDS, ALL_SECONDS = 240, 1800
"""Limits for the tests of one fault, and for those of all faults."""
PASSED, FAILED = 0, 1
"""Exit codes of pytest."""
FORKS = Forks()


@dataclass(frozen=True)
class Verdict:
    """The outcome of one fault."""

    fault: Fault
    outcome: str
    """caught, survived or broken; broken if the tests did not run to an end."""
    seconds: float
    details: str = ""
    """The output of pytest, or the reason why the fault could not be planted."""


class Copies:
    """One copy of the repository per worker, because two faults must not meet."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for worker in range(workers):
            copy = folder / f"copy-{worker}"
            copy.mkdir()
            for name in COPIED:
                source = ROOT / name
                if source.is_dir():
                    shutil.copytree(source, copy / name)
                else:
                    shutil.copy2(source, copy / name)
            self._free.put(copy)

    @contextmanager
    def one(self, fault: Fault | None = None) -> Iterator[Path]:
        """Lend a copy that contains ``fault``, and remove the fault afterwards."""
        copy = self._free.get()
        files = {edit.file for edit in fault.edits} if fault else set()
        try:
            for edit in fault.edits if fault else ():
                edit.apply(copy)
            for name in files:
                _drop_bytecode(copy / name)
            yield copy
        finally:
            for name in files:
                if (ROOT / name).is_file():
                    shutil.copy2(ROOT / name, copy / name)
                    _drop_bytecode(copy / name)
            self._free.put(copy)


def _drop_bytecode(path: Path) -> None:
    """Delete the bytecode of a file, which Python would take for current within one second."""
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def run_tests(
    copy: Path, tests: Sequence[str], *, stopped: bool = False, seconds: float = SECONDS
) -> tuple[int, str]:
    """Run some tests in a copy of the repository; return pytest's exit code and output.

    Raises:
        TimeoutError: They took longer than ``seconds``.
    """
    return FORKS.run(copy, tests, {STOPPED: "1" if stopped else ""}, seconds=seconds)


def judge(copies: Copies, fault: Fault, *, without_detectors: bool) -> Verdict:
    """Return whether the tests of a fault, or the control run, notice it."""
    began = time.monotonic()
    try:
        with copies.one(fault) as copy:
            if without_detectors:
                code, output = run_tests(copy, [CONTROL], stopped=fault.stops_private_runs)
            else:
                code, output = run_tests(copy, fault.tests)
    except (DoesNotApplyError, TimeoutError) as error:
        return Verdict(fault, "broken", time.monotonic() - began, str(error))
    outcome = "broken"
    if code == PASSED:
        outcome = "survived"
    elif code == FAILED:
        passed = [] if without_detectors else not_failed(output, fault.tests)
        outcome = "survived" if passed else "caught"
    return Verdict(fault, outcome, time.monotonic() - began, output)


def not_failed(output: str, tests: Sequence[str]) -> list[str]:
    """Return the tests of which pytest's summary lists no failed case.

    >>> not_failed("FAILED a.py::b[1] - x", ["a.py::b", "a.py::c"])
    ['a.py::c']
    """
    lines = [line.split(" ")[1] for line in output.splitlines() if line[:6] in ("FAILED", "ERROR ")]
    failed = {line.partition("[")[0] for line in lines} | set(lines)
    return [test for test in tests if test not in failed]


def detectors_pass(copies: Copies, faults: Sequence[Fault], workers: int) -> bool:
    """Print which of the faults' tests fail without a fault; return whether none does."""
    tests = sorted({test for fault in faults for test in fault.tests})
    by_file: dict[str, list[str]] = {}
    for test in tests:
        by_file.setdefault(test.partition("::")[0], []).append(test)
    groups: list[list[str]] = [[] for _ in range(workers)]
    for own in sorted(by_file.values(), key=len, reverse=True):
        min(groups, key=len).extend(own)

    def run(group: list[str]) -> tuple[int, str]:
        with copies.one() as copy:
            return run_tests(copy, group, seconds=ALL_SECONDS)

    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(run, filter(None, groups)))
    for code, output in results:
        if code != PASSED:
            print(output)
    return all(code == PASSED for code, _ in results)


def main(arguments: Sequence[str]) -> int:
    """Plant the chosen faults; return 0 if all of them are judged as they should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of faults; all by default")
    parser.add_argument("--without-detectors", action="store_true", help="run only the control")
    parser.add_argument("--verbose", action="store_true", help="print the output of the tests")
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args(arguments)
    faults = [f for f in FAULTS if not chosen.names or any(n in f.name for n in chosen.names)]
    if not faults:
        parser.error(f"no fault has a name with {' or '.join(chosen.names)}")
    wanted = "survived" if chosen.without_detectors else "caught"
    with tempfile.TemporaryDirectory(prefix="dpft-planted-") as folder:
        copies = Copies(Path(folder), chosen.workers)
        if not chosen.without_detectors and not detectors_pass(copies, faults, chosen.workers):
            print("The tests above fail without any fault. Fix them first.")
            return 1
        with ThreadPoolExecutor(chosen.workers) as pool:
            verdicts = []
            for verdict in pool.map(
                lambda fault: judge(copies, fault, without_detectors=chosen.without_detectors),
                faults,
            ):
                print(f"{verdict.outcome:9}{verdict.seconds:5.0f} s  {verdict.fault.name}")
                if chosen.verbose or verdict.outcome != wanted:
                    print(verdict.details)
                sys.stdout.flush()
                verdicts.append(verdict)
    right = sum(verdict.outcome == wanted for verdict in verdicts)
    print(f"{right} of {len(verdicts)} {wanted}")
    return 0 if right == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
