"""Which published results a run's page has, and of what settings it says that they are."""

import re
from typing import Any

import pytest

from dpft.config.references import ReferenceMap
from dpft.reports.published import published_table
from dpft.reports.report import public_configuration
from dpft.strict_model import parse
from tests.reports.folders import MAP, NOT_THE_PAPERS, run_config
from tests.reports.plain import render, run_of
from tests.reports.test_report import BOTH, CONFIG, entry, private

TABLE = {"source": "Paper, Table 7", "what": "full", "model": None, "eps": 3.0}
ROW = {**TABLE, "metrics": {"bleu": 61.5}}


def published(config: dict[str, Any]) -> list[tuple[str, str, list[float | None]]]:
    """The rows below the run's own."""
    table = published_table(run_of(config, private()), BOTH, "2.99")
    return [] if table is None else table.rows[1:]


def test_a_run_of_a_cell_shows_it_with_its_settings_and_those_that_are_not_the_papers() -> None:
    ((name, epsilon, values),) = published(run_config(1e-3, 128))
    assert (epsilon, values) == ("3", [20.5])
    assert name == (
        "Paper, Figure 1: full, E2E test (values of train.expected_batch_size"
        f" {NOT_THE_PAPERS}), gpt2; with the same train.learning_rate 0.001,"
        " train.expected_batch_size 128 as this run"
    )


def test_a_run_elsewhere_shows_no_cell() -> None:
    assert published(run_config(1e-3, 256)) == published(run_config(5e-4, 128)) == []


def test_the_configuration_on_the_page_leaves_the_whole_map_out() -> None:
    config = run_config(1e-3, 64)
    assert set(config) - set(public_configuration(config, ())) == {"reference_maps"}


def test_inherited_rows_of_a_map_s_run_are_of_their_table_s_own_settings() -> None:
    config = {**run_config(1e-3, 64), "reference": [ROW]}
    (cell, _, _), (table, _, _) = published(config)
    assert "Figure 1" in cell
    assert table == "Paper, Table 7: full; with the settings of its table"
    assert published({**CONFIG, "reference": [ROW]})[0][0] == "Paper, Table 7: full"
    assert "A row without settings has those of its table" in render(
        {**CONFIG, "reference": [ROW]}, private(), BOTH
    )


def test_a_row_with_settings_says_whether_they_are_the_runs() -> None:
    row = {**ROW, "settings": {"train.learning_rate": 2e-3}}
    config = {**CONFIG, "reference": [row]}
    assert published(config)[0][0].endswith(
        "full; with the same train.learning_rate 0.002 as this run"
    )
    other = {**config, "train": {**CONFIG["train"], "learning_rate": 1e-3}}
    name = "with train.learning_rate 0.002 (this run has a different train.learning_rate)"
    assert published(other)[0][0].endswith(name)


def test_a_row_over_several_splits_stands_below_one_of_the_runs_own() -> None:
    """Ponomareva et al. 2022, Table 2: a column for each task of GLUE."""
    row = {**TABLE, "metrics": {"sst2_validation.accuracy": 0.948, "validation.accuracy": 0.894}}
    scores = {"sst2_validation": 0.5, "rte_validation": 0.25, "validation": 0.375}
    own = [entry("after", 0.0, split=name, metrics={"accuracy": v}) for name, v in scores.items()]
    table = published_table(run_of({**CONFIG, "reference": [row]}, private()), own, "not private")
    assert table is not None and table.metrics == list(row["metrics"])
    assert table.rows[0] == ("this run", "not private", [0.5, 0.375])
    assert table.rows[1][2] == [0.948, 0.894]
    with pytest.raises(ValueError, match="sst2_validation.accuracy"):
        published({**CONFIG, "reference": [{**row, "metrics": {"sst2_validation.accuracy": 94.8}}]})


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"cells": [[1.0, 2.0]]}, "2 rows"),
        ({"cells": [[1.0, 2.0], [3.0]]}, "[2, 1]"),
        ({"metric": "rouge_l"}, "10.5"),
    ],
)
def test_a_map_that_is_none_is_refused(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=re.escape(part)):
        parse({**MAP, **changes}, ReferenceMap)


def score_of(one: ReferenceMap, config: dict[str, Any]) -> float:
    row = one.row_of(config)
    assert row is not None
    return row.metrics["bleu"]


def test_a_run_has_the_score_of_its_cell_and_numbers_are_compared_as_numbers() -> None:
    one = parse(MAP, ReferenceMap)
    assert score_of(one, run_config(1e-3, 128.0)) == 20.5
    assert score_of(one, run_config(5e-4, 64, privacy={"eps": 3})) == 30.5


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
    (found,) = config["reference_maps"]
    one = parse(found, ReferenceMap)
    assert one.row_of(config) is None


def test_a_map_without_privacy_is_of_runs_without_it() -> None:
    one = parse({**MAP, "eps": None}, ReferenceMap)
    assert score_of(one, run_config(1e-3, 64, privacy={"name": "none", "eps": None})) == 10.5
    assert one.row_of(run_config(1e-3, 64, privacy={"eps": None})) is None
