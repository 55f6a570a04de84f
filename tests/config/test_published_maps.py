"""The published heat maps of conf/experiment: Figures 2 and 8 of Li et al. 2022, 2110.05679."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from dpft.config.hydra_compose import compose
from dpft.config.load import config_directory, load, load_saved, to_yaml
from dpft.config.references import ReferenceMap
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.reports.published import published_table
from dpft.strict_model import parse
from tests.rejections import rejects
from tests.reports.plain import run_of
from tests.reports.test_privacy_record import record as private

FIGURES = {
    "li2022_figure2": ("Figure 2", (6, 6)),
    "li2022_figure8_batch_size": ("Figure 8 a", (10, 6)),
    "li2022_figure8_clipping_norm": ("Figure 8 b", (5, 5)),
}
TABLE_4 = {
    **{"method.name": "full", "scheduler.name": "constant", "privacy.delta": None},
    **{"train.epochs": 10, "train.weight_decay": 0.0},
}
"""Full, no learning rate decay, δ = 1/2|D|, ten epochs, no weight decay."""


@cache
def written(name: str) -> dict[str, Any]:
    path = config_directory() / f"experiment/{name}.yaml"
    values = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(values, dict)
    return values


@cache
def published_map(name: str) -> ReferenceMap:
    (one,) = [parse(each, ReferenceMap) for each in written(name)["reference_maps"]]
    return one


@pytest.mark.parametrize("name", FIGURES)
def test_a_figures_map_is_over_what_its_sweep_goes_over(name: str) -> None:
    one, (figure, shape) = published_map(name), FIGURES[name]
    params = dict(written(name)["hydra"]["sweeper"]["params"])
    assert params.pop("train.seed") == 0  # the figures' seeds are not told
    swept = {key: [float(value) for value in values.split(",")] for key, values in params.items()}
    assert {axis.key: list(axis.values) for axis in (one.rows, one.columns)} == swept
    assert (len(one.cells), len(one.cells[0])) == shape
    assert (one.source, one.metric, one.model) == (f"Li et al. 2022, {figure}", "bleu", "gpt2")
    assert (one.task, one.split, one.eps) == ("e2e", "test", 3)
    # Table 4: clipping norm 0.1 and batch size 1024, where the figure does not vary them
    fixed = {"privacy.max_grad_norm": 0.1, "train.expected_batch_size": 1024}
    fixed = {key: value for key, value in fixed.items() if key not in swept}
    assert one.settings == {**TABLE_4, **fixed}


@pytest.mark.parametrize("name", FIGURES)
def test_only_the_learning_rates_are_the_papers(name: str) -> None:
    one = published_map(name)
    assert one.rows.key == "train.learning_rate" and one.rows.values_are is None
    assert "not read from the paper" in (one.columns.values_are or "")


@pytest.mark.parametrize(
    ("name", "row", "scores"),
    [
        ("li2022_figure2", 0, (2.12, 12.92, 28.46, 61.98, 62.94, 61.17)),
        # 29.3 and a sign that is no digit
        ("li2022_figure2", 5, (29.08, 29.56, None, 29.71, 16.75, 10.97)),
        ("li2022_figure8_batch_size", 1, (4.10, 11.27, 3.82, 63.77, 63.23, 62.54)),
        ("li2022_figure8_batch_size", 9, (2.67, 7.56, 10.10, 4.92, 0.86, 0.00)),
        ("li2022_figure8_clipping_norm", 0, (60.26, 59.58, 60.01, 57.87, 35.44)),
        ("li2022_figure8_clipping_norm", 4, (9.69, 9.69, 9.68, 9.65, 5.79)),
    ],
)
def test_a_row_of_a_map_is_as_published(
    name: str, row: int, scores: tuple[float | None, ...]
) -> None:
    cells = published_map(name).cells
    assert cells[row] == scores
    unknown = [(i, j) for i, row in enumerate(cells) for j, one in enumerate(row) if one is None]
    assert unknown == ([(5, 2)] if name == "li2022_figure2" else [])


def command(*words: str) -> TrainConfig:
    """What ``dpft train`` with some words keeps in its folder."""
    composed = compose("train", words, TrainCommand).values
    return load(composed, TrainCommand).settings()


@pytest.mark.slow
def test_a_saved_run_of_a_sweep_finds_its_cell_and_says_whose_its_inherited_rows_are(
    tmp_path: Path,
) -> None:
    rate, size = "train.learning_rate=2e-3", "train.expected_batch_size=512"
    config = command("experiment=li2022_figure8_batch_size", "privacy.eps=3", rate, size)
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert load_saved(path, TrainConfig) == config
    saved = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(saved, dict)
    table = published_table(run_of(saved, private()), [], "3")
    assert table is not None
    cell, *inherited = table.rows
    assert cell[0].startswith("Li et al. 2022, Figure 8 a: ")
    assert cell[2][table.metrics.index("bleu")] == 63.77
    assert len(inherited) == 3
    assert all("train.expected_batch_size 1024" in name for name, *_ in inherited)
    assert all("(this run has a different train." in name for name, *_ in inherited)


@pytest.mark.slow
def test_a_wrong_map_is_refused_with_its_key() -> None:
    axis = "{key: train.epochs, values: [1]}"
    row = f"[{{source: a, what: b, task: e2e, split: test, metric: bleu, rows: {axis}, columns:"
    with rejects("reference_maps[0].columns"):
        command("privacy.eps=3", f"reference_maps={row} ???, cells: [[1]]}}]")
    other = "{key: train.seed, values: [0, 1]}"
    with rejects("reference_maps", [1]):
        command("privacy.eps=3", f"reference_maps={row} {other}, cells: [[1]]}}]")
