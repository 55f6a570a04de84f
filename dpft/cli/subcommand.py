"""What a subcommand of the command line has to say, and the Hydra job that runs it.

A job is started with words, and has a folder and Hydra's record of it; Hydra itself would write the
record before the run has checked its configuration.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from dpft.config.composing import Composed, Words, naming_recipe
from dpft.config.help_text import command_help, composed_command
from dpft.config.keys import known_keys
from dpft.config.load import ClassChoice, config_directory, load
from dpft.errors import note_records_read
from dpft.runs.exit_codes import crash_kept, exit_code_of_job

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
    """Write ``.hydra/`` of the running job into a run's folder."""
    composed_job().write_record(folder)


def run_folder() -> Path:
    """Returns the folder Hydra gave the running job, absolute."""
    return Path(HydraConfig.get().runtime.output_dir)


@dataclass(frozen=True, kw_only=True)
class Subcommand:
    """A subcommand, whose YAML is ``conf/<name>.yaml``."""

    config: type
    """The root dataclass."""
    run: Callable[[Any], None]
    """The work, given an instance of the root dataclass."""
    polymorphic: Mapping[str, ClassChoice] = field(default_factory=dict)
    """Dotted key to the function from its values to its dataclass."""
    expand: Callable[[list[str]], list[str]] = list
    """Applied to the override arguments before Hydra."""
    reads_records: bool = True
    """Whether an error that nobody foresaw may quote a record."""
    reads_rows_alone: bool = False
    """Whether it reads nothing of records but rows, by
    ``dpft.data``, which notes that; any other command counts as reading them when it begins."""
    takes_bare_words: bool = False
    """Whether ``expand`` makes overrides of words without a key."""
    configuration: Callable[[DictConfig, Words], Any] | None = None
    """Makes of what was composed, and of the words, what is run; None: the composed values are."""

    def run_job(self, config: DictConfig) -> int:
        """Run the subcommand on one composed configuration and return its exit code."""
        return exit_code_of_job(partial(self._run, config), withhold=self.reads_records)

    def load(self, config: DictConfig, words: Words) -> Any:
        """Returns what ``run`` is given.

        Raises:
            InputError: It is incomplete or wrong, in all these ways.
        """
        if self.configuration is not None:
            return self.configuration(config, words)
        return load(config, self.config, polymorphic=self.polymorphic)

    def keys(self, name: str) -> set[str]:
        """Returns the keys that its configuration takes by default, and its groups."""
        folders = [config_directory()]
        command = composed_command(name, [], self.config, self.polymorphic, folders=folders)
        composed = command.keys()
        return {*known_keys(self.config), *command.choices, *(key.name for key in composed)}

    def help(self, name: str, words: Sequence[str], flags: Sequence[str]) -> str:
        """Returns the text of ``--help``, of all or of the groups and keys that words name."""
        own = get_args_parser().parse_args(flags).config_dir
        folders = [config_directory(), *([] if own is None else [Path(own).absolute()])]
        return command_help(name, words, self.config, self.polymorphic, folders=folders)

    def _run(self, config: DictConfig) -> None:
        words = composed_job().words
        loaded = self.load(config, words)
        with naming_recipe(words):
            if not self.reads_records:
                self.run(loaded)
                return
            if not self.reads_rows_alone:
                note_records_read()
            with crash_kept(run_folder()):
                self.run(loaded)
