"""The trackers TensorBoard and Weights & Biases.

``tracking=tensorboard`` writes event files to the run's folder. ``tracking=wandb`` sends only the
written values to Weights & Biases. ``dpft.training.progress`` decides which values trackers
receive, and when.
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
    """Interface of an open tracker; if a method fails, the run continues without the tracker."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve.

        Args:
            step: Number of steps taken; larger than that of the last point.
            values: Value by tag.
        """

    def conclude(self, step: int, values: Mapping[str, float]) -> None:
        """Add the final values after training has ended; see ``write`` for the arguments."""

    def close(self, *, failed: bool) -> None:
        """End the session; the run may resume in another session."""


class TrackingConfig(Section, ABC):
    """Base class of tracker configurations, ``conf/tracking/<name>.yaml``."""

    name: str
    """Name of the tracker, set with tracking=NAME."""


TRACKING: Registry[type[TrackingConfig]] = Registry("dpft.training.trackers", key="tracking")
"""Registry of the choices for ``tracking=<name>``; this module registers their configurations."""


@TRACKING.register("none")
class NoTracking(TrackingConfig):
    """The choice without a tracker: a run writes only to its folder."""

    name: str = "none"


class TrackerConfig(TrackingConfig):
    """Base class of the choices with a tracker; their fields are their configuration."""

    every: Annotated[int, Field(ge=WINDOW)] = WINDOW
    """Number of steps between two points, rounded up to a multiple of ten. The minimum is ten,
    because the duration of a single step depends on its private batch size."""

    @abstractmethod
    def check(self) -> None:
        """Reject a tracker that cannot be opened, before anything is read or written.

        Raises:
            InputError: A package is missing, or no user is logged in.
        """

    @abstractmethod
    def open(self, folder: Path, public: Mapping[str, Any]) -> Tracker:
        """Return the opened tracker.

        Args:
            folder: The tracker's folder in the run's folder. It exists, and is empty unless an
                earlier session of the run wrote there.
            public: The public configuration of the run, as values for JSON.

        Raises:
            InputError: The tracker cannot be reached or rejects the run.
        """


def require_package(module: str, tracking: str) -> None:
    """Reject a tracker if its package is not installed.

    Args:
        module: Name of the module to import; an installed but broken module counts as missing.
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
    """Configuration of ``tracking=tensorboard``."""

    name: str = "tensorboard"

    def check(self) -> None:
        """See ``TrackerConfig``."""
        require_package("tensorboard", self.name)

    def open(self, folder: Path, public: Mapping[str, Any]) -> "EventFile":
        """Return a new event file; TensorBoard reads all event files of a folder as one run.

        The event file of a resumed session starts with its first point. Otherwise the file would
        reveal when the session began, which is close to the time of its first steps
        (docs/dev/design.md, rule 7).
        """
        file = EventFile(folder)
        if not any(folder.iterdir()):
            file.begin()
            file.write_text("config", yaml.safe_dump(dict(public), sort_keys=True))
        return file


class EventFile:
    """The events of one session."""

    def __init__(self, folder: Path) -> None:
        """Prepare to write to a new file in ``folder``, which exists."""
        self._folder = folder
        self._file: RecordWriter | None = None

    def begin(self) -> None:
        """Create the file, if it does not exist."""
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
            # float32, the default, could round an upper bound of epsilon down.
            summary = scalar(tag, value, new_style=True, double_precision=True)
            self._put(Event(wall_time=time.time(), step=step, summary=summary))

    def conclude(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        self.write(step, values)

    def write_text(self, tag: str, content: str) -> None:
        """Add a text, which is shown verbatim."""
        from tensorboard.compat.proto.event_pb2 import Event
        from torch.utils.tensorboard.summary import text

        lines = "".join(f"    {line}\n" for line in content.splitlines())  # a Markdown code block
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
"""Maximum seconds for uploading the last points, before the run continues without the upload."""


@TRACKING.register("wandb")
class WeightsAndBiases(TrackerConfig):
    """Configuration of ``tracking=wandb``."""

    name: str = "wandb"
    project: str = "dpft"
    """Project at wandb that contains the run."""
    entity: str | None = None
    """User or team at wandb; null uses the default of the account that is logged in."""
    run_name: str | None = None
    """Name of the run at wandb; null lets wandb choose a name."""
    mode: Literal["online", "offline"] = "online"
    """online sends values to wandb; offline writes only to the run's folder, for ``wandb sync``."""

    def check(self) -> None:
        """See ``TrackerConfig``; do not prompt for a key, and do not ask a server to check it."""
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
        """Return a new run at wandb, or the run of an earlier session with the same id."""
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
        # The logs contain paths of this machine, and nothing uses them.
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
        """Store ``run``, which receives the values."""
        self._run = run

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``."""
        self._run.log(dict(values), step=step, commit=True)

    def conclude(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Tracker``; the values go to the run's summary, not to curves."""
        self._run.summary.update(dict(values))

    def close(self, *, failed: bool) -> None:
        """See ``Tracker``; wait a limited time for the upload, and stop the process of wandb."""
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
    """Prevent wandb from reporting its own errors to its developers.

    wandb reads the environment variable only once, so the variable is set for the whole block.
    """
    name = "WANDB_ERROR_REPORTING"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
