"""A run's reports: report.md, report.html and the model's card, from its public files.

Reports hold public quantities only; what training saw of the records stays in private/.
"""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from dpft import __version__
from dpft.files import write_text
from dpft.privacy.accounting.summary import eps_text
from dpft.records.privacy_file import guarantee
from dpft.records.promises import PrivateRun
from dpft.records.scores import PRIVATE_SPLIT
from dpft.reports.pages import render_html, render_markdown
from dpft.reports.plots import epsilon_plot
from dpft.reports.run.audited import alarms, audited_rows
from dpft.reports.run.card import write_card
from dpft.reports.run.figures import confusions, figures, meaning, tone
from dpft.reports.run.metrics_files import hide_private_scores, shown
from dpft.reports.run.published import PUBLISHED_NOTE, published_table
from dpft.reports.run.recipe import command, configuration
from dpft.reports.run.run_record import RunRecord, read_run
from dpft.reports.run.scores import metric_words, score_tables
from dpft.reports.run.scores_by_step import series_of, series_plot
from dpft.reports.run.sections import (
    LEDGER_NOTE,
    accountant_rows,
    coverage,
    headline,
    mechanism_rows,
    title,
    training_rows,
    warnings,
)
from dpft.run_folder import MODEL, PAGE, PRIVATE_METRICS, PRIVATE_REPORT, REPORT


def write_report(folder: Path) -> RunRecord:
    """Writes report.md, report.html and the model's card from the other public files of a run.

    Scores of private splits that an earlier dpft wrote into metrics.json are put into private/.

    Returns:
        What those files say.
    """
    hide_private_scores(folder)
    record = read_run(folder)
    if (folder / MODEL).is_dir():
        write_card(record, folder / MODEL)
    write_text(folder / PAGE, render_page(record))
    write_text(folder / REPORT, render(record))
    return record


def render(record: RunRecord) -> str:
    """Returns report.md."""
    return render_markdown("report.md.j2", **_parts(record))


def render_page(record: RunRecord) -> str:
    """Returns report.html: report.md's content, how epsilon grew, and how to run it again."""
    parts = _parts(record)
    names = {name for table in parts["tables"] for name, _ in table.rows}
    return render_html(
        "report.html.j2",
        **parts,
        figures=figures(record.config, record.privacy, parts["tables"]),
        about=metric_words(record.config, sorted(names)),
        tone=tone(record.privacy),
        plot=epsilon_plot(record.privacy),
        series_plots=[
            series_plot(series, record.config, f"series{number}")
            for number, series in enumerate(parts["by_step"])
        ],
        confusions=confusions(record.evaluations, record.pictures),
        audit_figures=[Markup(figure) for figure in record.audit_figures],
        command=command(record),
        configuration=configuration(record),
        version=__version__,
    )


def _parts(record: RunRecord) -> dict[str, Any]:
    """Returns the values that the templates of report.md and report.html are filled with."""
    config, privacy = record.config, record.privacy
    evaluations = [shown(entry) for entry in record.evaluations]
    epsilon = eps_text(guarantee(privacy)[0]) if isinstance(privacy, PrivateRun) else "not private"
    return {
        "title": title(config, privacy),
        "alarms": alarms(privacy),
        "headline": headline(privacy),
        "meaning": meaning(privacy),
        "warnings": warnings(config, privacy),
        "tables": score_tables(evaluations),
        "by_step": series_of(record.by_step, privacy, evaluations),
        "private_split": PRIVATE_SPLIT,
        "private_files": (PRIVATE_METRICS, PRIVATE_REPORT),
        "published": published_table(record, evaluations, epsilon),
        "published_note": PUBLISHED_NOTE,
        "training": training_rows(config, privacy),
        "mechanism": mechanism_rows(config, privacy),
        "accountants": accountant_rows(privacy),
        "audited": audited_rows(privacy),
        "ledger_note": LEDGER_NOTE,
        "coverage": coverage(config, privacy, evaluations),
    }
