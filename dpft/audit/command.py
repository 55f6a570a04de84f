"""The command ``dpft audit``: attack a finished run, save the findings, and print them."""

import logging
import sys
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from dpft.audit.base import AuditConfig, AuditedRun, Finding
from dpft.commands.exit_codes import crash_kept
from dpft.commands.guarantee import privacy_of
from dpft.commands.ledger_account import saved_run
from dpft.errors import InputError
from dpft.models.loading import quiet_transformers
from dpft.reports import terminal
from dpft.reports.privacy_json import Audited
from dpft.reports.rendering import line, render_page
from dpft.reports.report import write_report
from dpft.reports.terminal import Grid
from dpft.run_folder import (
    AUDIT,
    PRIVACY,
    PRIVATE_AUDIT,
    audit_path,
    hold_run,
    private_audit_path,
    write_text,
)
from dpft.strict_model import json_text, merge_models, write_model
from dpft.tasks.preference import PreferenceTask

logger = logging.getLogger(__name__)

OWNERS_ALONE = "Private: only for the owner of the run; epsilon does not cover this page."
WITHHELD = "audit={name}: the findings are private, so they are printed only on a terminal."


def audit(config: AuditConfig) -> Finding:
    """Attack a run, write the findings into its folder, and return them.

    Raises:
        InputError: The run cannot be read, or lacks data that the audit needs.
        StateError: A file of the run is damaged.
    """
    quiet_transformers()

    # 1. Load the run, whose training must have ended.
    saved, folder, name = saved_run(config.run), Path(config.run), config.audit.name
    if isinstance(saved.task, PreferenceTask):
        raise InputError(
            "dpft audit does not support task=preference, because audits score single answers.",
            key="run",
            value=config.run,
        )
    run = AuditedRun(
        folder=folder,
        config=saved,
        privacy=privacy_of(folder),
        device=config.train,
        synthetic=None if config.synthetic is None else Path(config.synthetic),
    )

    # 2. Attack the run.
    with crash_kept(folder):
        finding = config.audit.find(run)

    with hold_run(folder):
        # 3. Write all findings to private/, unless the audit has already done so.
        if not finding.files:
            path = private_audit_path(folder, f"{PRIVATE_AUDIT}/{name}.json")
            write_model(path, finding.record.replace(note=OWNERS_ALONE), mode=0o600)
            path = private_audit_path(folder, f"{PRIVATE_AUDIT}/{name}.html")
            title = f"Audit: {name.replace('_', ' ')}"
            rows = [f"| {line(quantity)} | {line(value)} |" for quantity, value in finding.rows]
            table = "\n".join(["| quantity | value |", "|---|---|", *rows])
            page = [f"**{OWNERS_ALONE}**", f"# {title}", table, *map(line, finding.notes)]
            figures = {"Figures": [Markup(figure) for figure in finding.figures.values()]}
            write_text(path, render_page(title, "\n\n".join(page), figures), mode=0o600)
            place = f"Private page with plots: {path}"
            finding = replace(finding, files=[place])

        # 4. Add findings that depend only on public information to the report; keep its epsilon.
        if finding.released is not None:
            privacy = privacy_of(folder)
            audited = merge_models(
                Audited, privacy.audited or Audited(), **{name: finding.released}
            )
            for label, figure in finding.figures.items():
                write_text(audit_path(folder, f"{AUDIT}/{name}-{label}.svg"), figure)
            privacy = privacy.replace(audited=audited)
            write_model(folder / PRIVACY, privacy)
            write_report(folder, privacy)
    return finding


def show(finding: Finding, config: AuditConfig) -> None:
    """Print the findings and their paths; with ``output=json``, print one object on stdout.

    Private findings are shown only on a terminal. In a pipe or a job log, only their paths are
    printed (docs/dev/design.md, rule 8). JSON is for a program of the owner, who requests it
    explicitly.
    """
    if config.output == "json":
        for sentence in finding.files:
            logger.info("%s", sentence)
        print(json_text(finding.record))
        return
    if finding.released is None and not sys.stdout.isatty():
        terminal.show([WITHHELD.format(name=config.audit.name), *finding.files])
        return
    terminal.show([*(finding.parts or [Grid(rows=finding.rows), *finding.notes]), *finding.files])
