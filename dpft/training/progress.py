"""The public progress record ``progress.jsonl``: one line for each window of ten steps.

The file is public, and it is the only record of a run's progress. The terminal and trackers show
its lines, and the report reads the scores in it. A line contains the step, the duration of the
steps before it, the learning rate, the upper bound of epsilon, and scores of public splits. A line
never contains a loss, a gradient norm, a clipped fraction, a batch size or a seed.
``privacy.show_diagnostics`` does not change this. The duration of a step depends on its private
batch size. Lines therefore appear only at boundaries of ``StepWindows`` (docs/dev/design.md, rule
7).

A resumed run repeats steps whose lines are already in the file. At each boundary, new lines replace
the old lines of the same steps, so that each step has one line. Lines of steps that the run has not
yet repeated remain. The last step in the file therefore never decreases, and trackers receive each
step only once.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from dpft.evaluation.scores import SplitScores
from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.run_folder import PRIVATE_PROGRESS, PROGRESS, private_path, write_text
from dpft.training.listeners import PublicStep, StepWindows
from dpft.training.progress_record import ProgressLine, progress_text, read_progress

logger = logging.getLogger(__name__)


class ProgressReader(Protocol):
    """Interface for objects that receive the lines of a session when they become public."""

    def begin(self, step: int) -> None:
        """See ``StepListener``."""

    def show(self, line: ProgressLine, last_step: int, *, again: bool) -> None:
        """Show a line of a run that ends at ``last_step``; must not raise.

        ``again`` states whether an earlier session had a line for this step.
        """


class ProgressRecord:
    """Listener that follows the steps of a session and writes progress.jsonl.

    Between two boundaries, new lines are only in private/progress.jsonl. This file contains the
    lines up to the checkpoint that the session started from, and scores that are not public yet. At
    the next boundary, its lines replace the public lines of the same steps.
    """

    def __init__(
        self,
        folder: Path,
        readers: Sequence[ProgressReader] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the progress files of a run, to append lines to them.

        Args:
            folder: Folder of the run.
            readers: Objects that receive each line that becomes public.
            clock: Function that returns the time in seconds.

        Raises:
            StateError: A file is damaged.
        """
        self._folder, self._readers, self._clock = folder, readers, clock
        public, waiting = folder / PROGRESS, folder / PRIVATE_PROGRESS
        self._public = {line.step: line for line in read_progress(public)}
        self._lines = {
            line.step: line for line in read_progress(waiting if waiting.exists() else public)
        }
        self._is_cut_off = public.exists() and not public.read_bytes().endswith(b"\n")
        self._told = max(self._public, default=0)
        """The last step that readers received in any session."""
        self._start = 0
        self._marked_step: int | None = None
        """The last boundary of this session; durations are measured from there."""
        self._marked_time = 0.0

    def begin(self, step: int) -> None:
        """See ``StepListener``; drop lines of later steps, whose weights no longer exist."""
        self._start = step
        self._marked_step, self._marked_time = None, self._clock()
        if any(line_step > step for line_step in self._lines):
            self._lines = {n: line for n, line in self._lines.items() if n <= step}
            self._write_private()
        for reader in self._readers:
            reader.begin(step)

    def has_scores(self, step: int) -> bool:
        """Return whether the weights after ``step`` steps were scored."""
        return step in self._lines and self._lines[step].evaluations is not None

    def add_scores(
        self,
        step: int,
        scores: Sequence[SplitScores],
        epsilon: SpentEpsilon | None,
        *,
        seconds: float = 0.0,
    ) -> None:
        """Keep the scores of a public split in private/ until the next boundary.

        Args:
            step: Number of steps that the weights have taken.
            scores: Scores of each part of the split.
            epsilon: Upper bound of the epsilon spent by the steps so far; None for a non-private
                run.
            seconds: Duration of the scoring in seconds, which is not part of the steps' duration.
        """
        line = self._lines.get(step, ProgressLine(step=step, epsilon=_finite(epsilon)))
        self._lines[step] = line.replace(evaluations=tuple(scores))
        self._marked_time += seconds
        self._write_private()

    def after_step(self, public: PublicStep) -> None:
        """See ``StepListener``; write the line of the step if the step is a boundary."""
        windows = StepWindows(self._start, public.last_step)
        if not windows.shows(public.step):
            return
        before, began = self._marked_step, self._marked_time
        if before is None and windows.starts_on_grid:
            before = self._start
        self._marked_step, self._marked_time = public.step, self._clock()
        scored = self._lines.get(public.step)
        self._lines[public.step] = ProgressLine(
            step=public.step,
            since=before,
            seconds=None if before is None else max(self._marked_time - began, 1e-9),
            learning_rate=public.learning_rate,
            epsilon=_finite(public.epsilon),
            evaluations=None if scored is None else scored.evaluations,
        )
        self.publish(public.last_step)

    def publish(self, last_step: int) -> None:
        """Write all lines to the public file; call this only at a time that may be public."""
        fresh = [line for step, line in self._lines.items() if self._public.get(step) != line]
        if not fresh:
            return
        fresh.sort(key=lambda line: line.step)
        last = max(self._public, default=0)
        is_longer = fresh[0].step > last and self._public.keys() <= self._lines.keys()
        later = {step: line for step, line in self._public.items() if step > fresh[-1].step}
        self._public = dict(sorted((self._lines | later).items()))
        path = self._folder / PROGRESS
        if is_longer and path.exists() and not self._is_cut_off:
            with path.open("a", encoding="utf-8") as file:
                file.write("".join(map(progress_text, fresh)))
        else:
            write_text(path, "".join(map(progress_text, self._public.values())))
            self._is_cut_off = False
        (self._folder / PRIVATE_PROGRESS).unlink(missing_ok=True)
        for line in fresh:
            if line.evaluations is not None:
                scores_text = "; ".join(
                    f"{scores.split} {', '.join(f'{k} {v:.4g}' for k, v in scores.metrics.items())}"
                    for scores in line.evaluations
                )
                logger.info("step %d: %s", line.step, scores_text)
            for reader in self._readers:
                reader.show(line, last_step, again=line.step <= self._told)
            self._told = max(self._told, line.step)

    def _write_private(self) -> None:
        text = "".join(progress_text(self._lines[step]) for step in sorted(self._lines))
        write_text(private_path(self._folder, PRIVATE_PROGRESS), text, mode=0o600)


def _finite(epsilon: SpentEpsilon | None) -> float | None:
    return epsilon.epsilon if epsilon is not None and math.isfinite(epsilon.epsilon) else None


def remove_scores(folder: Path) -> None:
    """Remove all scores from progress.jsonl, because their split is no longer public."""
    lines = read_progress(folder / PROGRESS)
    if any(line.evaluations is not None for line in lines):
        texts = [progress_text(line.replace(evaluations=None)) for line in lines]
        write_text(folder / PROGRESS, "".join(texts))
