"""An audit's own page, for the owner of the run."""

from markupsafe import Markup

from dpft.audit.base import Finding
from dpft.reports.pages import render_html


def render_finding(finding: Finding, name: str, note: str) -> str:
    """Returns the page of what an audit found.

    Args:
        finding: What was found.
        name: Of the audit.
        note: Who may read the page.
    """
    return render_html(
        "audit.html.j2",
        title=f"Audit: {name.replace('_', ' ')}",
        note=note,
        rows=finding.rows,
        notes=finding.notes,
        figures=[Markup(figure) for figure in finding.figures.values()],
    )
