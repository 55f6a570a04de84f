"""The words with which ``launch=local`` starts the processes of a run."""

from collections.abc import Sequence

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig

from dpft.cli.hydra_record import composed_job, run_folder
from dpft.config.keys import key_of, quoted
from dpft.config.schema import TrainCommand
from dpft.config.words import Words

OF_THE_COMMAND = ("launch", "hydra.run", "hydra.mode", "hydra.sweep", "hydra.job.name")
"""How the keys begin that are for the command that starts the processes, not for them."""
OF_SWEEPS = ("hydra/launcher", "hydra/sweeper", "hydra.launcher", "hydra.sweeper")


def words_of_processes(command: TrainCommand) -> list[str]:
    """Returns the words of ``dpft`` for each process of the running job, in the job's folder.

    Args:
        command: What the job's own words were made into.
    """
    job = composed_job().words
    node = HydraConfig.get()
    kept = passed_on([*job.job, *node.overrides.hydra])
    if command.parallel.name == "none":
        kept = [word for word in kept if key_of(word) != "parallel"] + ["parallel=ddp"]
    folder = f"hydra.run.dir={quoted(str(run_folder()))}"
    return ["train", *kept, "launch=none", folder, *_flags(job)]


def passed_on(words: Sequence[str]) -> list[str]:
    """Returns the words that are for the processes, too.

    >>> passed_on(["task=e2e", "launch=local", "launch.processes=2", "hydra.run.dir=a"])
    ['task=e2e']
    """
    ours = (*OF_THE_COMMAND, *OF_SWEEPS)
    return [word for word in words if not key_of(word).startswith(ours)]


def _flags(words: Words) -> list[str]:
    """Returns Hydra's flag that says where else configurations are."""
    folder = get_args_parser().parse_intermixed_args(list(words.typed)).config_dir
    return [] if folder is None else ["--config-dir", folder]
