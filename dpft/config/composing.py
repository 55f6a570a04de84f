"""From the words of a command to what Hydra composes them to, without Hydra's command line.

The command line proper starts from ``hydra.main``, which runs sweeps too; what it hands on is the
same ``Composed``, so that words mean one thing wherever they are written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf, open_dict

from dpft.config.hydra_errors import (
    NOT_COMPOSED,
    Load,
    all_faults,
    hydra_of_our_own,
    register_resolver,
)
from dpft.config.keys import WITNESS, key_of, known_keys
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
        words = [word for word in self.words.job if key_of(word) != WITNESS]
        if len(words) < len(self.words.job):
            public.hydra.overrides.task = words
            public.hydra.job.override_dirname = ",".join(words)
        OmegaConf.save(public, record / "hydra.yaml")
        OmegaConf.save(OmegaConf.create(words), folder / OVERRIDES)

    @property
    def folder(self) -> Path:
        """The folder that ``hydra.run.dir`` gives the job, unless it stands elsewhere."""
        return Path(str(self.hydra.run.dir))


def compose(name: str, overrides: Sequence[str], root: type, load: Load | None = None) -> Composed:
    """Returns what the words of a command compose to.

    Args:
        name: The command's, whose primary configuration is ``conf/<name>.yaml``.
        overrides: ``key=value`` and ``group=option``, as on the command line.
        root: The dataclass of the configuration, whose keys a refusal may suggest.
        load: Makes the dataclasses of what is composed; asked for what else is wrong where the
            words cannot be composed.

    Raises:
        InputError: They cannot be composed, for all these reasons.
    """
    register_resolver()
    try:
        with hydra_of_our_own():
            composed = hydra.compose(name, overrides=list(overrides), return_hydra_config=True)
    except NOT_COMPOSED as error:
        raise all_faults(name, overrides, error, known=known_keys(root), load=load) from error
    own = composed.hydra
    values = composed.copy()
    with open_dict(values):
        del values["hydra"]
    return Composed(
        values=values,
        hydra=own,
        words=Words(job=tuple(own.overrides.task), typed=tuple(overrides)),
    )
