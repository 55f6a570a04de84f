"""A process of a run of ``dpft train`` whose first rank takes a step whenever it is told to.

Started alone or by torchrun, with the words of the command as its arguments. The first rank
answers what each step took by the clock and what it sent, a JSON object a line, and waits for a
line of input before the next one; the others wait for it in the draw.
"""

import json
import logging
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dpft.commands import train as train_command
from dpft.commands.python_api import TRAIN_COMMAND
from dpft.parallel.processes import current_ranks
from dpft.training.listeners import PublicStep


class InputEnded(BaseException):
    """Nobody asks for another step."""


class Clock:
    """A listener of the first rank's steps, in place of its progress record."""

    def __init__(self, *_: Any) -> None:
        """Take what a progress record is made of."""

    def begin(self, step: int) -> None:
        """Start the clock of the first step."""
        self._start()

    def after_step(self, public: PublicStep) -> None:
        """Answer what the step took and wait for the next line of input.

        Raises:
            InputEnded: There is none.
        """
        seconds, traffic = time.perf_counter() - self._begun, current_ranks().traffic
        took = {
            "step": public.step,
            "seconds": seconds,
            "sent_bytes": traffic.sent_bytes - self._sent,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "collectives": traffic.collectives.total() - self._calls,
        }
        print(json.dumps(took), flush=True)
        if not sys.stdin.readline():
            raise InputEnded
        self._start()

    def publish(self, _: int) -> None:
        """Write nothing: no record was made."""

    def _start(self) -> None:
        traffic = current_ranks().traffic
        self._sent, self._calls = traffic.sent_bytes, traffic.collectives.total()
        self._begun = time.perf_counter()


def main() -> None:
    """Take the steps of the run that the arguments describe."""
    logging.disable(logging.CRITICAL)
    train_command.ProgressRecord = Clock  # type: ignore[assignment,misc]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        composed = TRAIN_COMMAND.compose([*sys.argv[1:], "eval.enabled=false"], folder)
        command = TRAIN_COMMAND.load(composed.values, composed.words)
        try:
            train_command.train(command, folder)
        except InputEnded:
            return


if __name__ == "__main__":
    main()
