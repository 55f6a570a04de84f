"""``dpft train``: fine-tunes, evaluates and reports; goes on with ``resume=RUN``."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from dpft.cli.hydra_record import run_folder, write_hydra_record
from dpft.cli.launched import words_of_processes
from dpft.config.schema import POLYMORPHIC, TrainCommand
from dpft.parallel.parallel_config import check_start
from dpft.parallel.silence import is_beside_first
from dpft.runs.announcing import announce
from dpft.runs.configuring import train_configuration as configuration
from dpft.runs.early_calibration import early_calibration
from dpft.runs.overrides import checked_overrides as expand
from dpft.runs.run_plan import plan_run
from dpft.runs.saved_run import saved_run
from dpft.startup import LIBRARIES, READING, doing, shown_startup
from dpft.training.trackers.base import TrackerConfig

CONFIG = TrainCommand
READS_ROWS_ALONE = True

__all__ = ["CONFIG", "POLYMORPHIC", "READS_ROWS_ALONE", "configuration", "expand", "run"]


def run(command: TrainCommand) -> None:
    """Trains in the folder that Hydra made, or goes on in the one that ``resume`` names."""
    if command.launch.name != "none":
        from dpft.parallel.launching import launch

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
            from dpft.runs.training_data import read_early

            if isinstance(command.tracking, TrackerConfig):
                command.tracking.check()
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
