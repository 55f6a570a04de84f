"""The trackers TensorBoard and Weights & Biases.

``tracking=tensorboard`` writes event files in the run's own folder; ``tracking=wandb`` tells
Weights & Biases nothing but what is written to it. ``dpft.training.progress`` decides which numbers
trackers are told, and when.
"""

import importlib
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol
from uuid import uuid4

import yaml
from pydantic import Field

from dpft.config.section import Section
from dpft.errors import InputError
from dpft.registry import Registry
from dpft.training.progress_record import WINDOW

if TYPE_CHECKING:
    import wandb
    from tensorboard.summary.writer.record_writer import RecordWriter


class Tracker(Protocol):
    """An open tracker; any of its methods may fail, and then it is left alone."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to curves.

        Args:
            step: Steps taken; above that of the last point.
            values: Tag to value.
        """

    def conclude(self, step: int, values: Mapping[str, float]) -> None:
        """Add what is known once training has ended; arguments as of ``write``."""

    def close(self, *, failed: bool) -> None:
        """End the session, after which the run may go on in another one."""


class TrackingConfig(Section, ABC):
    """Base of every choice of a tracker, ``conf/tracking/<name>.yaml``."""

    name: str
    """Which tracker; chosen by tracking=NAME."""


TRACKING: Registry[type[TrackingConfig]] = Registry("dpft.training.trackers", key="tracking")
"""Every choice of ``tracking=<name>``; a module of this package registers its configuration."""


@TRACKING.register("none")
class NoTracking(TrackingConfig):
    """The run's folder is all that a run leaves."""

    name: str = "none"


class TrackerConfig(TrackingConfig):
    """Base of the choices that do track; their fields are their configuration."""

    every: Annotated[int, Field(ge=WINDOW)] = WINDOW
    """Steps between two points, rounded up to whole tens; at least ten, since a step's own time
    follows its batch's size."""

    @abstractmethod
    def check(self) -> None:
        """Reject a tracker that cannot be opened here, before anything is read or written.

        Raises:
            InputError: A package is missing, or who is to track is not known.
        """

    @abstractmethod
    def open(self, folder: Path, public: Mapping[str, Any]) -> Tracker:
        """Return the tracker, ready to be written to.

        Args:
            folder: The tracker's own folder in the run's; it exists, and is empty unless an earlier
                session of the run wrote there.
            public: The run's public configuration, ready for JSON.

        Raises:
            InputError: It cannot be reached, or refuses the run.
        """


