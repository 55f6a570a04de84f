"""``dpft train``: fine-tunes, evaluates and reports; goes on with ``resume=RUN``."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig

from dpft.cli.subcommand import composed_job, run_folder, write_hydra_record
from dpft.config.composing import Words
from dpft.config.keys import key_of, quoted
from dpft.config.schema import TrainCommand
from dpft.files import check_writable
from dpft.parallel.parallel_config import check_start
from dpft.parallel.rank_environment import is_beside_first
from dpft.runs.run_plan import announce, early_calibration, plan_run
from dpft.runs.saved_run import saved_run
from dpft.startup import LIBRARIES, READING, doing, shown_startup
from dpft.training.trackers import TrackerConfig

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


def run(command: TrainCommand) -> None:
    """Trains in the folder that Hydra made, or goes on in the one that ``resume`` names."""
    if command.launch.name != "none":
        from dpft.parallel.processes import launch

        launch(command.launch, words_of_processes(command))
        return
    check_start(command.parallel)
    announce(command)
    with ExitStack() as early:
        if not is_beside_first():
            early.enter_context(shown_startup())
        doing(READING)
        calibrate = None
        if command.resume is None:
            from dpft.runs.held_out import read_early

            if isinstance(command.tracking, TrackerConfig):
                command.tracking.check()
            if not is_beside_first():
                check_writable(run_folder())
            calibrate = early.enter_context(early_calibration(command))
            early.enter_context(read_early(command))
        doing(LIBRARIES)
        from dpft.runs import run as runs
        from dpft.runs.ending import show_ending

        folder = run_folder() if command.resume is None else Path(command.resume)
        planner = plan_run if calibrate is None else partial(plan_run, calibrate=calibrate)
        runs.run(command, folder, write_request=write_hydra_record, planner=planner)
    if not is_beside_first():
        show_ending(folder, saved_run(str(folder)).task)
