"""Execution of a subcommand under Hydra: from overrides to a validated configuration and exit code.

All features of Hydra work as in its documentation (overrides, ``--multirun``, ``--cfg job``,
``--help``, ``--config-dir``, ``hydra.run.dir``). Only the error messages come from dpft.
"""

import errno
import os
import shlex
import sys
from argparse import ArgumentError
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from uuid import uuid4

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig

from dpft.cli import SHELL_COMPLETION
from dpft.cli.commands import Subcommand, composed_job, recorded_job, run_folder
from dpft.cli.commands import subcommand as subcommand_of
from dpft.cli.jobs import (
    SweptJob,
    exit_code_noted,
    in_task,
    launch_error,
    lost_process,
    remove_empty_folders,
    requeued_if_preempted,
    say_where_jobs_speak,
    sweep_folder,
    swept_jobs,
)
from dpft.commands.exit_codes import ExitStatus, crash_kept, errors_reported
from dpft.config.hydra_compose import (
    NOT_COMPOSED,
    as_input_error,
    check_groups,
    full_errors,
    given_text,
    register_resolver,
)
from dpft.config.keys import in_shell, known_keys, nearest_keys
from dpft.config.load import config_directory
from dpft.errors import Fault, InputError, note_records_read
from dpft.parallel.parallel_config import refuse_several, world
from dpft.parallel.rank_environment import is_other_rank
from dpft.run_folder import LEDGER, TUNING

NO_FOLDER = (errno.EEXIST, errno.ENOTDIR, errno.ENOENT, errno.ENAMETOOLONG)
"""Error numbers of the system if Hydra cannot create the folder of a run."""
Keys = Callable[[], Collection[str]]
"""Function that returns the keys and groups of a subcommand; each call composes a configuration."""


def run_hydra(name: str, arguments: Sequence[str]) -> int:
    """Compose the configuration, run the job or the jobs of a sweep, and return the exit code.

    A failing job does not stop the other jobs of its sweep. The highest exit code is returned.
    """
    subcommand = subcommand_of(name)
    keys = partial(subcommand.keys, name)
    flags, overrides = split_arguments(name, arguments, keys)
    if {"--help", "-h"} & set(flags):
        print(subcommand.help(name, overrides, flags))
        return 0
    if not subcommand.takes_bare_words:
        refuse_bare_words(name, overrides, keys)
    check_groups(overrides)
    refuse_shared_sweep(name, overrides, flags)
    words = subcommand.expand(overrides)
    if is_other_rank():
        words = [*words, "hydra.run.dir=."]  # only rank 0 uses the run's folder
    known = known_keys(subcommand.config)
    return start_hydra(name, [*words, *flags], subcommand, known=known)


def refuse_bare_words(name: str, overrides: Sequence[str], keys: Keys) -> None:
    """Reject arguments without a key, or with blanks around the equals sign."""
    for place, word in enumerate(overrides):
        cut = _cut_word(overrides[place : place + 3])
        if cut is not None:
            written, meant = cut
            raise InputError(
                f"dpft {name} takes KEY=VALUE without blanks around =, got {written!r}.",
                key=meant.partition("=")[0],
                value=written,
                hint=shlex.quote(meant),
            )
        if "=" in word[1:] or word[:1] in ("~", "+"):
            continue
        following = overrides[place + 1 : place + 2]
        if word in keys() and following and "=" not in following[0]:
            hint = shlex.quote(f"{word}={following[0]}")
        elif "run" in keys():
            hint = shlex.quote(f"run={word}")
        else:
            of_group = [file.parent.name for file in config_directory().glob(f"*/{word}.yaml")]
            near = [word] if word in keys() else nearest_keys(word, keys())
            ways = [f"{group}={word}" for group in of_group] or [f"{key}=VALUE" for key in near]
            hint = ways[0] if ways else f"dpft {name} --help"
        raise InputError(
            f"dpft {name} takes KEY=VALUE, got {word!r}.", key=None, value=word, hint=hint
        )


def _cut_word(words: Sequence[str]) -> tuple[str, str] | None:
    """Return an override that a shell split at blanks around ``=``, as written and as intended."""
    first, second, third = [*words, "", ""][:3]
    key = first.removesuffix("=")
    if not key or "=" in key:
        return None
    if first != key:  # KEY= VALUE; a single KEY= sets an empty text.
        return (f"{first} {second}", f"{key}={second}") if second and "=" not in second else None
    if second == "=":
        return f"{first} = {third}".rstrip(), f"{key}={third or 'VALUE'}"
    return (f"{first} {second}", f"{key}{second}") if second[:1] == "=" else None


def refuse_shared_sweep(name: str, overrides: Sequence[str], flags: Sequence[str]) -> None:
    """Reject a sweep in a process that belongs to a run of several processes."""
    there = world()
    if there is None or there.size == 1:
        return
    asked = get_args_parser().parse_args(flags).multirun
    if asked or given_text(overrides, "hydra.mode") == "MULTIRUN":
        raise InputError(
            f"--multirun must be started in one process, got {there.size}. Run dpft {name}"
            " --multirun without torchrun or srun, with launch=local if each run needs several"
            " processes.",
            key="--multirun",
            value=there.size,
        )


