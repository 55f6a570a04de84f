"""``tracking=tensorboard``: event files in the run's own folder.

TensorBoard's RecordWriter writes them. ``SummaryWriter`` would put the machine's name into that of
the file, and the file belongs to what may be released.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dpft.training.trackers.base import TRACKING, Place, TrackerConfig, require_package

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter


@TRACKING.register("tensorboard")
@dataclass(frozen=True, kw_only=True)
class TensorBoard(TrackerConfig):
    """The ``tracking`` section of the configuration."""

    name: str = "tensorboard"

    def check(self) -> None:
        """See ``TrackerConfig``."""
        require_package("tensorboard", self.name)

    def open(self, place: Place) -> "EventFile":
        """Returns a new event file; TensorBoard reads all those of a folder as one run.

        That of a session that goes on is begun with its first point: when the session began, near
        which its first steps were taken, is not told (docs/design.md, rule 7).
        """
        file = EventFile(place.folder)
        if not place.goes_on:
            file.begin()
            file.write_text("config", yaml.safe_dump(dict(place.config), sort_keys=True))
        return file


class EventFile:
    """One session's events."""

    def __init__(self, folder: Path) -> None:
        """Writes to a new file in ``folder``, which exists."""
        self._folder = folder
        self._file: RecordWriter | None = None

    def begin(self) -> None:
        """Begins the file, where that is not done."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._file is not None:
            return
        now = time.time_ns()
        # TensorBoard reads a folder's files in the order of their names.
        name = f"events.out.tfevents.{now // 10**9:010d}.{now % 10**9:09d}"
        self._file = RecordWriter((self._folder / name).open("xb"))
        self._put(Event(wall_time=now / 1e9, file_version="brain.Event:2"))

    def write(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """See ``Tracker``."""
        from tensorboard.compat.proto.event_pb2 import Event
        from torch.utils.tensorboard.summary import scalar

        self.begin()
        for tag, value in values.items():
            # float32, the default, would round an upper bound down as often as up
            summary = scalar(tag, value, new_style=True, double_precision=True)
            self._put(Event(wall_time=seconds, step=step, summary=summary))

    def conclude(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """See ``Tracker``."""
        self.write(step, values, seconds)

    def write_text(self, tag: str, content: str) -> None:
        """Adds a text, shown as it is."""
        from tensorboard.compat.proto.event_pb2 import Event
        from torch.utils.tensorboard.summary import text

        lines = "".join(f"    {line}\n" for line in content.splitlines())  # Markdown's for code
        summary = text(tag, lines)
        self._put(Event(wall_time=time.time(), step=0, summary=summary))

    def close(self, *, failed: bool) -> None:
        """See ``Tracker``."""
        if self._file is not None:
            self._file.close()

    def _put(self, event: Any) -> None:
        assert self._file is not None
        self._file.write(event.SerializeToString())
        self._file.flush()
