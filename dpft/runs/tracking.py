"""``tracking=``: what a run tells a tracker beside its steps, its configuration and its results.

Both are what the public files of the run's folder say: config.yaml as the report shows it, the
plan, privacy.json, and of metrics.json the entries of public splits alone (docs/design.md, rule 8).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpft.config.keys import plain
from dpft.config.schema import TrainConfig
from dpft.records.scores import ScoreEntry
from dpft.reports.run.metrics_files import read_evaluations
from dpft.reports.run.recipe import public_configuration
from dpft.reports.run.run_record import read_overrides, read_privacy
from dpft.run_folder import PRIVACY
from dpft.runs.run_plan import RunPlan
from dpft.training.resume import find_resume_point
from dpft.training.trackers.base import TrackerConfig
from dpft.training.tracking import Tracking, open_tracking

Trackings = tuple[Tracking, ...]
"""One, or none with ``tracking=none``."""


def check_tracking(config: TrainConfig) -> None:
    """Refuses a tracker that cannot be opened, before anything else is done.

    Raises:
        InputError: Its package is missing, or nobody is logged in.
    """
    if isinstance(config.tracking, TrackerConfig):
        config.tracking.check()


@contextmanager
def tracked(config: TrainConfig, plan: RunPlan, folder: Path) -> Iterator[Trackings]:
    """Gives the trackers of a session, closed at the end of the block.

    Raises:
        InputError: One cannot be opened.
    """
    if not isinstance(config.tracking, TrackerConfig):
        yield ()
        return
    public = tracker_config(config, plan, read_overrides(folder) or ())
    with open_tracking(config.tracking, folder, public=public) as tracking:
        yield (tracking,)


def tracker_config(
    config: TrainConfig, plan: RunPlan, overrides: tuple[str, ...]
) -> dict[str, Any]:
    """Returns what a tracker says of the whole run: configuration, and what it is planned to do.

    Args:
        config: Of the run.
        plan: Of the run.
        overrides: What the user wrote; of seeds, only those among it are shown.
    """
    shown = public_configuration(plain(config), overrides)
    if plan.privacy is None:
        return shown | {"plan": {"private": False, "steps": plan.steps}}
    reproducible = config.privacy.noise_seed is not None
    mark = {"reproducible": "not private"} if reproducible else {}
    return shown | {"plan": {"private": not reproducible, **mark, **asdict(plan.privacy)}}


def conclude(trackings: Trackings, folder: Path) -> None:
    """Tells what the run's report says: headline epsilon, steps, and scores of public splits."""
    if not trackings:
        return
    step = find_resume_point(folder).checkpoint.step
    values = results(read_privacy(folder / PRIVACY), read_evaluations(folder))
    for tracking in trackings:
        tracking.conclude(step, values)


def results(privacy: Mapping[str, Any], evaluations: Sequence[ScoreEntry]) -> dict[str, float]:
    """Returns the numbers a tracker is told at the end, by tag.

    Args:
        privacy: Content of privacy.json.
        evaluations: Entries of metrics.json.
    """
    names = {
        "privacy/epsilon_reported": "epsilon",
        "privacy/epsilon_with_tokenizer": "epsilon_with_tokenizer",
        "privacy/steps_taken": "steps_taken",
    }
    found = {tag: float(privacy[key]) for tag, key in names.items() if key in privacy}
    for entry in evaluations:
        if entry.split_is_public:
            place = f"eval/{entry.stage}/{entry.split}"
            found |= {f"{place}/{name}": value for name, value in entry.metrics.items()}
    return found
