"""Hydra's record of a run, ``.hydra/``, written when the run decides to.

Hydra itself would write it before the run has checked its configuration.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

_job_config: ContextVar[DictConfig | None] = ContextVar("job_config", default=None)


@contextmanager
def recorded_job(config: DictConfig) -> Iterator[None]:
    """Keep a job's configuration at hand for ``write_hydra_record`` inside the block."""
    token = _job_config.set(config)
    try:
        yield
    finally:
        _job_config.reset(token)


def write_hydra_record(folder: Path) -> None:
    """Write ``.hydra/{config,hydra,overrides}.yaml`` into a run's folder, as Hydra does.

    Outside a Hydra job (dpft used as a library) there is nothing to record, and nothing is written.

    Args:
        folder: The run's folder; it exists.
    """
    config = _job_config.get()
    if config is None:
        return
    hydra = HydraConfig.get()
    record = folder / ".hydra"
    record.mkdir(exist_ok=True)
    OmegaConf.save(config, record / "config.yaml")
    public = OmegaConf.create({"hydra": OmegaConf.to_container(hydra, resolve=False)})
    for name in ("cwd", "output_dir", "config_sources"):
        del public.hydra.runtime[name]  # absolute paths: they name the user and the machine
    OmegaConf.save(public, record / "hydra.yaml")
    OmegaConf.save(hydra.overrides.task, record / "overrides.yaml")


def run_folder() -> Path:
    """Returns the folder Hydra gave the running job, absolute."""
    return Path(HydraConfig.get().runtime.output_dir)
