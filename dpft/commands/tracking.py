"""Transfer of a run's public numbers to trackers such as TensorBoard.

Trackers receive the lines of progress.jsonl (``dpft.training.progress``). At the end they also
receive the content of public files in the run's folder: config.yaml as the report shows it, the
plan, and privacy.json. From metrics.json, they receive only the entries of public splits
(docs/dev/design.md, rule 8).
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from dpft.commands.run_plan import RunPlan
from dpft.config.load import plain
from dpft.config.schema import TrainConfig
from dpft.evaluation.scores import ScoreEntry
from dpft.reports.privacy_json import PrivateRun, RunPrivacy
from dpft.reports.report import public_configuration
from dpft.reports.run_record import read_overrides
from dpft.run_folder import TRACKING
from dpft.strict_model import as_json
from dpft.training.progress_record import WINDOW, ProgressLine
from dpft.training.trackers import Tracker, TrackerConfig

logger = logging.getLogger(__name__)


class Tracking:
    """Writer that sends a line of progress.jsonl to a tracker about every ``every`` steps.

    If a tracker fails, the run continues without it, because the steps are spent.
    """

    def __init__(self, tracker: Tracker, *, name: str, every: int = WINDOW) -> None:
        """Write to ``tracker``; ``every`` is rounded up to a multiple of ten."""
        self._tracker, self._name = tracker, name
        self._every = -(-every // WINDOW) * WINDOW
        self._steps, self._seconds = 0, 0.0
        """Number of steps of known duration since the last point, and their duration in seconds."""
        self._failed = False

    def begin(self, step: int) -> None:
        """See ``ProgressReader``."""
        self._steps, self._seconds = 0, 0.0

    def show(self, line: ProgressLine, last_step: int, *, again: bool = False) -> None:
        """See ``ProgressReader``; no step is written again."""
        if again:
            return
        if line.since is not None and line.seconds is not None:
            self._steps += line.step - line.since
            self._seconds += line.seconds
        is_point = line.step % self._every == 0 or line.step == last_step
        if not is_point and line.evaluations is None:
            return
        values = {
            f"eval/{scores.split}/{name}": value
            for scores in line.evaluations or ()
            for name, value in scores.metrics.items()
        }
        if line.learning_rate is not None:
            values["train/learning_rate"] = line.learning_rate
        if self._steps:
            values["train/steps_per_second"] = self._steps / self._seconds
        if line.epsilon is not None:
            values["privacy/epsilon"] = line.epsilon
        self._steps, self._seconds = 0, 0.0
        self._guard(lambda: self._tracker.write(line.step, _finite(values)))

    def conclude(self, step: int, values: Mapping[str, float]) -> None:
        """Write the final values, which must all be public."""
        self._guard(lambda: self._tracker.conclude(step, _finite(values)))

    def close(self, *, failed: bool) -> None:
        """End the session."""
        self._guard(lambda: self._tracker.close(failed=failed))

    def _guard(self, action: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            action()
        except Exception as error:  # A tracker may raise anything; the steps are spent.
            self._failed = True
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            logger.warning(
                "tracking=%s failed; the run continues without it: %s", self._name, reason
            )


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {tag: value for tag, value in values.items() if math.isfinite(value)}


def check_tracking(config: TrainConfig) -> None:
    """Reject a tracker that cannot be opened, before anything else is done."""
    if isinstance(config.tracking, TrackerConfig):
        config.tracking.check()


@contextmanager
def tracked(config: TrainConfig, plan: RunPlan, folder: Path) -> Iterator[Tracking | None]:
    """Yield the tracker of a session, or None, and close it at the end of the block."""
    if not isinstance(config.tracking, TrackerConfig):
        yield None
        return
    # Only seeds that the user set are shown.
    public = public_configuration(plain(config), read_overrides(folder) or ())
    if plan.privacy is None:
        public |= {"plan": {"private": False, "steps": plan.steps}}
    else:
        reproducible = config.privacy.noise_seed is not None
        mark = {"reproducible": "not private"} if reproducible else {}
        public |= {"plan": {**as_json(plan.privacy), "private": not reproducible, **mark}}
    tracker_folder = folder / TRACKING / config.tracking.name
    tracker_folder.mkdir(parents=True, exist_ok=True)
    tracker = config.tracking.open(tracker_folder, public)
    tracking = Tracking(tracker, name=config.tracking.name, every=config.tracking.every)
    failed = True
    try:
        yield tracking
        failed = False
    finally:
        tracking.close(failed=failed)


def results(privacy: RunPrivacy, evaluations: Sequence[ScoreEntry]) -> dict[str, float]:
    """Return the final numbers for a tracker, by tag."""
    values: dict[str, float] = {}
    if isinstance(privacy, PrivateRun):
        values["privacy/epsilon_reported"] = float(privacy.epsilon)
        if privacy.with_tokenizer is not None:
            values["privacy/epsilon_with_tokenizer"] = privacy.with_tokenizer.epsilon
        values["privacy/steps_taken"] = float(privacy.steps_taken)
    for entry in evaluations:
        if entry.split_is_public:
            place = f"eval/{entry.stage}/{entry.split}"
            values |= {f"{place}/{name}": value for name, value in entry.metrics.items()}
    return values
