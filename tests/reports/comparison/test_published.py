"""Published heat maps beside those of a sweep."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from dpft.reports.comparison.compare import Comparison
from dpft.reports.comparison.pages import markdown, page
from dpft.reports.comparison.published import PublishedPivot, published_pivots
from tests.reports.comparison.swept_runs import compared
from tests.reports.run.folders import write_run
from tests.reports.run.published_map import MAP, NOT_THE_PAPERS
from tests.slowness import slow

KEYS = ("train.learning_rate", "train.expected_batch_size")
RATES, SIZES = (0.001, 0.0005), (64, 128, 256)


def sweep(root: Path, *, over: tuple[str, str] = KEYS, **options: Any) -> Comparison:
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
    (one,) = published(sweep(tmp_path))
    assert (one.rows, one.columns) == (["0.0005", "0.001"], ["64", "128"])
    assert one.cells == [[30.5, None], [10.5, 20.5]]
    # 5e-4: 43 to 45; 1e-3: 40 to 42; the map has neither 256 nor a score of 5e-4 and 128
    assert one.differences == [[12.5, None, None], [29.5, 20.5, None]]


def test_a_table_the_other_way_round_has_the_map_the_other_way_round(tmp_path: Path) -> None:
    (one,) = published(sweep(tmp_path, over=(KEYS[1], KEYS[0])))
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
    comparison = sweep(tmp_path, **options)
    assert published(comparison) == []
    assert "ublished" not in markdown(comparison) and "ublished" not in page(comparison)


def test_runs_over_other_keys_are_shown_without_the_map(tmp_path: Path) -> None:
    for number, (rate, decay) in enumerate(itertools.product(RATES, (0.0, 0.1))):
        train = {"learning_rate": rate, "weight_decay": decay, "expected_batch_size": 64}
        write_run(tmp_path / str(number), train=train, model={"name": "gpt2"}, reference_maps=[MAP])
    keys = ("train.learning_rate", "train.weight_decay")
    assert published(compared(sorted(tmp_path.iterdir()), over=keys)) == []


def test_markdown_has_the_map_the_differences_and_whose_the_values_are(tmp_path: Path) -> None:
    text = markdown(sweep(tmp_path))
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
    comparison = sweep(tmp_path, reference_maps=[moved])
    none = "None of these runs has the settings of a published score."
    for text in (markdown(comparison), page(comparison)):
        assert none in text and "+" not in text.partition("less the published")[2][:200]


def test_both_heat_maps_are_drawn_in_the_same_colors(tmp_path: Path) -> None:
    """The published map's least and greatest of all, 10.5 and 45, are the ends of one scale."""
    text = page(sweep(tmp_path))
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
    assert page(sweep(tmp_path / "none", reference_maps=[])).count('heat map"') == 2


def test_runs_are_of_one_setting_with_and_without_the_map(tmp_path: Path) -> None:
    for number, maps in enumerate(([], [MAP])):
        write_run(tmp_path / str(number), train={"seed": number}, reference_maps=maps)
    (setting,) = compared(sorted(tmp_path.iterdir())).settings
    assert len(setting.runs) == 2
