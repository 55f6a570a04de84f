"""What the reports of many runs mark, draw and escape, in Markdown, HTML and CSV."""

import csv
import io
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpft.errors import InputError
from dpft.records.scores import PRIVATE_SPLIT
from dpft.reports import comparison_page
from dpft.reports.comparison import Comparison, compare
from dpft.reports.comparison_page import (
    PublishedPivot,
    _against_before,
    csv_table,
    markdown,
    page,
    published_pivots,
    record,
    write_signal_to_noise,
)
from dpft.reports.run_record import read_run, with_own_scores
from dpft.training.session import read_signal_to_noise
from tests.reports.folders import EVIL, MAP, NOT_THE_PAPERS, compared, sweep, write_run
from tests.runs.measured import measure
from tests.slowness import slow


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


def test_runs_without_scores_have_a_table_of_their_settings_and_no_line_about_means(
    tmp_path: Path,
) -> None:
    scored = [read_run(folder) for folder in sweep(tmp_path)]
    comparison = compare([replace(run, evaluations=[]) for run in scored])
    assert not comparison.splits
    for text in (markdown(comparison), page(comparison)):
        assert "Scores are after fine-tuning" not in text and "Bold:" not in text
        assert "None of these runs has a score that may be shown" in text
        assert text.count("lora") == 2
    text = markdown(compared(sweep(tmp_path / "scored")))
    assert "Scores are after fine-tuning" in text and "None of these runs" not in text


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


KEYS = ("train.learning_rate", "train.expected_batch_size")
RATES, SIZES = (0.001, 0.0005), (64, 128, 256)


def sweep_over(root: Path, *, over: tuple[str, str] = KEYS, **options: Any) -> Comparison:
    """Two learning rates by three batch sizes, with scores from 40 to 45."""
    values = {"reference_maps": [MAP], "model": {"name": "gpt2"}, **options}
    for number, (rate, size) in enumerate(itertools.product(RATES, SIZES)):
        train = {"learning_rate": rate, "expected_batch_size": size}
        write_run(root / str(number), bleu=40.0 + number, train=train, **values)
    return compared(sorted(root.iterdir()), over=over)


def published(comparison: Comparison) -> list[PublishedPivot]:
    split = comparison.splits[0]
    (pivot,) = comparison.pivots(split)
    return published_pivots(pivot, split, comparison.settings)


def test_the_published_map_is_ordered_as_ones_own_and_cells_of_both_are_subtracted(
    tmp_path: Path,
) -> None:
    (one,) = published(sweep_over(tmp_path))
    assert (one.rows, one.columns) == (["0.0005", "0.001"], ["64", "128"])
    assert one.cells == [[30.5, None], [10.5, 20.5]]
    # 5e-4: 43 to 45; 1e-3: 40 to 42; the map has neither 256 nor a score of 5e-4 and 128
    assert one.differences == [[12.5, None, None], [29.5, 20.5, None]]


def test_a_table_the_other_way_round_has_the_map_the_other_way_round(tmp_path: Path) -> None:
    (one,) = published(sweep_over(tmp_path, over=(KEYS[1], KEYS[0])))
    assert (one.rows, one.columns) == (["64", "128"], ["0.0005", "0.001"])
    assert one.cells == [[30.5, 10.5], [None, 20.5]]
    assert one.differences == [[12.5, 29.5], [None, 20.5], [None, None]]
    assert NOT_THE_PAPERS in one.row_title and NOT_THE_PAPERS not in one.column_title


