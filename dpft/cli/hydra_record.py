"""Hydra's record of a run, ``.hydra/``, written when the run decides to.

Hydra itself would write it before the run has checked its configuration.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from dpft.config.keys import WITNESS
from dpft.config.words import Words
from dpft.run_folder import CONFIGURATION, HYDRA, OVERRIDES

_job_config: ContextVar[DictConfig | None] = ContextVar("job_config", default=None)
_words: ContextVar[tuple[str, ...]] = ContextVar("words", default=())


@contextmanager
def recorded_job(config: DictConfig, words: Sequence[str] = ()) -> Iterator[None]:
    """Keep what a job was started with at hand inside the block.

    Args:
        config: The job's configuration, for ``write_hydra_record``.
        words: The words of the command line itself; Hydra counts a sweep's parameters in a YAML
            file among the job's overrides.
    """
    tokens = _job_config.set(config), _words.set(tuple(words))
    try:
        yield
    finally:
        _job_config.reset(tokens[0])
        _words.reset(tokens[1])


def words_of_job() -> Words:
    """Returns what the running job was started with."""
    return Words(job=tuple(HydraConfig.get().overrides.task), typed=_words.get())


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
    record = folder / HYDRA
    record.mkdir(exist_ok=True)
    shown = config.copy()
    if OmegaConf.select(shown, WITNESS) is not None:
        OmegaConf.update(shown, WITNESS, None)
    OmegaConf.save(shown, record / CONFIGURATION)
    public = OmegaConf.create({"hydra": OmegaConf.to_container(hydra, resolve=False)})
    for name in ("cwd", "output_dir", "config_sources"):
        del public.hydra.runtime[name]  # absolute paths: they name the user and the machine
    words = [word for word in hydra.overrides.task if not _names_witness(word)]
    if len(words) < len(hydra.overrides.task):
        public.hydra.overrides.task = words
        public.hydra.job.override_dirname = ",".join(words)
    OmegaConf.save(public, record / "hydra.yaml")
    OmegaConf.save(OmegaConf.create(words), folder / OVERRIDES)


def _names_witness(word: str) -> bool:
    return word.lstrip("+~").partition("=")[0] == WITNESS


def run_folder() -> Path:
    """Returns the folder Hydra gave the running job, absolute."""
    return Path(HydraConfig.get().runtime.output_dir)
