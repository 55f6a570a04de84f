"""The subcommands: for each its configuration, and the one call into the package that it is.

A subcommand is a function of its name that returns a ``Subcommand``. It imports what it needs when
it is called, so that no subcommand waits for another's libraries, and its ``run`` imports torch,
where it needs it, only after the configuration was checked. Those of more than a call stand in
modules of their own: ``train``, ``eval`` and ``report``.

>>> subcommand("list").expand(["tasks"])
['what=tasks']
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpft.cli.subcommand import Subcommand, run_folder, write_hydra_record
from dpft.errors import RunError


def subcommand(name: str) -> Subcommand:
    """Returns the subcommand of a name, what it needs imported now."""
    return _SUBCOMMANDS[name]()


def _train() -> Subcommand:
    from dpft.cli.train import run
    from dpft.config.schema import POLYMORPHIC, TrainCommand
    from dpft.runs.configuring import checked_overrides, train_configuration

    return Subcommand(
        config=TrainCommand,
        run=run,
        polymorphic=POLYMORPHIC,
        expand=checked_overrides,
        reads_rows_alone=True,
        configuration=train_configuration,
    )


def _plan() -> Subcommand:
    from dpft.config.schema import POLYMORPHIC, PlanConfig
    from dpft.records.form import json_text
    from dpft.runs.configuring import checked_overrides, plan_configuration

    def run(config: PlanConfig) -> None:
        from dpft.models.loading import quiet_transformers
        from dpft.reports.plan_table import plan_table
        from dpft.runs.planned_run import describe_run

        quiet_transformers()
        planned = describe_run(config, is_shown=config.output == "table" and sys.stdout.isatty())
        if config.output == "json":
            print(json_text(planned.record))
        else:
            print(plan_table(planned.record, planned.plan.privacy, planned.accounting))

    return Subcommand(
        config=PlanConfig,
        run=run,
        polymorphic=POLYMORPHIC,
        expand=checked_overrides,
        reads_rows_alone=True,
        configuration=plan_configuration,
    )


def _tune() -> Subcommand:
    from dpft.config.schema import POLYMORPHIC
    from dpft.config.tune import TuneCommand
    from dpft.runs.configuring import checked_overrides, tune_configuration

    def run(command: TuneCommand) -> None:
        from dpft.runs.run_plan import announce

        announce(command)
        from dpft.runs import tuning
        from dpft.runs.ending import show_ending
        from dpft.runs.saved_run import saved_run

        folder = _folder(command.resume)
        tuning.run(command, folder, write_request=write_hydra_record)
        show_ending(folder, saved_run(str(folder)).task)

    return Subcommand(
        config=TuneCommand,
        run=run,
        polymorphic=POLYMORPHIC,
        expand=checked_overrides,
        configuration=tune_configuration,
    )


def _tokenizer() -> Subcommand:
    from dpft.config.schema import TASK, TokenizerCommand
    from dpft.runs.configuring import tokenizer_configuration

    def expand(overrides: list[str]) -> list[str]:
        """Returns ``privacy=none``, as other commands have it, as a key of this one."""
        return ["privacy.name=none" if word == "privacy=none" else word for word in overrides]

    def run(command: TokenizerCommand) -> None:
        from dpft.reports.terminal import show_answer
        from dpft.runs.tokenizing import make_tokenizer

        folder = _folder(command.resume)
        answer = make_tokenizer(command, folder, write_request=write_hydra_record)
        show_answer(answer, command.output)

    return Subcommand(
        config=TokenizerCommand,
        run=run,
        polymorphic=TASK,
        expand=expand,
        configuration=tokenizer_configuration,
    )


def _eval() -> Subcommand:
    from dpft.cli.eval import run
    from dpft.config.schema import TASK, EvaluateConfig
    from dpft.runs.configuring import evaluate_configuration, evaluate_overrides

    return Subcommand(
        config=EvaluateConfig,
        run=run,
        polymorphic=TASK,
        expand=evaluate_overrides,
        configuration=evaluate_configuration,
    )


def _generate() -> Subcommand:
    from dpft.config.schema import TASK, GenerateConfig
    from dpft.runs.configuring import generate_configuration, with_task_of_run

    def run(config: GenerateConfig) -> None:
        from dpft.runs.generation import generate

        generate(config)

    return Subcommand(
        config=GenerateConfig,
        run=run,
        polymorphic=TASK,
        expand=with_task_of_run,
        configuration=generate_configuration,
    )


def _synthesize() -> Subcommand:
    from dpft.config.synthesize import POLYMORPHIC, SynthesizeConfig, configuration, expand

    def run(config: SynthesizeConfig) -> None:
        from dpft.records.form import json_text
        from dpft.reports.terminal import show
        from dpft.synthesis.command import synthesize

        found = synthesize(config, _folder(config.resume))
        if found is None:
            return
        if config.output == "json":
            print(json_text(found.record))
        else:
            show(found.parts)

    return Subcommand(
        config=SynthesizeConfig,
        run=run,
        polymorphic=POLYMORPHIC,
        expand=expand,
        configuration=configuration,
    )


def _account() -> Subcommand:
    from dpft.config.account import POLYMORPHIC, AccountConfig
    from dpft.reports.terminal import show_answer
    from dpft.runs.account import answer

    def run(config: AccountConfig) -> None:
        show_answer(answer(config), config.output)

    return Subcommand(config=AccountConfig, run=run, polymorphic=POLYMORPHIC, reads_records=False)


def _export() -> Subcommand:
    from dpft.config.schema import ExportConfig

    def run(config: ExportConfig) -> None:
        from dpft.runs.opened_run import export

        export(config)

    return Subcommand(config=ExportConfig, run=run, reads_records=False)


def _audit() -> Subcommand:
    from dpft.audit.base import POLYMORPHIC, AuditConfig

    def run(config: AuditConfig) -> None:
        from dpft.audit.audited_run import audit, show

        show(audit(config), config)

    return Subcommand(config=AuditConfig, run=run, polymorphic=POLYMORPHIC)


def _report() -> Subcommand:
    from dpft.cli.report import expand, run
    from dpft.config.account import ReportConfig

    return Subcommand(config=ReportConfig, run=run, expand=expand, takes_bare_words=True)


def _list() -> Subcommand:
    from dpft.config.composing import ListConfig, listed
    from dpft.records.form import as_json
    from dpft.records.plans import Listing

    def expand(overrides: list[str]) -> list[str]:
        """Returns a first word that is no key, such as ``tasks``, as ``what=tasks``."""
        return [word if "=" in word else f"what={word}" for word in overrides]

    def run(config: ListConfig) -> None:
        found = listed(config.what)
        if config.output == "json":
            listing = as_json(Listing(**{config.what: found}))
            print(json.dumps(listing, indent=2, ensure_ascii=False))
            return
        width = max(map(len, found))
        for name, line in found.items():
            print(f"{name:<{width}}  {line}")

    return Subcommand(
        config=ListConfig, run=run, expand=expand, reads_records=False, takes_bare_words=True
    )


def _doctor() -> Subcommand:
    from dpft.config.account import DoctorConfig
    from dpft.records.form import json_text
    from dpft.reports.doctor import can_train, doctor_parts, doctor_record, examine
    from dpft.reports.terminal import show

    def run(config: DoctorConfig) -> None:
        """Prints every check; raises RunError where something essential is missing."""
        checks = examine(config.metrics)
        if config.output == "json":
            print(json_text(doctor_record(checks)))
        else:
            show(doctor_parts(checks))
        if not can_train(checks):
            raise RunError("dpft cannot train here; what is missing stands above.")

    return Subcommand(config=DoctorConfig, run=run, reads_records=False)


def _folder(resume: str | None) -> Path:
    """Returns the folder that Hydra made, or the one that ``resume`` names."""
    return run_folder() if resume is None else Path(resume)


_SUBCOMMANDS: dict[str, Callable[[], Any]] = {
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
