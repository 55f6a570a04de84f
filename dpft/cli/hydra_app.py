"""Runs a subcommand under Hydra: overrides in, dataclasses to the subcommand, an exit code out.

Everything Hydra offers works as its documentation says (overrides, ``--multirun``, ``--cfg job``,
``--help``, ``--config-dir``, ``hydra.run.dir``); only the errors are dpft's.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig

from dpft.cli import SHELL_COMPLETION
from dpft.cli.hydra_folders import remove_empty_folders, sweep_folder
from dpft.cli.hydra_record import recorded_job
from dpft.cli.main import refuse_several
from dpft.cli.subcommand import Subcommand
from dpft.cli.submitted_job import in_task, launch_error, until_preempted
from dpft.cli.swept_jobs import (
    SweptJob,
    lost_process,
    run_noting_exit_code,
    say_where_jobs_speak,
    swept_jobs,
)
from dpft.config.faults import NOT_COMPOSED, all_faults
from dpft.config.hydra_errors import as_input_error, full_errors
from dpft.config.hydra_setup import register_resolver
from dpft.config.keys import known_keys
from dpft.config.location import config_directory
from dpft.config.words import given_text
from dpft.errors import InputError
from dpft.parallel.parallel_config import world
from dpft.parallel.silence import is_beside_first
from dpft.run_folder import has_ledger_or_trials
from dpft.runs.exit_codes import exit_code_of_job


class NotComposed(InputError):
    """The words of a command line compose to no configuration; names the first that is wrong."""


def run_hydra(name: str, arguments: Sequence[str]) -> int:
    """Compose the configuration, run the job or the jobs of a sweep, and return the exit code.

    A failing job does not stop the others of its sweep; the worst exit code is returned.

    Raises:
        InputError: The configuration cannot be composed from these arguments.
    """
    flags, overrides = split_arguments(name, arguments)
    subcommand = Subcommand.of(name)
    if {"--help", "-h"} & set(flags):
        print(subcommand.help(name, overrides, flags))
        return 0
    refuse_bare_words(name, overrides)
    refuse_shared_sweep(name, overrides, flags)
    words = subcommand.expand(overrides)
    if is_beside_first():
        words = [*words, "hydra.run.dir=."]  # the folder is the first process's
    known = known_keys(subcommand.config)
    try:
        return start_hydra(name, [*words, *flags], subcommand.run_job, known=known)
    except NotComposed as error:
        if flags or not isinstance(error.__cause__, NOT_COMPOSED):
            raise
        raise all_faults(name, words, error.__cause__, known=known, load=subcommand.load) from None


def refuse_bare_words(name: str, overrides: Sequence[str]) -> None:
    """Refuses a folder given without its key to a subcommand that takes ``run=RUN``.

    Raises:
        InputError: It says the key.
    """
    bare = [word for word in overrides if "=" not in word and word[:1] not in "~+"]
    if name in ("eval", "generate", "export") and bare:
        raise InputError(f"dpft {name} takes KEY=VALUE, got {bare[0]!r}; write run={bare[0]}.")


def refuse_shared_sweep(name: str, overrides: Sequence[str], flags: Sequence[str]) -> None:
    """Refuses several runs in processes that share one.

    Raises:
        InputError: A sweep was asked for, and torchrun has started several processes.
    """
    there = world()
    if there is None or there.size == 1:
        return
    asked = get_args_parser().parse_args(flags).multirun
    if asked or given_text(overrides, "hydra.mode") == "MULTIRUN":
        raise InputError(
            f"--multirun is for one process, got {there.size} of them; sweep with dpft {name}"
            " --multirun alone, or with launch=local, which starts the processes of each run."
        )


def start_hydra(
    name: str, arguments: list[str], run_job: Callable[[DictConfig], int], *, known: list[str]
) -> int:
    """Hand over to ``hydra.main`` and return the worst exit code of its jobs.

    Raises:
        InputError: The configuration cannot be composed from these arguments.
    """
    codes: list[int] = []
    command = uuid4().hex
    conf = str(config_directory())

    @hydra.main(version_base="1.3", config_path=conf, config_name=name)
    def job(config: DictConfig) -> None:
        with in_task() as task, recorded_job(config, arguments):

            def checked() -> int:
                return exit_code_of_job(lambda: refuse_several(name)) or run_job(config)

            codes.append(run_noting_exit_code(lambda: until_preempted(checked, task), command))

    jobs: list[SweptJob] = []
    register_resolver()
    program = "dpft" if set(SHELL_COMPLETION) & set(arguments) else f"dpft {name}"
    with full_errors(), command_line([program, f"hydra.job.name={name}", *arguments]):
        try:
            job()
        except NOT_COMPOSED as error:
            raise NotComposed(*as_input_error(error, known).faults) from error
        except BrokenExecutor as error:
            raise lost_process(error) from error
        except (RuntimeError, ValueError) as error:
            said = launch_error(error)
            if said is None:
                raise
            raise said from error
        finally:
            sweep = sweep_folder()
            if sweep is not None:
                jobs += swept_jobs(sweep, command)
                print_tuning_bill(sweep, [job.folder for job in jobs])
                say_where_jobs_speak(jobs)
            remove_empty_folders(job.folder for job in jobs)
    return max([*codes, *(job.exit_code for job in jobs)], default=0)


def print_tuning_bill(sweep: Path, job_folders: Sequence[Path]) -> None:
    """Prints what the runs of a sweep cost together, also where the sweep broke off."""
    folders = list(dict.fromkeys(job_folders))
    if not any(has_ledger_or_trials(folder) for folder in folders):
        return
    from dpft.runs.tuning.bill import write_tuning_bill  # Torch, which few sweeps are without.

    bill = write_tuning_bill(sweep, folders)
    if bill:
        print(bill)


def split_arguments(name: str, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns Hydra's flags (with their values) and the overrides, each in order.

    Raises:
        InputError: The arguments ask for a configuration to be unpickled from disk.
    """
    parser = get_args_parser()
    parser.prog = f"dpft {name}"
    parsed = parser.parse_intermixed_args(arguments)
    if parsed.experimental_rerun is not None:
        raise InputError(
            "--experimental-rerun reads a pickle, and dpft unpickles nothing; "
            "give the overrides instead, they are in the run's .hydra/overrides.yaml."
        )
    flags = list(arguments)
    for override in parsed.overrides:
        flags.remove(override)
    return flags, parsed.overrides


@contextmanager
def command_line(arguments: list[str]) -> Iterator[None]:
    """Put arguments where ``hydra.main`` reads them, inside the block."""
    before = sys.argv
    sys.argv = arguments
    try:
        yield
    finally:
        sys.argv = before
