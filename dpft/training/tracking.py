"""What a tracker is told of a run, and when: public quantities, at most once in ten steps.

Steps taken, the learning rate, the upper bound of epsilon spent so far and steps per second; when
training has ended, what the caller adds of public scores. Never a loss, a gradient norm, a clipped
share, a drawn size or a seed, and ``privacy.show_diagnostics`` changes nothing about that. Every
point carries a time, and a step's time follows its drawn size: so points are at least ten steps
apart, counted within one session (DESIGN trust rule 7).
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from dpft.errors import StateError
from dpft.files import write_json
from dpft.training.listeners import PublicStep
from dpft.training.trackers.base import Place, Tracker, TrackerConfig

FOLDER = "tracking"
"""In a run's folder: each tracker's own, and beside it how far that has come."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Written:
    """How far a tracker has come, over all sessions of its run."""

    run_id: str
    last_step: int = 0
    """That of the last point; replayed steps up to it are not written again."""
    concluded: bool = False


class Tracking:
    """Listens to the steps of a session and writes some of them.

    A tracker that fails is left alone from then on: a step that is spent must not be lost for it.
    """

    def __init__(
        self,
        tracker: Tracker,
        *,
        name: str,
        path: Path,
        written: Written,
        every: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Goes on where ``written`` says.

        Args:
            tracker: Open.
            name: Of the tracker, for the warning.
            path: Where how far it has come is kept.
            written: What that is.
            every: Steps between two points.
            clock: Seconds since the epoch.
        """
        self._tracker, self._name, self._path = tracker, name, path
        self._written, self._every, self._clock = written, every, clock
        self._step = self._marked_step = 0
        self._marked_time = clock()
        self._failed = False

    def begin(self, step: int) -> None:
        """See ``StepListener``."""
        self._step = step
        self._mark(step)

    def after_step(self, public: PublicStep) -> None:
        """See ``StepListener``; the last step is among those written if ten came before it."""
        self._step = public.step
        steps = public.step - self._marked_step
        due = (public.last_step - public.step) % self._every == 0 and steps >= self._every
        if not due or public.step <= self._written.last_step:
            return
        before = self._marked_time
        self._mark(public.step)
        values = {
            "train/learning_rate": public.learning_rate,
            "train/steps_per_second": steps / max(self._marked_time - before, 1e-9),
        }
        if public.epsilon is not None:
            values["privacy/epsilon"] = public.epsilon
        self._guard(lambda: self._write(values))

    def conclude(self, step: int, values: Mapping[str, float]) -> None:
        """Writes what is known at the end, once in a run; all of it must be public.

        Args:
            step: Steps that the weights have taken.
            values: Tag to value.
        """
        steps = self._step - self._marked_step
        if steps == 0 or steps >= self._every:
            self._mark(self._step)
        # else: so few steps show the time of the last point, not their own
        if not self._written.concluded:
            self._guard(lambda: self._conclude(step, values))

    def close(self, *, failed: bool) -> None:
        """Ends the session."""
        self._guard(lambda: self._tracker.close(failed=failed))

    def _mark(self, step: int) -> None:
        self._marked_step, self._marked_time = step, self._clock()

    def _write(self, values: Mapping[str, float]) -> None:
        # Noted first: a kill between the two costs a point, and doubles none.
        self._note(replace(self._written, last_step=self._step))
        self._tracker.write(self._step, _finite(values), self._marked_time)

    def _conclude(self, step: int, values: Mapping[str, float]) -> None:
        self._note(replace(self._written, concluded=True))
        self._tracker.conclude(step, _finite(values), self._marked_time)

    def _note(self, written: Written) -> None:
        write_json(self._path, asdict(written))
        self._written = written

    def _guard(self, action: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            action()
        except Exception as error:  # Whatever a tracker's library raises, the steps are spent.
            self._failed = True
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            logger.warning(
                "tracking=%s failed, and the run goes on without it: %s", self._name, reason
            )


@contextmanager
def open_tracking(
    config: TrackerConfig, folder: Path, *, public: Mapping[str, Any]
) -> Iterator[Tracking]:
    """Gives a session's tracking, closed at the end of the block.

    Args:
        config: Which tracker.
        folder: The run's; it exists.
        public: What the tracker says of the run once, ready for JSON; public.

    Raises:
        InputError: The tracker cannot be opened.
        StateError: How far it has come cannot be read.
    """
    path = folder / FOLDER / f"{config.name}.json"
    own = folder / FOLDER / config.name
    own.mkdir(parents=True, exist_ok=True)
    goes_on = path.exists()
    written = _read(path) if goes_on else Written(run_id=uuid4().hex[:8])
    place = Place(folder=own, run_id=written.run_id, goes_on=goes_on, config=public)
    tracker = config.open(place)
    write_json(path, asdict(written))
    tracking = Tracking(tracker, name=config.name, path=path, written=written, every=config.every)
    failed = True
    try:
        yield tracking
        failed = False
    finally:
        tracking.close(failed=failed)


def _read(path: Path) -> Written:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Written(
            run_id=str(content["run_id"]),
            last_step=int(content["last_step"]),
            concluded=bool(content["concluded"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{path} is damaged: it must hold how far the tracker has come; remove it to begin"
            " tracking anew, or set tracking=none."
        ) from error


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {tag: value for tag, value in values.items() if math.isfinite(value)}
