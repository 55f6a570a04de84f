"""What is told while a run goes: to trackers, and on a terminal while a model is scored.

Of a step trackers are told: steps taken, the learning rate, the upper bound of epsilon spent so far
(once its tight curve is computed, so that it never falls) and steps per second. Never a loss, a
gradient norm, a clipped share, a drawn size or a seed, and ``privacy.show_diagnostics`` changes
nothing about that. Every point carries a time, and a step's time follows its drawn size: so points
lie at boundaries of windows of ten steps and more, which bar and log lines share (docs/design.md,
rule 7). Configuration and results are what the public files of the run's folder say: config.yaml as
the report shows it, the plan, privacy.json, and of metrics.json the entries of public splits alone
(rule 8).

Bars and lines of scoring show no text, and no time unless the work follows from public numbers
alone. How many records a private split has is private, too: of one, a bar knows tenths alone, and
the lines of a pipe are the same however many records there are and however long they take: one at
the end of each kind of work.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from dpft.config.keys import plain
from dpft.config.schema import TrainConfig
from dpft.errors import DpftError, StateError
from dpft.evaluation.evaluate import OnProgress
from dpft.files import TRACKING
from dpft.records.configuration import TrackerState
from dpft.records.form import read_record, write_record
from dpft.records.promises import PrivateRun, RunPrivacy
from dpft.records.scores import ScoreEntry
from dpft.reports.report import public_configuration
from dpft.reports.run_record import RunRecord, read_overrides
from dpft.runs.run_plan import RunPlan
from dpft.startup import end_startup
from dpft.training.listeners import PublicStep, StepWindows, clock_time, draws_bars
from dpft.training.trackers import Place, Tracker, TrackerConfig

logger = logging.getLogger(__name__)


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
        written: TrackerState,
        every: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Goes on where ``written`` says, which is kept at ``path``.

        There are ``every`` steps between two points, rounded up to whole tens; ``clock`` tells
        seconds since the epoch.
        """
        self._tracker, self._name, self._path = tracker, name, path
        self._written, self._every, self._clock = written, every, clock
        self._start = self._step = 0
        self._marked_step: int | None = None
        """The last boundary that this session has come to; rates count from there."""
        self._marked_time = clock()
        self._at_boundary = True
        """Whether now is a time that may show."""
        self._failed = False

    def begin(self, step: int) -> None:
        """See ``StepListener``."""
        self._start = self._step = step
        self._marked_step, self._marked_time = None, self._clock()
        self._at_boundary = True

    def after_step(self, public: PublicStep) -> None:
        """See ``StepListener``; what is written at a boundary is of the steps since the last."""
        self._step = public.step
        self._at_boundary = StepWindows(self._start, public.last_step).shows(public.step)
        windows = StepWindows(self._start, public.last_step, every=self._every)
        if not windows.shows(public.step):
            return
        if self._marked_step is None and windows.starts_on_grid:
            self._marked_step = self._start
        before, began = self._marked_step, self._marked_time
        self._marked_step, self._marked_time = public.step, self._clock()
        if public.step <= self._written.last_step:
            return
        values = {"train/learning_rate": public.learning_rate}
        if before is not None:
            seconds = max(self._marked_time - began, 1e-9)
            values["train/steps_per_second"] = (public.step - before) / seconds
        if public.epsilon is not None:
            values["privacy/epsilon"] = public.epsilon.epsilon
        self._guard(lambda: self._write(values))

    def conclude(self, step: int, values: Mapping[str, float]) -> None:
        """Writes what is known at the end, once in a run; all of it must be public."""
        if self._at_boundary:
            self._marked_time = self._clock()
        # else: of so few steps it shows when they began, not when they ended
        if not self._written.concluded:
            self._guard(lambda: self._conclude(step, values))

    def close(self, *, failed: bool) -> None:
        """Ends the session."""
        self._guard(lambda: self._tracker.close(failed=failed))

    def _write(self, values: Mapping[str, float]) -> None:
        # Noted first: a kill between the two costs a point, and doubles none.
        self._note(replace(self._written, last_step=self._step))
        self._tracker.write(self._step, _finite(values), self._marked_time)

    def _conclude(self, step: int, values: Mapping[str, float]) -> None:
        self._note(replace(self._written, concluded=True))
        self._tracker.conclude(step, _finite(values), self._marked_time)

    def _note(self, written: TrackerState) -> None:
        write_record(self._path, written)
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

    ``public`` is what the tracker says of the run once, ready for JSON.
    """
    path = folder / TRACKING / f"{config.name}.json"
    own = folder / TRACKING / config.name
    own.mkdir(parents=True, exist_ok=True)
    goes_on = path.exists()
    written = _read(path) if goes_on else TrackerState(run_id=uuid4().hex[:8])
    place = Place(folder=own, run_id=written.run_id, goes_on=goes_on, config=public)
    tracker = config.open(place)
    write_record(path, written)
    tracking = Tracking(tracker, name=config.name, path=path, written=written, every=config.every)
    failed = True
    try:
        yield tracking
        failed = False
    finally:
        tracking.close(failed=failed)


def _read(path: Path) -> TrackerState:
    try:
        return read_record(path, TrackerState)
    except (OSError, DpftError) as error:
        raise StateError(
            f"{path} is damaged: it must hold how far the tracker has come; remove it to begin"
            " tracking anew, or set tracking=none."
        ) from error


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {tag: value for tag, value in values.items() if math.isfinite(value)}


Trackings = tuple[Tracking, ...]
"""One, or none with ``tracking=none``."""


def check_tracking(config: TrainConfig) -> None:
    """Refuses a tracker that cannot be opened, before anything else is done."""
    if isinstance(config.tracking, TrackerConfig):
        config.tracking.check()


@contextmanager
def tracked(config: TrainConfig, plan: RunPlan, folder: Path) -> Iterator[Trackings]:
    """Gives the trackers of a session, closed at the end of the block."""
    if not isinstance(config.tracking, TrackerConfig):
        yield ()
        return
    # Of seeds only those that the user wrote are shown.
    public = public_configuration(plain(config), read_overrides(folder) or ())
    if plan.privacy is None:
        public |= {"plan": {"private": False, "steps": plan.steps}}
    else:
        reproducible = config.privacy.noise_seed is not None
        mark = {"reproducible": "not private"} if reproducible else {}
        public |= {"plan": {**asdict(plan.privacy), "private": not reproducible, **mark}}
    with open_tracking(config.tracking, folder, public=public) as tracking:
        yield (tracking,)


def conclude(trackings: Trackings, step: int, record: RunRecord) -> None:
    """Tells what the run's report says: headline epsilon, steps, and scores of public splits."""
    values = results(record.privacy, record.evaluations)
    for tracking in trackings:
        tracking.conclude(step, values)


