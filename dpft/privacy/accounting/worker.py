"""The child process of a limited accountant: questions in on stdin, answers out on stdout.

Run as ``python -m dpft.privacy.accounting.worker LIBRARY SECONDS WALL BYTES NICENESS`` by
``accountants``, one JSON object a line each way. A program of its own, no fork: the parent may
hold torch's threads, and may be a script without a main guard.
"""

import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from dpft.privacy.accounting import pld, prv, rdp
from dpft.privacy.accounting.mechanism import Epsilon, mechanism_of

ACCOUNTANTS: Mapping[str, Callable[..., Epsilon]] = {
    "rdp": rdp.epsilon,
    "pld": pld.epsilon,
    "prv": prv.epsilon,
}


def main(library: str, seconds: float, wall_seconds: float, memory: int, niceness: int = 0) -> None:
    """Answers questions until stdin closes.

    Args:
        library: Module to import while the parent still prepares its first question.
        seconds: Processor time that the import, and each question, may take before SIGPROF ends
            the process. It ends itself, so that not even a killed parent leaves one running.
        wall_seconds: Wall time of the same, before SIGALRM ends the process.
        memory: Address space in bytes.
        niceness: How far it stands back behind other processes.
    """
    os.nice(niceness)
    # Answers go to the parent's pipe; what is printed goes to stderr, where it does no harm.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
    with suppress(OSError, ValueError):  # macOS has no such limit; the time limit still holds there
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    with _alarms(seconds, wall_seconds):
        importlib.import_module(library)
    for line in sys.stdin:
        with _alarms(seconds, wall_seconds):
            answer = _answer(json.loads(line), memory)
        print(json.dumps(answer), file=answers, flush=True)


def _answer(question: Mapping[str, Any], memory: int) -> dict[str, Any]:
    """Returns {"lower", "estimate", "upper"}, or {"error": one sentence}."""
    try:
        evaluate = ACCOUNTANTS[question["accountant"]]
        return asdict(evaluate(mechanism_of(question["mechanism"]), **question["options"]))
    except MemoryError:
        return {"error": f"It needs more than {memory / 2**30:g} GiB of memory."}
    except (ArithmeticError, ValueError, RuntimeError, AssertionError) as error:
        return {"error": " ".join(str(error).split()) or f"It stopped on {type(error).__name__}."}


@contextmanager
def _alarms(seconds: float, wall_seconds: float) -> Iterator[None]:
    # The default action of both signals ends the process even inside a long C call.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, wall_seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
