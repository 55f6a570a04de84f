"""Takes the steps of one run of ``dpft train``, one whenever it is told to, and times their parts.

Speaks one JSON object a line, as ``benchmarks.worker``. The run is prepared and trained by the
functions that the command calls, and it waits between two of its steps. Times are the
processor's where steps are taken there, so that what else the machine does counts for little.
"""

import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from benchmarks.worker import answer, peak_bytes
from benchmarks.workload import WholeRun
from dpft.commands.python_api import TRAIN_COMMAND
from dpft.commands.train import train_run
from dpft.models.loading import quiet_transformers
from dpft.training import loop, training_run
from dpft.training.training_run import TrainingRun

WARM_UP_STEPS = 2
"""Steps before the timed ones; the clipper checks the first two micro-batches."""
MICRO_BATCHES, COLLATION, CHECKPOINT = "micro_batches", "collation", "checkpoint"
P = ParamSpec("P")
R = TypeVar("R")


class InputEnded(Exception):
    """Nobody asks for another step."""


@dataclass
class Turns:
    """Answers what each step took, and waits to be told to take the next one."""

    device: torch.device = torch.device("cpu")
    seconds: dict[str, float] = field(default_factory=dict)
    """Of the step so far, by part."""
    records: int = 0
    """Drawn in the step so far."""
    _begun: float = 0.0
    _begun_on_the_clock: float = 0.0
    _warm_up: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, device: torch.device) -> None:
        """Start the clock of the first step."""
        self.device = device
        self._start()

    def after_step(self, step: int) -> None:
        """Answer what the step took and wait for the next line of input.

        Raises:
            InputEnded: There is none.
        """
        took = {
            "seconds": self.now() - self._begun,
            "wall": time.perf_counter() - self._begun_on_the_clock,
            "records": self.records,
            "parts": self.seconds,
        }
        if step <= WARM_UP_STEPS:
            self._warm_up.append(took)
        else:
            answer(**took)
        if step == WARM_UP_STEPS:
            answer(warm_up=self._warm_up)
        if step >= WARM_UP_STEPS and not sys.stdin.readline():
            raise InputEnded
        self._start()

    def now(self) -> float:
        """Return seconds of the processor, or of the clock where an accelerator computes."""
        if self.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def timed(self, part: str, work: Callable[P, R]) -> Callable[P, R]:
        """Return a function that does ``work`` and counts its seconds as a part of the step."""

        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            begun = self.now()
            try:
                return work(*args, **kwargs)
            finally:
                self.seconds[part] = self.seconds.get(part, 0.0) + self.now() - begun

        return measured

    def _start(self) -> None:
        self.seconds, self.records = {}, 0
        self._begun, self._begun_on_the_clock = self.now(), time.perf_counter()


def main() -> None:
    """Take the steps of the run that the first line of input describes."""
    run = WholeRun(**json.loads(sys.stdin.readline()))
    torch.set_num_threads(run.threads)
    quiet_transformers()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        composed = TRAIN_COMMAND.compose([*run.words, "eval.enabled=false"], folder)
        command = TRAIN_COMMAND.load(composed.values, composed.words)
        config = command.settings()
        turns = Turns()
        with parts_timed(turns), suppress(InputEnded):
            train_run(config, folder)
    answer(peak_bytes=peak_bytes(turns.device.type))


@contextmanager
def parts_timed(turns: Turns) -> Iterator[None]:
    """Have the loop's micro-batches and their collation timed inside the block."""
    train, accumulate, collate = loop.train, loop.accumulate, loop.TrainingSet.micro_batches
    save, after_step = training_run.save_checkpoint, TrainingRun.after_step

    def counted(*args: Any, **kwargs: Any) -> None:
        turns.records += len(args[0])
        accumulate(*args, **kwargs)

    def begun(state: Any, training_set: loop.TrainingSet, *given: Any) -> None:
        turns.begin(training_set.device)
        train(state, training_set, *given)

    def ended(run: TrainingRun, *given: Any) -> None:
        after_step(run, *given)
        turns.after_step(given[-1].step)

    loop.train, TrainingRun.after_step = begun, ended  # type: ignore[method-assign]
    loop.accumulate = turns.timed(MICRO_BATCHES, counted)
    loop.TrainingSet.micro_batches = turns.timed(COLLATION, collate)  # type: ignore[method-assign]
    training_run.save_checkpoint = turns.timed(CHECKPOINT, save)
    try:
        yield
    finally:
        loop.train, TrainingRun.after_step = train, after_step  # type: ignore[method-assign]
        loop.accumulate, training_run.save_checkpoint = accumulate, save
        loop.TrainingSet.micro_batches = collate  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
