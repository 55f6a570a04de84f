"""Scores in a report: figures, tables and series."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpft.data.images import grid
from dpft.errors import StateError
from dpft.privacy.accounting.interpretation import best_attack_accuracy
from dpft.privacy.plan import Phase
from dpft.reports.privacy_json import read_privacy
from dpft.reports.report import write_report
from dpft.reports.scores import (
    confusion_figures,
    main_metric,
    meaning,
    score_tables,
    series_of,
    series_plot,
)
from dpft.run_folder import PAGE, PREDICTIONS, PROGRESS, REPORT, WRONG_IMAGES
from dpft.strict_model import as_json, parse
from dpft.training.progress_record import ProgressLine
from tests.reports.folders import read, write_run
from tests.reports.plain import TOKENIZER, plain
from tests.reports.test_report import BOTH, CONFIG, entry, non_private, private


def test_misclassified_images_are_shown_with_their_classes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    answers = [("2", "6"), ("1", "1"), ("<b>", "3"), ("4", "2")]
    rows = [{"input": "", "prediction": told, "references": [true]} for true, told in answers]
    (run / PREDICTIONS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    pixels = np.full((3, 1, 8, 8), [[[[0]]], [[[90]]], [[[200]]]], np.uint8)
    (run / WRONG_IMAGES).write_bytes(grid(pixels))
    images = read(run).wrong_images[""]
    assert [classes for *classes, _ in images] == [["2", "6"], ["<b>", "3"], ["4", "2"]]
    shown = [np.asarray(Image.open(io.BytesIO(content))) for *_, content in images]
    assert [image.shape for image in shown] == [(56, 56, 3)] * 3
    assert [(image.min(), image.max()) for image in shown] == [(0, 0), (90, 90), (200, 200)]
    confusion = {"labels": ["a", "b"], "counts": [[1, 1], [0, 1]]}
    (_, figure) = confusion_figures(entry("after", 0.5, confusion=confusion), images)
    assert "true → predicted" in figure and "2 → 6" in figure and "&lt;b&gt; → 3" in figure
    assert figure.count('<img src="data:image/png;base64,') == 3


def test_images_have_no_sample_texts() -> None:
    samples = [{"input": "120: image", "prediction": "6", "reference": "2"}]
    (table,) = score_tables([entry("after", 0.5, task="digits", samples=samples)])
    assert table.texts == []
    (table,) = score_tables([entry("after", 0.5, task="sst2", samples=samples)])
    assert table.texts[0].input == "120: image"


meaning = plain(meaning)
main_metric = plain(main_metric)


def test_the_leading_metric_is_the_first_of_the_task_that_has_a_better_direction() -> None:
    config = {**CONFIG, "task": {**CONFIG["task"], "metrics": ["perplexity", "bleu"]}}
    assert main_metric(config, ["bleu", "perplexity"]) == "perplexity"
    assert main_metric(config, ["mean_length", "bleu"]) == "bleu"
    assert main_metric(config, ["mean_length", "unknown"]) is None


@pytest.mark.parametrize("privacy", [non_private(), private(reproducible=True)])
def test_a_run_that_is_not_private_promises_nothing(privacy: dict) -> None:
    assert meaning(privacy) is None


def test_the_sentence_says_how_often_a_guess_of_membership_can_be_right() -> None:
    record = {**private(unit="customer_id"), "epsilon": 3.0, "delta": 1e-5}
    assert "at most **95.3 %**" in str(meaning(record))
    assert best_attack_accuracy(3.0, 1e-5) == "95.3"
    assert "the rows of one `customer_id` were used for training" in str(meaning(record))
    assert "one example was used for training" in str(meaning(private()))
    assert "almost no protection" in str(meaning({**record, "epsilon": 30.0}))


def test_a_model_with_a_private_tokenizer_promises_what_both_cost() -> None:
    both = {"epsilon": 7.25, "delta": 2e-5, "tokenizer": TOKENIZER}
    record = {**private(), "epsilon": 3.0, "delta": 1e-5, "with_tokenizer": both}
    assert f"{best_attack_accuracy(7.25, 2e-5)} %" in str(meaning(record))


series_of = plain(series_of)
series_plot = plain(series_plot)


def point(step: int, bleu: float, epsilon: float | None = None, **changes: Any) -> ProgressLine:
    one = {"task": "e2e", "split": "test", "examples": 630, "metrics": {"bleu": bleu}, **changes}
    spent = {} if epsilon is None else {"epsilon": epsilon}
    return parse({"step": step, **spent, "evaluations": [one]}, ProgressLine)


LONG = (Phase(method="full", steps=30, max_grad_norm=0.1, sensitivity=0.1),)


def of_thirty_steps(epsilon: float) -> dict:
    return private(steps=30, phases=LONG) | {"epsilon": epsilon, "steps_taken": 30}


@pytest.mark.slow
def test_a_series_runs_from_before_training_to_after_it() -> None:
    privacy = of_thirty_steps(2.0)
    points = [point(10, 20.0, 1.001), point(20, 40.0, 1.5)]
    (series,) = series_of(points, privacy, BOTH)
    assert series.rows == [
        (0, 0.0, {"bleu": 10.0}),
        (10, 1.001, {"bleu": 20.0}),
        (20, 1.5, {"bleu": 40.0}),
        (30, 2.0, {"bleu": 60.5}),
    ]
    assert series.printed()[1] == ("10", "1.0010", [20.0])
    plot = str(series_plot(series, CONFIG, "series"))
    assert ">1.01<" in plot, "rounded up"
    assert "ε (upper bound)" in plot and ">BLEU ↑<" in plot and ">steps<" in plot
    assert 'aria-label="BLEU ↑ on split test: 10 after 0 steps, 60.5 after 30 steps"' in plot


def test_a_bound_that_was_loose_at_first_falls_to_what_later_steps_are_known_to_have_spent() -> (
    None
):
    """Before the tight curve is computed RDP speaks, and fewer steps spend no more than more."""
    privacy = of_thirty_steps(1.4)
    (series,) = series_of([point(10, 1.0, 1.6), point(20, 2.0, 1.2)], privacy, BOTH)
    assert [epsilon for _, epsilon, _ in series.rows] == [0.0, 1.2, 1.2, 1.4]


@pytest.mark.slow
def test_without_privacy_the_plot_has_no_epsilon() -> None:
    (series,) = series_of([point(10, 20.0)], non_private(), BOTH)
    assert [epsilon for _, epsilon, _ in series.rows] == [None] * 3
    assert "ε" not in str(series_plot(series, CONFIG, "series"))


def test_a_split_that_is_private_by_now_is_not_shown() -> None:
    hidden = [entry.marked(False) for entry in BOTH]
    points = [point(10, 20.0, 1.0), point(20, 30.0, 1.1, split="other")]
    assert [series.split for series in series_of(points, private(), hidden)] == ["other"]
    assert series_of([ProgressLine(step=10)], private(), BOTH) == []


@pytest.mark.slow
def test_both_reports_have_the_series(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_report(run, read_privacy(run / "privacy.json"))
    assert "during training" not in (run / REPORT).read_text() + (run / PAGE).read_text()
    (run / PROGRESS).write_text(json.dumps(as_json(point(10, 20.5, 1.0))) + "\n")
    write_report(run, read_privacy(run / "privacy.json"))
    report, page = (run / REPORT).read_text(), (run / PAGE).read_text()
    assert "## Scores during training on E2E, test split" in report
    assert "| 10 | 1.0000 | 20.5000 |" in report
    series = page.partition("<h2>Scores during training on E2E, test split</h2>")[2]
    assert "series0" in series.partition("<h2>")[0] and "20.5" in series.partition("<h2>")[0]


def test_a_damaged_progress_record_is_refused_by_its_name(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / PROGRESS).write_text('{"step": 1}\n')
    with pytest.raises(StateError, match=r"progress\.jsonl"):
        read(run)
