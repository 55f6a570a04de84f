"""What every tracker is: a configuration that opens it, and a place to write public numbers to.

A tracker decides where and how numbers are kept. Which numbers, and when, is decided once for all
of them in ``dpft.runs.tracking``.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dpft.errors import InputError
from dpft.kinds import Registry
from dpft.training.listeners import WINDOW


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a tracker writes, and what it says of the run once."""

    folder: Path
    """The tracker's own folder in the run's; it exists."""
    run_id: str
    """Random name by which the tracker knows the run again."""
    goes_on: bool
    """Whether an earlier session of the run has written there."""
    config: Mapping[str, Any]
    """The run's public configuration, ready for JSON."""


class Tracker(Protocol):
    """An open tracker; any of its methods may fail, and then it is left alone."""

    def write(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Adds a point to curves.

        Args:
            step: Steps taken; above that of the last point.
            values: Tag to value.
            seconds: Since the epoch; what the point shows as its time.
        """

    def conclude(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """Adds what is known once training has ended; arguments as of ``write``."""

    def close(self, *, failed: bool) -> None:
        """Ends the session, after which the run may go on in another one."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig(ABC):
    """Base of every choice of a tracker, ``conf/tracking/<name>.yaml``."""

    name: str
    """Which tracker; chosen by tracking=NAME."""


TRACKING: Registry[type[TrackingConfig]] = Registry("dpft.training.trackers", key="tracking")
"""Every choice of ``tracking=<name>``; a module of this package registers its configuration."""


@TRACKING.register("none")
@dataclass(frozen=True, kw_only=True)
class NoTracking(TrackingConfig):
    """The run's folder is all that a run leaves."""

    name: str = "none"


@dataclass(frozen=True, kw_only=True)
class TrackerConfig(TrackingConfig):
    """Base of the choices that do track; their fields are their configuration."""

    every: int = WINDOW
    """Steps between two points, rounded up to whole tens; at least ten, since a step's own time
    follows its batch's size."""

    def __post_init__(self) -> None:
        if self.every < WINDOW:
            raise InputError(
                f"tracking.every must be at least {WINDOW}, got {self.every}: points"
                " nearer to each other would show how long single steps took."
            )

    @abstractmethod
    def check(self) -> None:
        """Refuses a tracker that cannot be opened here, before anything is read or written.

        Raises:
            InputError: A package is missing, or who is to track is not known.
        """

    @abstractmethod
    def open(self, place: Place) -> Tracker:
        """Returns the tracker, ready to be written to.

        Raises:
            InputError: It cannot be reached, or refuses the run.
        """


def require_package(module: str, tracking: str) -> None:
    """Refuses a tracker whose package is not installed.

    Args:
        module: Imported here: one that is installed but broken counts as missing.
        tracking: Name of the tracker.

    Raises:
        InputError: The package cannot be imported.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"tracking={tracking} needs the package {tracking}, got none that can be imported;"
            " pip install 'dpft[tracking]', or set tracking=none."
        ) from error