def require_package(module: str, tracking: str) -> None:
    """Reject a tracker whose package is not installed.

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
            f"tracking={tracking} needs the package {tracking}, which cannot be imported. Install"
            " it, or set tracking=none.",
            key="tracking",
            value=tracking,
            hint="pip install 'dpft[tracking]'",
        ) from error


@TRACKING.register("tensorboard")
class TensorBoard(TrackerConfig):
    """The ``tracking`` section of the configuration."""

    name: str = "tensorboard"

    def check(self) -> None:
        """See ``TrackerConfig``."""
        require_package("tensorboard", self.name)

    def open(self, folder: Path, public: Mapping[str, Any]) -> "EventFile":
        """Return a new event file; TensorBoard reads all those of a folder as one run.

        That of a session that goes on is begun with its first point: when the session began, near
        which its first steps were taken, is not told (docs/dev/design.md, rule 7).
        """
        file = EventFile(folder)
        if not any(folder.iterdir()):
            file.begin()
            file.write_text("config", yaml.safe_dump(dict(public), sort_keys=True))
        return file


class EventFile:
    """One session's events."""

    def __init__(self, folder: Path) -> None:
        """Write to a new file in ``folder``, which exists."""
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

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        from tensorboard.compat.proto.event_pb2 import Event
        from torch.utils.tensorboard.summary import scalar

        self.begin()
        for tag, value in values.items():
            # float32, the default, would round an upper bound down as often as up
            summary = scalar(tag, value, new_style=True, double_precision=True)
            self._put(Event(wall_time=time.time(), step=step, summary=summary))

    def conclude(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        self.write(step, values)

    def write_text(self, tag: str, content: str) -> None:
        """Add a text, shown as it is."""
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


FINISH_SECONDS = 60
"""What the upload of the last points may take before the run goes on without it."""


@TRACKING.register("wandb")
class WeightsAndBiases(TrackerConfig):
    """The ``tracking`` section of the configuration."""

    name: str = "wandb"
    project: str = "dpft"
    """The project of wandb that the run is shown in."""
    entity: str | None = None
    """User or team; null: that of whoever is logged in."""
    run_name: str | None = None
    """Null: wandb makes one up."""
    mode: Literal["online", "offline"] = "online"
    """online; or offline, into the run's folder alone, for ``wandb sync``."""

    def check(self) -> None:
        """See ``TrackerConfig``; asks nobody for a key and no server whether it is valid."""
        with _no_reports():
            require_package("wandb", self.name)
            if self.mode == "online" and not _is_logged_in():
                raise InputError(
                    "tracking=wandb needs a wandb API key, got none. Run `wandb login`, set"
                    " WANDB_API_KEY, or keep the run on this machine.",
                    key="tracking",
                    value="wandb",
                    hint="tracking.mode=offline",
                )

    def open(self, folder: Path, public: Mapping[str, Any]) -> "WandbRun":
        """Return the run at wandb, or with its id the one that an earlier session began."""
        with _no_reports():
            import wandb

            try:
                run = wandb.init(config=dict(public), settings=self._settings(folder))
            except wandb.Error as error:
                raise InputError(
                    f"tracking=wandb could not start a run: {' '.join(str(error).split())}. Fix"
                    " this, or keep the run on this machine.",
                    key="tracking",
                    value="wandb",
                    hint="tracking.mode=offline",
                ) from error
        # They name folders of this machine, and nothing needs them.
        shutil.rmtree(Path(run.dir).parent / "logs", ignore_errors=True)
        return WandbRun(run)

    def _settings(self, folder: Path) -> "wandb.Settings":
        import wandb

        # wandb names a session's folder [offline-]run-TIME-ID.
        earlier = [path.name.rpartition("-")[2] for path in folder.glob("wandb/*run-*-*")]

        return wandb.Settings(
            mode=self.mode,
            project=self.project,
            entity=self.entity,
            run_name=self.run_name,
            run_id=earlier[0] if earlier else uuid4().hex[:8],
            resume="allow" if self.mode == "online" else None,
            root_dir=str(folder),
            use_dot_wandb=False,
            symlink=False,
            silent=True,
            console="off",
            capture_loggers={},
            sync_tensorboard=False,
            save_code=False,
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            host="",
            program="",
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            finish_timeout=FINISH_SECONDS,
            finish_timeout_raises=True,
        )


class WandbRun:
    """An open run at wandb."""

    def __init__(self, run: "wandb.Run") -> None:
        """Write to ``run``."""
        self._run = run

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        self._run.log(dict(values), step=step, commit=True)

    def conclude(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``; they stand in the run's summary, and in no curve."""
        self._run.summary.update(dict(values))

    def close(self, *, failed: bool) -> None:
        """See ``Tracker``; waits for the upload, not for long; no process of its own stays."""
        import wandb

        try:
            self._run.finish(exit_code=int(failed))
        finally:
            wandb.teardown()


def _is_logged_in() -> bool:
    import wandb

    try:
        return bool(wandb.login(prompt=False, verify=False))
    except wandb.Error as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"tracking=wandb cannot read the wandb API key: {reason}", key="tracking", value="wandb"
        ) from error


@contextmanager
def _no_reports() -> Iterator[None]:
    """Keep wandb from reporting its own errors to its makers; it asks the environment once."""
    name = "WANDB_ERROR_REPORTING"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
