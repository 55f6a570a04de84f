"""What the reports of many runs mark, draw and escape, in Markdown, HTML and CSV."""

import csv
import io
from pathlib import Path

from dpft.reports.comparison.pages import csv_table, markdown, page
from dpft.reports.run.scores import PRIVATE_SPLIT
from tests.reports.comparison.swept_runs import compared, sweep
from tests.reports.run.folders import EVIL, write_run


def test_the_best_is_bold_only_where_the_test_tells_it_apart(tmp_path: Path) -> None:
    text = markdown(compared(sweep(tmp_path)))
    table = text.partition("### bleu")[2]
    assert "| full | **61.000 ± 1.000** | 61.000 ± 1.000 |" in table
    assert "| lora | 51.000 ± 1.000 | 61.333 ± 1.528 |" in table


def test_scores_of_private_splits_are_marked_in_every_form(tmp_path: Path) -> None:
    comparison = compared(sweep(tmp_path, public=False))
    mention = "computed on private held-out records, not covered by epsilon"
    assert mention in markdown(comparison) and mention in page(comparison)
    assert "bleu (private split)" in page(comparison)
    rows = list(csv.DictReader(io.StringIO(csv_table(comparison))))
    assert len(rows) == 12 and {row["split_is_public"] for row in rows} == {"False"}
    assert {row["note"] for row in rows} == {PRIVATE_SPLIT}
    assert mention not in page(compared(sweep(tmp_path / "public")))


def test_the_page_draws_a_heat_map_lines_and_sizes(tmp_path: Path) -> None:
    comparison = compared(sweep(tmp_path))
    text = page(comparison)
    for label in (
        "bleu over method.name and privacy.eps, as a heat map",
        "bleu against privacy.eps",
        "bleu against trainable parameters",
    ):
        assert f'aria-label="{label}"' in text
    assert page(comparison) == text
    assert "data:image" not in text and 'href="http' not in text


def test_what_runs_hold_is_escaped(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / str(e), eps=e, method={"name": m}, scores={"metrics": {EVIL: e}})
        for e in (3.0, 8.0)
        for m in (f"{EVIL}{e:g}",)
    ]
    comparison = compared(folders)
    assert "<script" not in page(comparison) and "<script" not in markdown(comparison)
    assert "alert(1)" in page(comparison)
