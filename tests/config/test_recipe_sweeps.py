"""The sweeps of conf/experiment: those behind a paper's figures, by Hydra's own sweeper."""

import math
import re
import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from dpft.commands.overrides import without_recipes_promise
from dpft.commands.report import ReportConfig
from dpft.config.account import AccountConfig
from dpft.config.hydra_compose import compose
from dpft.config.load import config_directory, load
from dpft.config.schema import TrainCommand
from dpft.privacy.plan import planned_steps
from tests.slowness import slow_but_every

EXPERIMENTS = sorted(config_directory().glob("experiment/*.yaml"))
SWEEPS = [path for path in EXPERIMENTS if "--multirun" in path.read_text().splitlines()[1]]


def swept(path: Path) -> dict[str, list[str]]:
    """The keys that a sweep goes over, and their values as Hydra's sweeper splits them."""
    parser = OverridesParser.create()
    values = {}
    for key, choices in OmegaConf.load(path).hydra.sweeper.params.items():
        override = parser.parse_override(f"{key}={choices}")
        one = not override.is_sweep_override()
        values[key] = [str(choices)] if one else list(override.sweep_string_iterator())
    return values


def whole_sweep(path: Path) -> dict[str, str]:
    """What --multirun of a recipe goes over: its own values above those that it builds on."""
    recipe = OmegaConf.to_container(OmegaConf.load(path))
    bases = [one for one in recipe.get("defaults", []) if isinstance(one, str) and one != "_self_"]
    inherited = whole_sweep(path.with_stem(bases[0])) if bases else {}
    return inherited | recipe.get("hydra", {}).get("sweeper", {}).get("params", {})


def command(path: Path, subcommand: str) -> list[str]:
    """The words after ``dpft SUBCOMMAND`` in the head of a sweep."""
    head = path.read_text().partition("defaults:")[0]
    (words,) = re.findall(rf"dpft {subcommand} (.*)", head)
    return shlex.split(words)


def report_of(path: Path) -> ReportConfig:
    """The report that the head of a sweep names."""
    return load(compose("report", command(path, "report"), ReportConfig).values, ReportConfig)


def test_the_figures_are_there() -> None:
    names = {path.stem.split("_")[1] for path in SWEEPS}
    assert {f"figure{number}" for number in (1, 2, 3, 5, 7, 8, 9)} <= names


SECTION_5 = re.compile(r"\(Li et al\. 2022, Tables? [12378]\b|\(Li et al\. 2022, Figures? [15]\b")


@pytest.mark.parametrize("path", slow_but_every(24, EXPERIMENTS), ids=lambda path: path.stem)
def test_three_seeds_are_swept_where_the_paper_has_three(path: Path) -> None:
    """Li et al. 2022, section 5: "averaged over three seeds"; Table 14; Appendix S's code."""
    purpose = path.read_text().splitlines()[1]
    three = SECTION_5.search(purpose) or "(Li et al. 2022, Appendix S)" in purpose
    seeds = whole_sweep(path).get("train.seed")
    assert (seeds == "0,1,2") == bool(three)
    if three and path not in SWEEPS:
        assert f"dpft train --multirun experiment={path.stem} " in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("path", slow_but_every(len(SWEEPS), SWEEPS), ids=lambda path: path.stem)
def test_a_sweep_composes_and_says_how_many_runs_it_is(path: Path) -> None:
    values = swept(path)
    runs = math.prod(map(len, values.values()))
    assert f", {runs} runs (" in path.read_text()
    words = command(path, "train")
    assert words[0] == "--multirun"
    one = [f"{key}={choices[-1]}" for key, choices in values.items()]
    made = compose("train", [*words[1:], *one], TrainCommand)
    assert set(made.hydra.sweeper.params) == set(values)
    load(without_recipes_promise(made.values, words), TrainCommand)


@pytest.mark.parametrize("path", slow_but_every(6, SWEEPS), ids=lambda path: path.stem)
def test_no_value_of_a_sweep_stands_there_twice(path: Path) -> None:
    for choices in swept(path).values():
        assert len(set(choices)) == len(choices)


@pytest.mark.slow
@pytest.mark.parametrize("path", slow_but_every(len(SWEEPS), SWEEPS), ids=lambda path: path.stem)
def test_a_sweep_names_the_report_that_draws_it(path: Path) -> None:
    report = report_of(path)
    assert report.metrics and report.file is not None
    assert set(report.over or ()) <= set(swept(path))


def test_figure_2_is_a_part_of_figure_8() -> None:
    """Li et al. 2022 (arXiv 2110.05679): both are of learning rate and batch size."""
    part, whole = (
        swept(config_directory() / f"experiment/li2022_{name}.yaml")
        for name in ("figure2", "figure8_batch_size")
    )
    rates = [float(rate) for rate in whole["train.learning_rate"]]
    # Figure 8 a: 1e-3 times 4, 2 and 1, and over 2, 4, 32, 64, 128, 256 and 512.
    assert rates == [1e-3 * 2.0**power for power in (2, 1, 0, -1, -2, -5, -6, -7, -8, -9)]
    assert part["train.learning_rate"] == whole["train.learning_rate"][2:8]
    assert part["train.expected_batch_size"] == whole["train.expected_batch_size"]


@pytest.mark.slow
def test_figure_3_has_noise_and_scores_at_the_same_fixed_steps() -> None:
    """Li et al. 2022 (arXiv 2110.05679), Table 4: ten epochs at 1024, learning rate 1e-3."""
    path = config_directory() / "experiment/li2022_figure3.yaml"
    words = ["experiment=li2022_figure3", "privacy.eps=3"]
    config = compose("train", words, TrainCommand).values
    account = [*command(path, "account")[:-1], "expected_batch_size=64"]
    left = load(compose("account", account, AccountConfig).values, AccountConfig)
    ten_epochs = planned_steps(epochs=10, num_examples=42061, expected_batch_size=1024)
    assert (config.train.steps, config.train.learning_rate) == (ten_epochs, 1e-3)
    assert (left.steps, left.epochs, left.eps, left.accountant) == (ten_epochs, None, 3, "rdp")
    assert left.num_examples == config.task.num_train_examples == 42061
    sizes = swept(path)["train.expected_batch_size"]
    assert sizes == swept(path.with_stem("li2022_figure2"))["train.expected_batch_size"]
