"""What the running job of Hydra was started with: its words, its folder and Hydra's record of it.

Hydra itself would write the record before the run has checked its configuration.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import cast

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from dpft.config.composing import Composed
from dpft.config.words import Words

_job: ContextVar[Composed | None] = ContextVar("job", default=None)


@contextmanager
def recorded_job(config: DictConfig, words: Sequence[str] = ()) -> Iterator[None]:
    """Keep what a job was started with at hand inside the block.

    Args:
        config: The job's configuration.
        words: The words of the command line itself; Hydra counts a sweep's parameters in a YAML
            file among the job's overrides.
    """
    node = cast(DictConfig, HydraConfig.get())
    overrides = Words(job=tuple(node.overrides.task), typed=tuple(words))
    token = _job.set(Composed(values=config, hydra=node, words=overrides))
    try:
        yield
    finally:
        _job.reset(token)


def composed_job() -> Composed:
    """Returns what the running job was started with."""
    job = _job.get()
    assert job is not None, "only a job of recorded_job has been started with anything"
    return job


def write_hydra_record(folder: Path) -> None:
    """Write ``.hydra/`` of the running job into a run's folder.

    Args:
        folder: The run's folder; it exists.
    """
    composed_job().write_record(folder)


def run_folder() -> Path:
    """Returns the folder Hydra gave the running job, absolute."""
    return Path(HydraConfig.get().runtime.output_dir)
