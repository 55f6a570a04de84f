"""From the words of a command to what Hydra composes them to, without Hydra's command line.

The command line proper starts from ``hydra.main``, which runs sweeps too; what it hands on is the
same ``Composed``, so that words mean one thing wherever they are written.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from dpft.config.hydra_errors import as_input_error
from dpft.config.keys import WITNESS, known_keys
from dpft.config.location import config_directory
from dpft.config.words import Words
from dpft.run_folder import CONFIGURATION, HYDRA, OVERRIDES


@dataclass(frozen=True, kw_only=True)
class Composed:
    """What the words of one job compose to."""

    values: DictConfig
    """The configuration, without Hydra's own node."""
    hydra: DictConfig
    """Hydra's own node."""
    words: Words

    def write_record(self, folder: Path) -> None:
        """Write ``.hydra/{config,hydra,overrides}.yaml`` into a run's folder, as Hydra does.

        Args:
            folder: The run's folder; it exists.
        """
        record = folder / HYDRA
        record.mkdir(exist_ok=True)
        shown = self.values.copy()
        if OmegaConf.select(shown, WITNESS) is not None:
            OmegaConf.update(shown, WITNESS, None)
        OmegaConf.save(shown, record / CONFIGURATION)
        public = OmegaConf.create({"hydra": OmegaConf.to_container(self.hydra, resolve=False)})
        for name in ("cwd", "output_dir", "config_sources"):
            # absolute paths: they name the user and the machine
            public.hydra.runtime.pop(name, None)
        words = [word for word in self.words.job if not _names_witness(word)]
        if len(words) < len(self.words.job):
            public.hydra.overrides.task = words
            public.hydra.job.override_dirname = ",".join(words)
        OmegaConf.save(public, record / "hydra.yaml")
        OmegaConf.save(OmegaConf.create(words), folder / OVERRIDES)

    @property
    def folder(self) -> Path:
        """The folder that ``hydra.run.dir`` gives the job, unless it stands elsewhere."""
        return Path(str(self.hydra.run.dir))


def compose(name: str, overrides: Sequence[str], root: type) -> Composed:
    """Returns what the words of a command compose to.

    Args:
        name: The command's, whose primary configuration is ``conf/<name>.yaml``.
        overrides: ``key=value`` and ``group=option``, as on the command line.
        root: The dataclass of the configuration, whose keys a refusal may suggest.

    Raises:
        InputError: They cannot be composed.
    """
    register_resolver()
    try:
        with hydra_of_our_own():
            composed = hydra.compose(name, overrides=list(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise as_input_error(error, known_keys(root)) from error
    own = composed.hydra
    values = composed.copy()
    with open_dict(values):
        del values["hydra"]
    return Composed(
        values=values,
        hydra=own,
        words=Words(job=tuple(own.overrides.task), typed=tuple(overrides)),
    )


@contextmanager
def hydra_of_our_own() -> Iterator[None]:
    """Sets Hydra up for dpft's configurations inside the block; a caller's own setup comes back."""
    state = GlobalHydra.instance()
    before = state.hydra
    state.clear()
    try:
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            yield
    finally:
        GlobalHydra.set_instance(state)
        state.hydra = before


def unused_folder(path: str) -> str:
    """Returns ``path``, or ``path-2``, ``path-3``, … : the first that does not exist yet.

    The time in a folder's name has a resolution of one second; runs may start closer together.
    """
    candidates = itertools.chain([path], (f"{path}-{number}" for number in itertools.count(2)))
    return next(candidate for candidate in candidates if not Path(candidate).exists())


def register_resolver() -> None:
    """Make ``${unused_folder:PATH}`` known to OmegaConf; one configuration gets one answer."""
    OmegaConf.register_new_resolver("unused_folder", unused_folder, use_cache=True, replace=True)


def _names_witness(word: str) -> bool:
    return word.lstrip("+~").partition("=")[0] == WITNESS
