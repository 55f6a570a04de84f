"""``dpft audit``, read from top to bottom: attack a finished run, keep what was found, print it."""

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

OWNERS_ALONE = "Private: for the owner of the run alone; epsilon does not cover it."
WITHHELD = "audit={name}: what it found is private, and shown on a terminal alone."


def audit(config: AuditConfig) -> Finding:
    """Attack a run, write what was found into its folder, and return it.

    Raises:
        InputError: The run cannot be read, or lacks what the audit needs.
        StateError: A file of the run is damaged.
    """
    quiet_transformers()

    # 1. The run, whose training has ended.
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

    # 2. The attack.
    with crash_kept(folder):
        finding = config.audit.find(run)

    with hold_run(folder):
        # 3. Everything that it found goes into private/, unless the audit has written it there.
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
            place = f"A page with plots, for the owner of the data alone: {path}"
            finding = replace(finding, files=[place])

        # 4. What follows only from public things is added to the report; epsilon does not change.
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
    """Print what was found and where it is kept; with ``output=json``, one object on stdout.

    Only a terminal shows what may not be released. A pipe, or the log of a job, is told where it is
    (docs/dev/design.md, rule 8). JSON is for a program of the owner, who asks for it.
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
