"""What a run trains on and what it scores are told apart once, and stay apart."""

import stat
from pathlib import Path
from typing import Any

import pytest

from dpft.commands import splits as held_out
from dpft.commands.scoring import not_evaluated
from dpft.commands.splits import (
    HELD_OUT,
    Division,
    TrainingData,
    divide,
    held_out_key,
    load_training_data,
    records_to_score,
)
from dpft.config.schema import EvaluateConfig, TrainConfig
from dpft.data.sources import load_examples
from dpft.run_folder import HELD_OUT_KEY, write_private
from tests.commands.configs import settings, with_privacy
from tests.rejections import rejects
from tests.stories.tiny import write_rows

ROWS = [(f"name[Place {number}]", f"Place {number} is a pub.") for number in range(40)]
KEY = b"k" * 32


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``one.csv``, rows of 20 owners, and ``splits`` with train and test."""
    root = tmp_path_factory.mktemp("held_out")
    rows = [f"Where is {number}?,In town {number}.,owner {number % 20}\n" for number in range(40)]
    (root / "one.csv").write_text("question,answer,owner\n" + "".join(rows))
    (root / "splits").mkdir()
    for split, count in (("train", 40), ("test", 6)):
        write_rows(root / "splits" / f"{split}.jsonl", ROWS[:count])
    return root


@pytest.fixture(scope="module")
def config(places: Path) -> TrainConfig:
    """A run on one file, half of which is held out."""
    return settings(
        "task=custom", f"task.data_dir={places / 'one.csv'}", 'task.prompt="{question}"',
        'task.target="{answer}"', "eval.held_out=0.5", "privacy.noise_multiplier=1",
    )  # fmt: skip


def changed(config: TrainConfig, **evaluation: Any) -> TrainConfig:
    return config.replace(eval=config.eval.replace(**evaluation))


def sides(data: TrainingData, division: Division) -> tuple[set[str], set[str]]:
    """Return the prompts that are trained on, and those that are scored."""
    kept = {data.examples[at].prompt for at in division.kept}
    return kept, {example.prompt for example in division.scored[HELD_OUT]}


@pytest.mark.slow
def test_every_record_is_trained_on_or_scored_and_none_is_both(config: TrainConfig) -> None:
    data = load_training_data(config)
    kept, held = sides(data, divide(config, data))
    assert kept and held and not kept & held
    assert len(kept | held) == 40


def test_all_records_of_a_unit_fall_on_one_side(config: TrainConfig) -> None:
    config = with_privacy(config, unit="owner")
    data = load_training_data(config)
    kept, held = sides(data, divide(config, data))
    assert data.units is not None
    owners = dict(zip([each.prompt for each in data.examples], data.units, strict=True))
    assert {owners[prompt] for prompt in kept}.isdisjoint({owners[prompt] for prompt in held})
    assert len(kept | held) == 40


def test_a_key_decides_and_a_fresh_one_is_drawn_for_each_run(config: TrainConfig) -> None:
    data = load_training_data(config)
    assert divide(config, data, KEY) == divide(config, data, KEY)
    first, second = divide(config, data), divide(config, data)
    assert first.key != second.key and list(first.kept) != list(second.kept)


def test_without_evaluation_what_is_held_out_is_not_trained_on_either(config: TrainConfig) -> None:
    data = load_training_data(config)
    division = divide(changed(config, enabled=False), data, KEY)
    assert division.kept == divide(config, data, KEY).kept and division.scored == {}


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_a_side_without_a_record_is_refused(config: TrainConfig, fraction: float) -> None:
    data = load_training_data(config)
    with rejects("eval.held_out", fraction):
        divide(changed(config, held_out=fraction), data, KEY)


def with_splits(config: TrainConfig, places: Path) -> TrainConfig:
    """The same on a folder that has a split to score."""
    fields = {"prompt_template": "{meaning_representation}", "target_template": "{human_reference}"}
    folder = config.task.replace(data_dir=str(places / "splits"), **fields)
    return config.replace(task=folder)


def test_nothing_is_held_out_where_there_is_a_split_to_score(
    config: TrainConfig, places: Path
) -> None:
    own = with_splits(config, places)
    data = load_training_data(own)
    with rejects("eval.held_out", 0.5):
        divide(own, data)
    division = divide(changed(own, held_out=None), data)
    assert (list(division.kept), division.key) == (list(range(40)), None)
    (scored,) = division.scored.values()
    assert len(scored) == 6
    assert divide(changed(own, held_out=None, enabled=False), data).scored == {}


def test_one_file_as_a_whole_is_trained_on_and_that_nothing_is_scored_is_said(
    config: TrainConfig, caplog: pytest.LogCaptureFixture
) -> None:
    whole = changed(config, held_out=None)
    division = divide(whole, load_training_data(whole))
    assert (len(division.kept), division.scored) == (40, {})
    assert "no evaluation: the data have only a training split" in caplog.text
    (entry,) = not_evaluated(whole)
    assert (entry.metrics, entry.examples, entry.stage) == ({}, 0, "after")
    assert entry.not_computed.keys() == set(config.task.metrics)
    assert not_evaluated(config) == [] == not_evaluated(changed(whole, enabled=False))


def test_the_key_of_a_run_is_the_owners_alone_and_no_earlier_runs(
    tmp_path: Path, config: TrainConfig
) -> None:
    division = divide(config, load_training_data(config), KEY)
    write_private(tmp_path, {HELD_OUT_KEY: division.key_text})
    path = tmp_path / "private" / "held_out.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert held_out_key(tmp_path) == (KEY, division.fingerprint)
    write_private(tmp_path, {HELD_OUT_KEY: Division(kept=[0], scored={}).key_text})
    assert not path.exists()
    with rejects(str(path)):
        held_out_key(tmp_path)


@pytest.fixture
def scoring(tmp_path: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> EvaluateConfig:
    """What ``dpft eval`` scores: a run in ``tmp_path`` that held records out by ``KEY``."""
    division = divide(config, load_training_data(config), KEY)
    write_private(tmp_path, {HELD_OUT_KEY: division.key_text})
    monkeypatch.setattr(held_out, "saved_run", lambda _: config)
    parts = {name: getattr(config, name) for name in ("task", "model", "eval", "decode")}
    return EvaluateConfig(**parts, run=str(tmp_path))


def test_a_run_is_scored_later_on_what_it_held_out(
    scoring: EvaluateConfig, config: TrainConfig
) -> None:
    assert records_to_score(scoring) == divide(config, load_training_data(config), KEY).scored


def test_what_was_trained_on_is_never_scored_as_held_out(
    scoring: EvaluateConfig, config: TrainConfig, tmp_path: Path
) -> None:
    """One row more at the top would move every later one, and trained ones among the scored."""
    with rejects("eval.held_out", 0.9):
        records_to_score(scoring.replace(eval=scoring.eval.replace(held_out=0.9)))
    with rejects("eval.held_out", 0.5):
        records_to_score(scoring.replace(run=None))
    header, *rows = Path(str(config.task.data_dir)).read_text().splitlines(keepends=True)
    for edited in (["new,new,new\n", *rows], rows[::-1], rows[1:]):
        (tmp_path / "other.csv").write_text("".join([header, *edited]))
        task = scoring.task.replace(data_dir=str(tmp_path / "other.csv"))
        with rejects("eval.held_out", 0.5):
            records_to_score(scoring.replace(task=task))


def test_a_corrected_unit_is_another_record(
    tmp_path: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch, scoring: EvaluateConfig
) -> None:
    config = with_privacy(config, unit="owner")
    division = divide(config, load_training_data(config), KEY)
    write_private(tmp_path, {HELD_OUT_KEY: division.key_text})
    monkeypatch.setattr(held_out, "saved_run", lambda _: config)
    records_to_score(scoring)
    text = Path(str(config.task.data_dir)).read_text()
    (tmp_path / "other.csv").write_text(text.replace("owner 7\n", "owner 8\n", 1))
    task = scoring.task.replace(data_dir=str(tmp_path / "other.csv"))
    with rejects("eval.held_out", 0.5):
        records_to_score(scoring.replace(task=task))


def test_without_held_out_records_the_split_itself_is_scored(
    scoring: EvaluateConfig, config: TrainConfig, places: Path
) -> None:
    task = with_splits(config, places).task
    plain = scoring.replace(task=task, eval=scoring.eval.replace(held_out=None))
    assert records_to_score(plain) == {"test": load_examples(task, "test")}