def start_hydra(
    name: str, arguments: list[str], subcommand: Subcommand, *, known: list[str]
) -> int:
    """Call ``hydra.main`` and return the highest exit code of its jobs."""
    codes: list[int] = []
    command = uuid4().hex
    conf = str(config_directory())

    @hydra.main(version_base="1.3", config_path=conf, config_name=name)
    def job(config: DictConfig) -> None:
        outcome = ExitStatus()
        with (
            in_task() as task,
            recorded_job(config, arguments),
            exit_code_noted(outcome, command),
            requeued_if_preempted(outcome, task),
            errors_reported(outcome, withhold=subcommand.reads_records),
        ):
            refuse_several(name)  # A submitit task now knows its job's other tasks.
            configuration = subcommand.load(config, composed_job().words)
            if subcommand.reads_records and not subcommand.reads_rows_alone:
                note_records_read()
            with crash_kept(run_folder()) if subcommand.reads_records else nullcontext():
                subcommand.run(configuration)
        codes.append(outcome.exit_code)

    jobs: list[SweptJob] = []
    register_resolver()
    program = "dpft" if set(SHELL_COMPLETION) & set(arguments) else f"dpft {name}"
    with full_errors(), command_line([program, f"hydra.job.name={name}", *arguments]):
        try:
            job()
        except NOT_COMPOSED as error:
            raise as_input_error(error, known, arguments) from error
        except BrokenExecutor as error:
            raise lost_process(error) from error
        except OSError as error:
            if error.errno not in NO_FOLDER or not error.filename:
                raise
            raise InputError(
                f"The folder {error.filename} cannot be made ({error.strerror}). Choose another"
                " folder with hydra.run.dir=DIR, or with hydra.sweep.dir=DIR for a sweep.",
                key=str(error.filename),
            ) from error
        except (RuntimeError, ValueError) as error:
            if str(error).startswith("Only one of --run"):
                raise InputError(f"{error}. Remove the others.", key=None) from error
            said = launch_error(error)
            if said is None:
                raise
            raise said from error
        finally:
            sweep = sweep_folder()
            if sweep is not None:
                jobs += swept_jobs(sweep, command)
                name_the_cost(sweep, [job.folder for job in jobs])
                say_where_jobs_speak(jobs)
            remove_empty_folders(job.folder for job in jobs)
    return max([*codes, *(job.exit_code for job in jobs)], default=0)


def name_the_cost(sweep: Path, job_folders: Sequence[Path]) -> None:
    """Print how to compute the total privacy cost of a sweep if its runs have spent anything."""
    if any((folder / TUNING).exists() for folder in job_folders):
        print("privacy: all searches of this sweep cost the sum of their epsilons and deltas.")
    elif any((folder / LEDGER).exists() for folder in job_folders):
        command = f"dpft account {in_shell('runs', os.path.relpath(sweep))}"
        print(f"privacy: each run spent its own epsilon. For the total cost, run: {command}")


def split_arguments(name: str, arguments: Sequence[str], keys: Keys) -> tuple[list[str], list[str]]:
    """Return Hydra's flags (with their values) and the overrides, each in order.

    Raises:
        InputError: Hydra has no such flag, or the flag would load a pickled configuration.
    """
    parser = get_args_parser()
    parser.prog, parser.exit_on_error = f"dpft {name}", False
    try:
        parsed, unknown = parser.parse_known_intermixed_args(arguments)
    except ArgumentError as error:
        raise InputError(
            f"dpft {name}: {error}.", key=error.argument_name, hint=f"dpft {name} --help"
        ) from None
    if unknown:
        raise InputError(_unknown_flag(name, unknown[0], arguments, keys))
    if parsed.experimental_rerun is not None:
        raise InputError(
            "--experimental-rerun reads a pickle, which dpft does not support. Repeat the overrides"
            " instead, which are in the run's .hydra/overrides.yaml.",
            key="--experimental-rerun",
            value=parsed.experimental_rerun,
        )
    flags = list(arguments)
    for override in parsed.overrides:
        flags.remove(override)
    return flags, parsed.overrides


def _unknown_flag(name: str, flag: str, arguments: Sequence[str], keys: Keys) -> Fault:
    """Return the fault of an unknown flag, with the key that was probably meant as its hint."""
    option, equals, value = flag.partition("=")
    key = option.lstrip("-").replace("-", "_")
    after = list(arguments)[list(arguments).index(flag) + 1 :][:1]
    if not equals and after and after[0][:1] != "-" and "=" not in after[0]:
        flag, value = f"{flag} {after[0]}", after[0]
    near = [key] if key in keys() else nearest_keys(key, keys())
    hint = shlex.quote(f"{near[0]}={value or 'VALUE'}") if near else f"dpft {name} --help"
    return Fault(f"dpft {name} takes KEY=VALUE, got {flag!r}.", key=option, value=flag, hint=hint)


@contextmanager
def command_line(arguments: list[str]) -> Iterator[None]:
    """Replace ``sys.argv``, which ``hydra.main`` reads, inside the block."""
    before = sys.argv
    sys.argv = arguments
    try:
        yield
    finally:
        sys.argv = before