def results(privacy: RunPrivacy, evaluations: Sequence[ScoreEntry]) -> dict[str, float]:
    """Returns the numbers a tracker is told at the end, by tag."""
    found: dict[str, float] = {}
    if isinstance(privacy, PrivateRun):
        found["privacy/epsilon_reported"] = float(privacy.epsilon)
        if privacy.epsilon_with_tokenizer is not None:
            found["privacy/epsilon_with_tokenizer"] = float(privacy.epsilon_with_tokenizer)
        found["privacy/steps_taken"] = float(privacy.steps_taken)
    for entry in evaluations:
        if entry.split_is_public:
            place = f"eval/{entry.stage}/{entry.split}"
            found |= {f"{place}/{name}": value for name, value in entry.metrics.items()}
    return found


PARTS = 10
"""Parts of a work that a bar shows, where its size is not to be seen."""
FIFTHS = 5
"""Parts of a work that a line is logged of."""
FORETOLD_AFTER = 5.0
"""Seconds after which the time that a work will take is said, though no tenth of it is done."""
LOG_LINES, APART = 10, 1.0
"""Most lines that one scoring logs, and the least seconds between two of them."""


@contextmanager
def batch_progress(
    doing: str = "", *, counts: bool = True, timed: bool = False, shown: bool = True
) -> Iterator[OnProgress]:
    """Gives a function that moves a bar on a terminal, and elsewhere logs a few lines.

    Args:
        doing: What the lines begin with.
        counts: Whether a bar may show how much there is.
        timed: Whether bar and lines may show the time to go: how much work there is and how long it
            takes depend on no private record.
        shown: Whether this process shows anything.
    """
    if not shown:
        yield lambda what, done, total: None
        return
    console = Console(stderr=True)
    if not draws_bars(console):
        yield _logged(doing, PARTS if timed else FIFTHS if counts else 1, timed=timed)
        return
    amount = MofNCompleteColumn() if counts else TaskProgressColumn()
    bars: dict[str, TaskID] = {}
    to_go = [TimeRemainingColumn(), TextColumn("to go")] if timed else []
    end_startup()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        amount,
        *to_go,
        console=console,
        refresh_per_second=1,
    ) as progress:

        def show(what: str, done: int, total: int) -> None:
            if not counts:
                done, total = PARTS * done // total, PARTS
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done, total=total)

        yield show


def _logged(
    doing: str, parts: int, *, timed: bool = False, clock: Callable[[], float] | None = None
) -> OnProgress:
    """Returns a function that logs each of some equal parts of a work once it is done.

    Of one part it logs the end of each kind of work, once, however often that kind begins anew.

    Where it is ``timed``, lines say the time to go, the first of them before any part is done.
    """
    seconds, start = clock or time.monotonic, f"{doing}: " if doing else ""
    begun, is_foretold = seconds(), False
    logged: list[float] = []
    reached: dict[str, int] = {}

    def show(what: str, done: int, total: int) -> None:
        nonlocal is_foretold
        now, part = seconds(), parts * done // total
        left = clock_time((now - begun) / done * (total - done)) if timed and done else ""
        if left and not is_foretold and now - begun >= FORETOLD_AFTER and part < 1:
            is_foretold = True
            form = "%s%d %s to score, about %s to go"
            logger.info(form, start, total - done, what, left)
        before = reached.get(what, 0)
        # the next part of a split begins anew
        reached[what] = max(before, part) if parts == 1 else part % parts
        apart = not logged or now - logged[-1] >= APART
        if part <= before or (parts > 1 and not (apart and len(logged) < LOG_LINES)):
            return
        logged.append(now)
        to_go = f", about {left} to go" if left and part < parts else ""
        logger.info("%s%d %% of %s%s", start, 100 * part // parts, what, to_go)

    return show
