"""``dpft audit``: audits a run, writes findings into its private/, and prints them."""

import logging
import sys
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from dpft.audit.base import AuditConfig, AuditedRun, Finding
from dpft.errors import InputError
from dpft.files import (
    AUDIT,
    PRIVACY,
    PRIVATE_AUDIT,
    audit_path,
    hold_run,
    private_audit_path,
    write_text,
)
from dpft.models.loading import quiet_transformers
from dpft.records.form import joined, json_text, write_record
from dpft.records.promises import Audited, RunPrivacy, run_privacy
from dpft.reports import terminal
from dpft.reports.pages import render_html
from dpft.reports.report import write_report
from dpft.reports.terminal import Grid
from dpft.runs.exit_codes import crash_kept
from dpft.runs.saved_run import saved_run


def render_finding(finding: Finding, name: str, note: str) -> str:
    """Returns the page of what an audit found."""
    return render_html(
        "audit.html.j2",
        title=f"Audit: {name.replace('_', ' ')}",
        note=note,
        rows=finding.rows,
        notes=finding.notes,
        figures=[Markup(figure) for figure in finding.figures.values()],
    )


PRIVATE = "Private: for the owner of the run alone; epsilon does not cover it."
WITHHELD = "audit={name}: what it found is private, and shown on a terminal alone."
logger = logging.getLogger(__name__)


def audit(config: AuditConfig) -> Finding:
    """Looks at a run and returns what it found, once it is written down.

    Raises:
        InputError: There is no such run, or the audit cannot look at it.
        StateError: What it must know of the run is damaged.
    """
    quiet_transformers()
    saved, folder = saved_run(config.run), Path(config.run)
    run = AuditedRun(
        folder=folder,
        config=saved,
        privacy=_privacy(folder),
        device=config.train,
        synthetic=None if config.synthetic is None else Path(config.synthetic),
    )
    with crash_kept(folder):
        finding = config.audit.find(run)
    with hold_run(folder):
        if not finding.files:
            finding = replace(finding, files=[keep(finding, config.audit.name, folder)])
        if finding.released is not None:
            release(finding, config.audit.name, folder)
    return finding


def keep(finding: Finding, name: str, folder: Path) -> str:
    """Writes what was found into the run's private folder; returns a sentence that says where."""
    path = private_audit_path(folder, f"{PRIVATE_AUDIT}/{name}.json")
    write_record(path, replace(finding.record, note=PRIVATE), mode=0o600)
    page = private_audit_path(folder, f"{PRIVATE_AUDIT}/{name}.html")
    write_text(page, render_finding(finding, name, PRIVATE), mode=0o600)
    return f"A page with plots, for the owner of the data alone: {page}"


def release(finding: Finding, name: str, folder: Path) -> None:
    """Adds to the run's report what follows from public things alone; epsilon stays as it is."""
    privacy = _privacy(folder)
    audited = joined(Audited, privacy.audited or Audited(), **{name: finding.released})
    for label, figure in finding.figures.items():
        write_text(audit_path(folder, f"{AUDIT}/{name}-{label}.svg"), figure)
    write_record(folder / PRIVACY, replace(privacy, audited=audited))
    write_report(folder)


def show(finding: Finding, config: AuditConfig) -> None:
    """Prints what was found and where it is kept; as JSON, one object on stdout.

    What may not be released is shown on a terminal alone; a pipe, or the log of a job, is told
    where it is (docs/design.md, rule 8). JSON is for a program of the owner's, who asks for it.
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


def _privacy(folder: Path) -> RunPrivacy:
    """Returns the promise in the run's privacy.json."""
    if not (folder / PRIVACY).exists():
        raise InputError(
            f"{folder} has no {PRIVACY}, beside whose promise a finding would stand; go on with the"
            f" run by dpft train resume={folder}."
        )
    return run_privacy(folder / PRIVACY)
