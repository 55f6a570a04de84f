"""Subcommands: the configuration class of each, and the function that does its work.

Each subcommand has a function that returns a ``Subcommand``. The function imports its dependencies
when it is called, so that no subcommand waits for the libraries of another. Its ``run`` imports
torch, if necessary, only after the configuration was checked. ``report`` has its own module.

This module keeps the overrides and the composition of the running job. The command writes Hydra's
record (``.hydra/``) itself, because Hydra would write it before the configuration is checked.

>>> subcommand("list").expand(["tasks"])
['what=tasks']
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from dpft.config.help_text import command_help, composed_command
from dpft.config.hydra_compose import Composed, Words
from dpft.config.keys import AUTO, key_of, known_keys, quoted
from dpft.config.load import config_directory, load
from dpft.errors import InputError
from dpft.parallel.parallel_config import check_restarts
from dpft.parallel.rank_environment import is_other_rank

if TYPE_CHECKING:
    from dpft.config.schema import TrainCommand


_job: ContextVar[Composed | None] = ContextVar("job", default=None)


@contextmanager
def recorded_job(config: DictConfig, words: Sequence[str] = ()) -> Iterator[None]:
    """Make the configuration and the overrides of a job available inside the block.

    Args:
        config: The configuration of the job.
        words: The arguments as typed on the command line. In a sweep, the overrides of the job also
            include parameters from a YAML file.
    """
    node = cast(DictConfig, HydraConfig.get())
    overrides = Words(job=tuple(node.overrides.task), typed=tuple(words))
    token = _job.set(Composed(values=config, hydra=node, words=overrides))
    try:
        yield
    finally:
        _job.reset(token)


def composed_job() -> Composed:
    """Return the composed configuration and the overrides of the running job."""
    job = _job.get()
    assert job is not None, "only a job of recorded_job has been started with anything"
    return job


def run_folder() -> Path:
    """Return the absolute path of the folder that Hydra gave the running job."""
    return Path(HydraConfig.get().runtime.output_dir)


@dataclass(frozen=True, kw_only=True)
class Subcommand:
    """Subcommand, whose YAML is ``conf/<name>.yaml``."""

    config: type
    """Root class of the configuration."""
    run: Callable[[Any], None]
    """Function that does the work, given an instance of the root class."""
    expand: Callable[[list[str]], list[str]] = list
    """Function that is applied to the overrides before Hydra composes them."""
    reads_records: bool = True
    """Whether the message of an unexpected error may quote a record."""
    reads_rows_alone: bool = False
    """Whether the command reads records only through ``dpft.data``, which notes the first read. Any
    other command with ``reads_records`` counts as having read records from its start."""
    takes_bare_words: bool = False
    """Whether ``expand`` turns arguments without a key into overrides."""
    configuration: Callable[[DictConfig, Words], Any] | None = None
    """Function that makes the argument of ``run`` from the composed values and the overrides. If
    None, ``run`` receives the validated values themselves."""

    def load(self, config: DictConfig, words: Words) -> Any:
        """Return the argument of ``run``."""
        if self.configuration is not None:
            return self.configuration(config, words)
        return load(config, self.config)

    def keys(self, name: str) -> set[str]:
        """Return the groups of the configuration, and the keys of its default composition."""
        folders = [config_directory()]
        command = composed_command(name, [], self.config, folders=folders)
        composed = command.keys()
        return {*known_keys(self.config), *command.choices, *(key.name for key in composed)}

    def help(self, name: str, words: Sequence[str], flags: Sequence[str]) -> str:
        """Return the text of ``--help``, for the whole command or for the named groups and keys."""
        own = get_args_parser().parse_args(flags).config_dir
        folders = [config_directory(), *([] if own is None else [Path(own).absolute()])]
        return command_help(name, words, self.config, folders=folders)


def subcommand(name: str) -> Subcommand:
    """Return the subcommand with the given name, and import its dependencies."""
    return _SUBCOMMANDS[name]()


def _train() -> Subcommand:
    """Return ``dpft train``, which starts its own processes if ``launch`` is set."""
    from dpft.commands.overrides import checked_overrides, train_configuration
    from dpft.config.schema import TrainCommand
    from dpft.parallel.parallel_config import check_start
    from dpft.run_folder import check_writable

    def run(command: TrainCommand) -> None:
        from dpft.commands.ledger_account import saved_run
        from dpft.commands.run_plan import announce
        from dpft.commands.splits import read_early
        from dpft.startup import LIBRARIES, READING, show_startup_stage, shown_startup
        from dpft.training.trackers import TrackerConfig

        check_restarted(command.resume, takes_auto=True)
        if command.launch.name != "none":
            from dpft.parallel.processes import launch

            launch(command.launch, words_of_processes(command))
            return
        check_start(command.parallel)
        announce(command)
        with ExitStack() as early:
            if not is_other_rank():
                early.enter_context(shown_startup())
            show_startup_stage(READING)
            if command.resume in (None, AUTO):
                if isinstance(command.tracking, TrackerConfig):
                    command.tracking.check()
                if not is_other_rank():
                    check_writable(run_folder())
            rows = read_early(command) if command.resume is None else None
            show_startup_stage(LIBRARIES)
            from dpft.commands.closing_summary import show_ending
            from dpft.commands.train import train

            folder = _folder(command.resume)
            train(command, folder, rows=rows, composed=composed_job())
        if not is_other_rank():
            show_ending(folder, saved_run(str(folder)).task)

    return Subcommand(
        config=TrainCommand,
        run=run,
        expand=checked_overrides,
        reads_rows_alone=True,
        configuration=train_configuration,
    )


def _plan() -> Subcommand:
    from dpft.commands.overrides import checked_overrides, plan_configuration
    from dpft.config.schema import PlanConfig

    def run(config: PlanConfig) -> None:
        from dpft.commands.plan import describe_run
        from dpft.models.loading import quiet_transformers
        from dpft.reports.plan_table import plan_table
        from dpft.reports.terminal import Answer, show_answer

        quiet_transformers()
        planned = describe_run(config)
        table = plan_table(planned.record, planned.plan.privacy, planned.accounting)
        show_answer(Answer(table=table, record=planned.record), config.output)

    return Subcommand(
        config=PlanConfig,
        run=run,
        expand=checked_overrides,
        reads_rows_alone=True,
        configuration=plan_configuration,
    )


def _tune() -> Subcommand:
    from dpft.commands.overrides import checked_overrides, tune_configuration
    from dpft.config.tune import TuneCommand

    def run(command: TuneCommand) -> None:
        from dpft.commands.run_plan import announce

        check_restarted(command.resume)
        announce(command)
        from dpft.commands import tune as tuning
        from dpft.commands.closing_summary import show_ending
        from dpft.commands.ledger_account import saved_run

        folder = _folder(command.resume)
        tuning.run(command, folder, composed=composed_job())
        show_ending(folder, saved_run(str(folder)).task)

    return Subcommand(
        config=TuneCommand,
        run=run,
        expand=checked_overrides,
        configuration=tune_configuration,
    )


def _tokenizer() -> Subcommand:
    from dpft.commands.overrides import tokenizer_configuration
    from dpft.config.schema import TokenizerCommand

    def expand(overrides: list[str]) -> list[str]:
        """Return the overrides with ``privacy=none`` replaced by the key of this command."""
        return ["privacy.name=none" if word == "privacy=none" else word for word in overrides]

    def run(command: TokenizerCommand) -> None:
        from dpft.commands.tokenizer import make_tokenizer
        from dpft.reports.terminal import show_answer

        check_restarted(command.resume)
        folder = _folder(command.resume)
        answer = make_tokenizer(command, folder, composed=composed_job())
        show_answer(answer, command.output)

    return Subcommand(
        config=TokenizerCommand,
        run=run,
        expand=expand,
        configuration=tokenizer_configuration,
    )


def _eval() -> Subcommand:
    from dpft.commands.overrides import evaluate_configuration, evaluate_overrides
    from dpft.config.schema import EvaluateConfig

    def run(config: EvaluateConfig) -> None:
        from dpft.commands.evaluate import evaluate, show_scores

        folder = _folder(config.run)
        evaluations = evaluate(config, folder, composed=composed_job())
        show_scores(config, evaluations, folder)

    return Subcommand(
        config=EvaluateConfig,
        run=run,
        expand=evaluate_overrides,
        configuration=evaluate_configuration,
    )


def _generate() -> Subcommand:
    from dpft.commands.overrides import generate_configuration, with_task_of_run
    from dpft.config.schema import GenerateConfig

    def run(config: GenerateConfig) -> None:
        from dpft.commands.generate import generate

        generate(config)

    return Subcommand(
        config=GenerateConfig,
        run=run,
        expand=with_task_of_run,
        configuration=generate_configuration,
    )


def _synthesize() -> Subcommand:
    from dpft.synthesis.config import SynthesizeConfig, configuration, expand

    def run(config: SynthesizeConfig) -> None:
        from dpft.reports.terminal import show_answer
        from dpft.synthesis.command import make_table

        check_restarted(config.resume)
        answer = make_table(config, _folder(config.resume))
        if answer is not None:
            show_answer(answer, config.output)

    return Subcommand(
        config=SynthesizeConfig,
        run=run,
        expand=expand,
        configuration=configuration,
    )


def _account() -> Subcommand:
    from dpft.commands.account import answer
    from dpft.config.account import AccountConfig
    from dpft.reports.terminal import show_answer

    def run(config: AccountConfig) -> None:
        show_answer(answer(config), config.output)

    return Subcommand(config=AccountConfig, run=run, reads_records=False)


def _export() -> Subcommand:
    from dpft.config.schema import ExportConfig

    def run(config: ExportConfig) -> None:
        from dpft.commands.export import export

        export(config)

    return Subcommand(config=ExportConfig, run=run, reads_records=False)


def _audit() -> Subcommand:
    from dpft.audit.base import AuditConfig

    def run(config: AuditConfig) -> None:
        from dpft.audit.command import audit, show

        show(audit(config), config)

    return Subcommand(config=AuditConfig, run=run)


def _report() -> Subcommand:
    from dpft.commands.report import ReportConfig, expand, run

    return Subcommand(config=ReportConfig, run=run, expand=expand, takes_bare_words=True)


def _list() -> Subcommand:
    from dpft.commands.listing import ListConfig, expand, list_names

    return Subcommand(
        config=ListConfig,
        run=list_names,
        expand=expand,
        reads_records=False,
        takes_bare_words=True,
    )


def _doctor() -> Subcommand:
    from dpft.commands.doctor import DoctorConfig, check_machine

    return Subcommand(config=DoctorConfig, run=check_machine, reads_records=False)


def check_restarted(resume: str | None, *, takes_auto: bool = False) -> None:
    """Reject a command that torchrun or Slurm restarts, unless each start resumes the same run.

    Args:
        resume: The value of ``resume``, as given.
        takes_auto: Whether the command supports ``resume=auto``.

    Raises:
        InputError: A restart would begin a second run, or ``resume=auto`` has no fixed folder.
    """
    if is_other_rank():
        return  # only rank 0 uses the folder
    fixed = "give a fixed folder, such as hydra.run.dir=outputs/mine"
    if takes_auto and resume == AUTO and not _folder_is_fixed():
        raise InputError(
            "resume=auto needs a folder that stays the same at each start.",
            key="hydra.run.dir",
            hint="hydra.run.dir=outputs/mine",
        )
    advice = f"add resume=auto, and {fixed}" if takes_auto else "resume it with resume=RUN"
    check_restarts(resumes=resume is not None, advice=advice)


def _folder_is_fixed() -> bool:
    """Return whether each start of the running job has the same folder."""
    from dpft.parallel.rank_environment import submitted_task

    if submitted_task() is not None:
        return True  # a requeued job keeps the folder that it was submitted with
    node = HydraConfig.get()
    section = node.sweep if node.mode == RunMode.MULTIRUN else node.run
    folder = cast(dict[str, str], OmegaConf.to_container(section, resolve=False))["dir"]
    return not any(resolver in folder for resolver in ("${now:", "${unused_folder:"))


OF_THE_COMMAND = ("launch", "hydra.run", "hydra.mode", "hydra.sweep", "hydra.job.name")
"""Prefixes of keys that apply only to the command that starts the processes."""
OF_SWEEPS = ("hydra/launcher", "hydra/sweeper", "hydra.launcher", "hydra.sweeper")


def words_of_processes(command: "TrainCommand") -> list[str]:
    """Return the arguments of ``dpft`` for each process of the running job, in the job's folder.

    Args:
        command: The configuration of the job.
    """
    job = composed_job().words
    node = HydraConfig.get()
    kept = passed_on([*job.job, *node.overrides.hydra])
    if command.parallel.name == "none":
        kept = [word for word in kept if key_of(word) != "parallel"] + ["parallel=ddp"]
    folder = f"hydra.run.dir={quoted(str(run_folder()))}"
    own = get_args_parser().parse_intermixed_args(list(job.typed)).config_dir
    elsewhere = [] if own is None else ["--config-dir", own]  # folder with the user's YAML files
    if command.launch.max_restarts and command.resume is None:
        kept.append(f"resume={AUTO}")
    return ["train", *kept, "launch=none", folder, *elsewhere]


def passed_on(words: Sequence[str]) -> list[str]:
    """Return the overrides that are passed on to the processes.

    >>> passed_on(["task=e2e", "launch=local", "launch.processes=2", "hydra.run.dir=a"])
    ['task=e2e']
    """
    ours = (*OF_THE_COMMAND, *OF_SWEEPS)
    return [word for word in words if not key_of(word).startswith(ours)]


def _folder(resume: str | None) -> Path:
    """Return the folder that Hydra made, or the folder that ``resume`` names."""
    return run_folder() if resume in (None, AUTO) else Path(resume)


_SUBCOMMANDS: dict[str, Callable[[], Subcommand]] = {
    "train": _train,
    "tokenizer": _tokenizer,
    "tune": _tune,
    "eval": _eval,
    "generate": _generate,
    "synthesize": _synthesize,
    "account": _account,
    "export": _export,
    "plan": _plan,
    "audit": _audit,
    "report": _report,
    "list": _list,
    "doctor": _doctor,
}
"""The function that returns each subcommand of ``main.SUBCOMMANDS``."""
