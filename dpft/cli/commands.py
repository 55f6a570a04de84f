"""Define each subcommand: its configuration class and the function that does its work.

A subcommand is a function of its name that returns a ``Subcommand``. It imports what it needs when
it is called, so that no subcommand waits for another's libraries, and its ``run`` imports torch,
where it needs it, only after the configuration was checked. ``report`` has a module of its own.

A job is started with words, and has a folder and Hydra's record of it; Hydra itself would write the
record before the run has checked its configuration.

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
    """Return what the running job was started with."""
    job = _job.get()
    assert job is not None, "only a job of recorded_job has been started with anything"
    return job


def run_folder() -> Path:
    """Return the folder Hydra gave the running job, absolute."""
    return Path(HydraConfig.get().runtime.output_dir)


@dataclass(frozen=True, kw_only=True)
class Subcommand:
    """A subcommand, whose YAML is ``conf/<name>.yaml``."""

    config: type
    """The root class."""
    run: Callable[[Any], None]
    """The work, given an instance of the root class."""
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

    def load(self, config: DictConfig, words: Words) -> Any:
        """Return what ``run`` is given."""
        if self.configuration is not None:
            return self.configuration(config, words)
        return load(config, self.config)

    def keys(self, name: str) -> set[str]:
        """Return the keys that its configuration takes by default, and its groups."""
        folders = [config_directory()]
        command = composed_command(name, [], self.config, folders=folders)
        composed = command.keys()
        return {*known_keys(self.config), *command.choices, *(key.name for key in composed)}

    def help(self, name: str, words: Sequence[str], flags: Sequence[str]) -> str:
        """Return the text of ``--help``, of all or of the groups and keys that words name."""
        own = get_args_parser().parse_args(flags).config_dir
        folders = [config_directory(), *([] if own is None else [Path(own).absolute()])]
        return command_help(name, words, self.config, folders=folders)


def subcommand(name: str) -> Subcommand:
    """Return the subcommand of a name, what it needs imported now."""
    return _SUBCOMMANDS[name]()


def _train() -> Subcommand:
    """Return ``dpft train``, which starts its own processes where ``launch`` says so."""
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
        """Return ``privacy=none``, as other commands have it, as a key of this one."""
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
        resume: As it was given.
        takes_auto: Whether the command supports ``resume=auto``.

    Raises:
        InputError: A restart would begin a second run, or ``resume=auto`` has no fixed folder.
    """
    if is_other_rank():
        return  # the first process has the folder
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
"""How the keys begin that are for the command that starts the processes, not for them."""
OF_SWEEPS = ("hydra/launcher", "hydra/sweeper", "hydra.launcher", "hydra.sweeper")


def words_of_processes(command: "TrainCommand") -> list[str]:
    """Return the words of ``dpft`` for each process of the running job, in the job's folder.

    Args:
        command: What the job's own words were made into.
    """
    job = composed_job().words
    node = HydraConfig.get()
    kept = passed_on([*job.job, *node.overrides.hydra])
    if command.parallel.name == "none":
        kept = [word for word in kept if key_of(word) != "parallel"] + ["parallel=ddp"]
    folder = f"hydra.run.dir={quoted(str(run_folder()))}"
    own = get_args_parser().parse_intermixed_args(list(job.typed)).config_dir
    elsewhere = [] if own is None else ["--config-dir", own]  # where configurations are, too
    if command.launch.max_restarts and command.resume is None:
        kept.append(f"resume={AUTO}")
    return ["train", *kept, "launch=none", folder, *elsewhere]


def passed_on(words: Sequence[str]) -> list[str]:
    """Return the words that are for the processes, too.

    >>> passed_on(["task=e2e", "launch=local", "launch.processes=2", "hydra.run.dir=a"])
    ['task=e2e']
    """
    ours = (*OF_THE_COMMAND, *OF_SWEEPS)
    return [word for word in words if not key_of(word).startswith(ours)]


def _folder(resume: str | None) -> Path:
    """Return the folder that Hydra made, or the one that ``resume`` names."""
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
"""Each command of ``main.SUBCOMMANDS``."""
