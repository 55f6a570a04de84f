from typing import Any

import pytest

from dpft.errors import InputError
from dpft.reports.run.reference_map import saved_maps
from tests.reports.run.published_map import MAP, RATES, SIZES, run_config

ROWS, COLUMNS = MAP["rows"], MAP["columns"]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"cells": [[1.0, 2.0]]}, "2 lists of 2 scores"),
        ({"cells": [[1.0, 2.0], [3.0]]}, "got 2 lists of [2, 1]"),
        ({"rows": {**ROWS, "values": [0.1, 0.1]}}, "rows.values must be one or more values"),
        ({"columns": {**COLUMNS, "values": []}}, "columns.values must be one or more values"),
        ({"columns": {**COLUMNS, "key": ROWS["key"]}}, "got train.learning_rate twice"),
        ({"metric": "rouge_l"}, "rouge_l must be at most 1, as in metrics.json, got 10.5"),
        ({"eps": 0.0}, "reference_maps eps must be above 0"),
        ({"cell": []}, "must be as a recipe writes them"),
        ({"rows": {"values": RATES}}, "must be as a recipe writes them"),
        ({"cells": [[1.0, "two"], [3.0, 4.0]]}, "must be as a recipe writes them"),
    ],
)
def test_a_map_that_is_none_is_refused(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(InputError) as refused:
        saved_maps([{**MAP, **changes}])
    assert part in str(refused.value)


def test_a_run_has_the_score_of_its_cell_and_numbers_are_compared_as_numbers() -> None:
    (one,) = saved_maps(run_config(*(RATES[0], SIZES[1]))["reference_maps"])
    assert one.score_of(run_config(1e-3, 128.0)) == 20.5
    assert one.score_of(run_config(5e-4, 64, privacy={"eps": 3})) == 30.5


@pytest.mark.parametrize(
    "config",
    [
        run_config(5e-4, 128),
        run_config(2e-3, 64),
        run_config(1e-3, 65),
        run_config(1e-3, 64, privacy={"eps": 8.0}),
        run_config(1e-3, 64, privacy={"eps": None}),
        run_config(1e-3, 64, privacy={"name": "none"}),
        run_config(1e-3, 64, model={"name": "distilgpt2"}),
        run_config(1e-3, 64, method={"name": "lora"}),
        run_config(1e-3, 64, task={"name": "dart"}),
    ],
    ids=["unknown", "rate", "size", "eps", "no eps", "not private", "model", "method", "task"],
)
def test_a_run_of_other_settings_has_no_cell(config: dict[str, Any]) -> None:
    (one,) = saved_maps(config["reference_maps"])
    assert one.score_of(config) is None and one.row_of(config) is None


def test_a_map_without_privacy_is_of_runs_without_it() -> None:
    (one,) = saved_maps([{**MAP, "eps": None}])
    assert one.score_of(run_config(1e-3, 64, privacy={"name": "none", "eps": None})) == 10.5
    assert one.score_of(run_config(1e-3, 64, privacy={"eps": None})) is None
