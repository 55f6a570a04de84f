"""What the reports of many runs mark, draw and escape, in Markdown, HTML and CSV."""

import csv
import io
import json
from pathlib import Path

import pytest

from dpft.records.scores import PRIVATE_SPLIT
from dpft.reports.comparison.compare import compare
from dpft.reports.comparison.pages import csv_table, markdown, page, record
from dpft.reports.comparison.sweep_plots import _against_before
from dpft.reports.run.run_record import read_run, with_own_scores
from tests.reports.comparison.swept_runs import compared, sweep
from tests.reports.run.folders import EVIL, write_run


def test_the_best_is_bold_only_where_the_test_tells_it_apart(tmp_path: Path) -> None:
    text = markdown(compared(sweep(tmp_path)))
    table = text.partition("### bleu")[2]
    assert "| full | **61.000 ± 1.000** | 61.000 ± 1.000 |" in table
    assert "| lora | 51.000 ± 1.000 | 61.333 ± 1.528 |" in table


def test_scores_of_private_splits_are_marked_in_every_form(tmp_path: Path) -> None:
    folders = sweep(tmp_path, public=False)
    comparison = compare([with_own_scores(read_run(folder)) for folder in folders])
    mention = "computed on private held-out records, not covered by epsilon"
    assert mention in markdown(comparison) and mention in page(comparison)
    assert "bleu (private split)" in page(comparison)
    rows = list(csv.DictReader(io.StringIO(csv_table(comparison))))
    assert len(rows) == 12 and {row["split_is_public"] for row in rows} == {"False"}
    assert {row["note"] for row in rows} == {PRIVATE_SPLIT}
    assert mention not in page(compared(sweep(tmp_path / "public")))


def test_trust_rule_8_a_report_for_others_says_where_private_scores_are_and_no_more(
    tmp_path: Path,
) -> None:
    comparison = compared(sweep(tmp_path, public=False))
    for text in (markdown(comparison), page(comparison)):
        assert "bleu" not in text and "private/metrics.json" in text
    rows = list(csv.DictReader(io.StringIO(csv_table(comparison))))
    assert len(rows) == 12 and "bleu" not in rows[0]
    assert {row["note"] for row in rows} == {
        f"{PRIVATE_SPLIT}; in private/metrics.json, for their owner alone"
    }
    assert "bleu" not in json.dumps(record(comparison))


@pytest.mark.slow
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


@pytest.mark.slow
def test_scores_by_label_words_are_drawn_against_those_before_fine_tuning(tmp_path: Path) -> None:
    """Li et al. 2022, Figure 7."""
    words = {"great": 70.0, "good": 80.0}
    folders = [
        write_run(
            tmp_path / f"{word}-{eps:g}",
            eps=eps,
            bleu=score + eps,
            bleu_before=score / 2,
            task={"label_words": {"positive": word, "negative": "terrible"}},
        )
        for word, score in words.items()
        for eps in (3.0, 8.0)
    ]
    comparison = compared(folders)
    assert comparison.keys == ["task.label_words", "privacy.eps"]
    assert "negative: terrible, positive: great" in markdown(comparison)
    (split,) = comparison.splits
    assert _against_before(
        split.cells["bleu"], split.before["bleu"], comparison.settings, comparison.keys
    ) == {
        "ε = 3": [(35.0, 73.0, 0.0), (40.0, 83.0, 0.0)],
        "ε = 8": [(35.0, 78.0, 0.0), (40.0, 88.0, 0.0)],
    }
    label = 'aria-label="bleu against bleu before fine-tuning"'
    assert label in page(comparison)
    assert label not in page(compared(sweep(tmp_path / "others")))


def test_what_runs_hold_is_escaped(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / str(e), eps=e, method={"name": m}, scores={"metrics": {EVIL: e}})
        for e in (3.0, 8.0)
        for m in (f"{EVIL}{e:g}",)
    ]
    comparison = compared(folders)
    assert "<script" not in page(comparison) and "<script" not in markdown(comparison)
    assert "alert(1)" in page(comparison)
