"""``tracking=wandb``: Weights & Biases, told nothing but what is written to it.

By itself wandb also records the terminal, the code, the git state, the machine and how busy its
processor and memory are, which follows the drawn batch sizes; all of that is switched off, and
explicit settings stand above WANDB_* variables. What is left was read back from the file of an
offline run of wandb 0.31: values, configuration, times of points, Python's and wandb's version.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpft.errors import InputError
from dpft.training.trackers.base import TRACKING, Place, TrackerConfig, require_package

if TYPE_CHECKING:
    import wandb

FINISH_SECONDS = 60
"""What the upload of the last points may take before the run goes on without it."""


@TRACKING.register("wandb")
@dataclass(frozen=True, kw_only=True)
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
                    "tracking=wandb needs a key of wandb, got none; run `wandb login`, set"
                    " WANDB_API_KEY, or keep the run here with tracking.mode=offline."
                )

    def open(self, place: Place) -> "WandbRun":
        """Returns the run at wandb, or with its id the one that an earlier session began."""
        with _no_reports():
            import wandb

            try:
                run = wandb.init(config=dict(place.config), settings=self._settings(place))
            except wandb.Error as error:
                raise InputError(
                    f"tracking=wandb could not begin a run: {' '.join(str(error).split())}; mend"
                    " that, or keep the run here with tracking.mode=offline."
                ) from error
        # They name folders of this machine, and nothing needs them.
        shutil.rmtree(Path(run.dir).parent / "logs", ignore_errors=True)
        return WandbRun(run)

    def _settings(self, place: Place) -> "wandb.Settings":
        import wandb

        return wandb.Settings(
            mode=self.mode,
            project=self.project,
            entity=self.entity,
            run_name=self.run_name,
            run_id=place.run_id,
            resume="allow" if self.mode == "online" else None,
            root_dir=str(place.folder),
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
        """Writes to ``run``."""
        self._run = run

    def write(self, step: int, values: Mapping[str, float], seconds: float) -> None:
        """See ``Tracker``."""
        self._run.log({**values, "_timestamp": seconds}, step=step, commit=True)

    def conclude(self, step: int, values: Mapping[str, float], seconds: float) -> None:
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
        raise InputError(f"tracking=wandb cannot read the key of wandb: {reason}") from error


@contextmanager
def _no_reports() -> Iterator[None]:
    """Keeps wandb from reporting its own errors to its makers; it asks the environment once."""
    name = "WANDB_ERROR_REPORTING"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
