"""A run's reports: report.md, report.html and the model's card, from its public files.

Reports hold public quantities only; what training saw of the records stays in private/.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpft import __version__
from dpft.files import write_text
from dpft.privacy.accounting.rounding import up
from dpft.records.scores import PRIVATE_SPLIT, ScoreEntry, ScoresByStep
from dpft.reports.pages import render_html, render_markdown
from dpft.reports.plots import epsilon_plot
from dpft.reports.run.audited import alarms, audited_rows, figures_of_audits
from dpft.reports.run.card import write_card
from dpft.reports.run.figures import confusions, figures, meaning, tone
from dpft.reports.run.metrics_files import hide_private_scores, shown
from dpft.reports.run.published import PUBLISHED_NOTE, published_table
from dpft.reports.run.recipe import command, configuration
from dpft.reports.run.run_record import RunRecord, guarantee, read_record
from dpft.reports.run.scores import metric_words, score_tables
from dpft.reports.run.scores_by_step import read_points, series_of, series_plot
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


def write_report(folder: Path) -> None:
    """Writes report.md, report.html and the model's card from the other public files of a run.

    Scores of private splits that an earlier dpft wrote into metrics.json are put into private/.
    """
    hide_private_scores(folder)
    record = read_record(folder)
    if (folder / MODEL).is_dir():
        write_card(record, folder / MODEL)
    write_text(folder / PAGE, render_page(record))
    text = render(record.config, record.privacy, record.evaluations, read_points(folder))
    write_text(folder / REPORT, text)


def render(
    config: Mapping[str, Any],
    privacy: Mapping[str, Any],
    evaluations: Sequence[ScoreEntry],
    by_step: ScoresByStep | None = None,
) -> str:
    """Returns report.md.

    Args:
        config: Content of config.yaml.
        privacy: Content of privacy.json.
        evaluations: Entries of metrics.json.
        by_step: What scores_by_step.json says; None: there is none.
    """
    return render_markdown("report.md.j2", **_parts(config, privacy, evaluations, by_step))


def render_page(record: RunRecord) -> str:
    """Returns report.html: report.md's content, how epsilon grew, and how to run it again."""
    points = read_points(record.folder)
    parts = _parts(record.config, record.privacy, record.evaluations, points)
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
        confusions=confusions(record.evaluations, record.folder),
        audit_figures=figures_of_audits(record.folder),
        command=command(record),
        configuration=configuration(record),
        version=__version__,
    )


def _parts(
    config: Mapping[str, Any],
    privacy: Mapping[str, Any],
    evaluations: Sequence[ScoreEntry],
    by_step: ScoresByStep | None = None,
) -> dict[str, Any]:
    """Returns the values that the templates of report.md and report.html are filled with."""
    evaluations = [shown(entry) for entry in evaluations]
    epsilon = up(guarantee(privacy)[0]) if "epsilon" in privacy else "not private"
    return {
        "title": title(config, privacy),
        "alarms": alarms(privacy),
        "headline": headline(privacy),
        "meaning": meaning(privacy),
        "warnings": warnings(config, privacy),
        "tables": score_tables(evaluations),
        "by_step": series_of(by_step, privacy, evaluations),
        "private_split": PRIVATE_SPLIT,
        "private_files": (PRIVATE_METRICS, PRIVATE_REPORT),
        "published": published_table(config, evaluations, epsilon),
        "published_note": PUBLISHED_NOTE,
        "training": training_rows(config, privacy),
        "mechanism": mechanism_rows(config, privacy),
        "accountants": accountant_rows(privacy),
        "audited": audited_rows(privacy),
        "ledger_note": LEDGER_NOTE,
        "coverage": coverage(config, privacy, evaluations),
    }