@pytest.mark.parametrize(
    "options",
    [
        {"reference_maps": []},
        {"eps": 8.0},
        *slow(
            ({"model": {"name": "tiny"}},),
            ({"method": {"name": "lora"}},),
            ({"scores": {"split": "validation"}},),
            ({"scores": {"metrics": {"nist": 1.0}}},),
        ),
    ],
    ids=lambda options: next(iter(options)),
)
def test_no_map_stands_beside_runs_that_it_is_not_of(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    comparison = sweep_over(tmp_path, **options)
    assert published(comparison) == []
    assert "ublished" not in markdown(comparison) and "ublished" not in page(comparison)


def test_runs_over_other_keys_are_shown_without_the_map(tmp_path: Path) -> None:
    for number, (rate, decay) in enumerate(itertools.product(RATES, (0.0, 0.1))):
        train = {"learning_rate": rate, "weight_decay": decay, "expected_batch_size": 64}
        write_run(tmp_path / str(number), train=train, model={"name": "gpt2"}, reference_maps=[MAP])
    keys = ("train.learning_rate", "train.weight_decay")
    assert published(compared(sorted(tmp_path.iterdir()), over=keys)) == []


def test_markdown_has_the_map_the_differences_and_whose_the_values_are(tmp_path: Path) -> None:
    text = markdown(sweep_over(tmp_path))
    whose = f"\n\nValues of train.expected_batch_size {NOT_THE_PAPERS}.\n\n"
    assert (
        f"#### Published bleu: Paper, Figure 1: full, E2E test, gpt2, ε = 3{whose}"
        "|  | 64 | 128 |\n|---|---:|---:|\n| 0.0005 | 30.500 | – |\n| 0.001 | 10.500 | 20.500 |\n\n"
        f"#### bleu of these runs less the published, Paper, Figure 1{whose}"
        "|  | 64 | 128 | 256 |\n|---|---:|---:|---:|\n"
        "| 0.0005 | +12.500 | – | – |\n| 0.001 | +29.500 | +20.500 | – |\n\n"
    ) in text
    assert "\n\n\n" not in text


def test_a_sweep_without_a_cell_of_the_map_has_no_table_of_differences(tmp_path: Path) -> None:
    moved = {**MAP, "columns": {**MAP["columns"], "values": [1, 2]}}
    comparison = sweep_over(tmp_path, reference_maps=[moved])
    none = "None of these runs has the settings of a published score."
    for text in (markdown(comparison), page(comparison)):
        assert none in text and "+" not in text.partition("less the published")[2][:200]


def test_both_heat_maps_are_drawn_in_the_same_colors(tmp_path: Path) -> None:
    """The published map's least and greatest of all, 10.5 and 45, are the ends of one scale."""
    text = page(sweep_over(tmp_path))
    own = 'aria-label="bleu over train.learning_rate and train.expected_batch_size, as a heat map"'
    beside = (
        'aria-label="published bleu, Paper, Figure 1 over train.learning_rate and'
        f' train.expected_batch_size ({NOT_THE_PAPERS}), as a heat map"'
    )
    figure = next(each for each in text.split("<figure>") if own in each)
    drawn, _, published_one = figure.partition(beside)
    assert published_one and "colors are of one scale, from 10.5 to 45." in published_one
    # viridis begins at #440154 and ends at #fde725
    colors = [set(re.findall(r"fill: (#[0-9a-f]{6})", part)) for part in (drawn, published_one)]
    assert "#fde725" in colors[0] and "#440154" not in colors[0]
    assert "#440154" in colors[1] and "#fde725" not in colors[1]
    assert page(sweep_over(tmp_path / "none", reference_maps=[])).count('heat map"') == 2


def test_runs_are_of_one_setting_with_and_without_the_map(tmp_path: Path) -> None:
    for number, maps in enumerate(([], [MAP])):
        write_run(tmp_path / str(number), train={"seed": number}, reference_maps=maps)
    (setting,) = compared(sorted(tmp_path.iterdir())).settings
    assert len(setting.runs) == 2


def measured_sweep(root: Path, **options: bool) -> list[Path]:
    """Two batch sizes, two seeds each, the larger ones with more signal."""
    return [
        measure(
            write_run(
                root / f"{size}-{seed}",
                bleu=50.0 + size / 10 + seed,
                train={"expected_batch_size": size, "seed": seed},
                **options,
            ),
            size / 1000 + seed / 10_000,
        )
        for size in (10, 20)
        for seed in (0, 1)
    ]


def written(comparison: Comparison, folder: Path) -> Path:
    ratios = {run.folder: read_signal_to_noise(run.folder) for run in comparison.runs}
    return write_signal_to_noise(comparison, ratios, folder)


def test_each_run_is_a_point_and_a_row_with_its_mean_ratio_and_its_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    plot = comparison_page.scatter_plot
    monkeypatch.setattr(
        comparison_page,
        "scatter_plot",
        lambda series, **about: drawn.append((series, about)) or plot(series, **about),
    )
    page = written(compared(measured_sweep(tmp_path)), tmp_path / "to").read_text()
    ((series, about),) = drawn
    expected = {
        "10": [(0.01, 51.0), (0.0101, 52.0)],
        "20": [(0.02, 52.0), (0.0201, 53.0)],
    }
    assert series == {key: [pytest.approx(each) for each in expected[key]] for key in expected}
    assert (about["metric"], about["title"]) == ("bleu", "train.expected_batch_size")
    assert about["axis"] == "mean signal-to-noise ratio of the first 30 updates"
    assert page.count("<tr>") == 5
    assert '<td class="n">30</td><td class="n">0.0201</td><td class="n">53.0000</td>' in page
    assert "This page is private: it reads the records" in page
    assert "bleu on e2e, test" in page


def test_scores_of_a_private_split_are_named_so(tmp_path: Path) -> None:
    records = [with_own_scores(read_run(run)) for run in measured_sweep(tmp_path, public=False)]
    path = written(compare(records), tmp_path / "to")
    assert "bleu on e2e, private test" in path.read_text()


def test_a_run_shorter_than_thirty_steps_says_over_how_many_it_is_averaged(tmp_path: Path) -> None:
    run = measure(write_run(tmp_path / "run"), 0.5, steps=4)
    page = written(compared([run]), tmp_path / "to").read_text()
    assert '<td class="n">4</td><td class="n">0.500</td>' in page


def test_a_run_that_was_not_measured_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    runs = measured_sweep(tmp_path)
    (runs[2] / "private/diagnostics.jsonl").unlink()
    with pytest.raises(InputError) as error:
        written(compared(runs), tmp_path / "to")
    assert f"of their first 30 updates, got {runs[2]} without;" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "to").exists()
