"""Which files are taken for synthetic records, and of which something may be released."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dpft.audit.audited_run import records_and_unseen
from dpft.audit.synthetic_text import (
    FEWEST,
    ClassifierScores,
    Likeness,
    SyntheticFile,
    Utility,
    classifier_scores,
    commonest_class_scores,
    label_task,
    likeness,
    read_synthetic,
    shape_of,
    utility_of,
)
from dpft.errors import InputError, StateError
from dpft.files import write_json
from dpft.records.form import as_json
from dpft.runs.saved_run import saved_run
from dpft.runs.task_model import trained_model_of_run
from dpft.tasks.base import Example
from dpft.tasks.custom import CustomTexts
from dpft.tasks.e2e import E2ETask
from tests.audit.conftest import moods
from tests.reports.plain import privacy_of, stated
from tests.reports.test_privacy_record import record as private
from tests.stories.tiny import Workspace, write_rows

PRIVACY = private()
STATEMENT = {**stated(PRIVACY), "notes": ["it costs"]}
ROWS = [("name[Cafe]", "A cafe."), ("name[Inn]", "An inn.")]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "new.jsonl"
    write_rows(path, ROWS)
    path.chmod(0o644)
    return path


def read(file: Path, privacy: dict[str, Any] | None = PRIVACY) -> SyntheticFile:
    return read_synthetic(
        Path("run"), E2ETask(name="e2e", data_dir="data"), file, privacy and privacy_of(privacy)
    )


def state(file: Path, **changed: Any) -> None:
    write_json(file.with_name("new.privacy.json"), {**STATEMENT, **changed})


def test_what_a_model_wrote_is_read(file: Path) -> None:
    state(file)
    found = read(file)
    assert found.texts(10) == ["A cafe.", "An inn."]
    assert found.texts(1) == ["A cafe."]
    assert (found.notes, found.why_private) == (("it costs",), None)


def test_a_learned_prompt_is_written_too_unless_it_was_given(tmp_path: Path) -> None:
    task = CustomTexts(
        name="custom", prompt_template="{q}: ", target_template="{a}", learn_prompt=True
    )
    file = tmp_path / "new.jsonl"
    file.write_text('{"q": "Why", "a": "so"}\n')
    for prompts, text in (("none", "Why: so"), ("the user's", "so")):
        state(file, prompts=prompts)
        assert read_synthetic(Path("run"), task, file, privacy_of(PRIVACY)).texts(1) == [text]


@pytest.mark.parametrize("column", ["mood", "Mood"])
def test_a_row_whose_label_is_none_is_left_out_and_counted(tmp_path: Path, column: str) -> None:
    task = CustomTexts(
        name="custom",
        prompt_template="{mood}: ",
        target_template="{text}",
        learn_prompt=True,
        label_column="mood",
        labels=("bad", "good"),
        column_aliases={"Mood": "mood"} if column == "Mood" else {},
    )
    file = tmp_path / "new.jsonl"
    moods = ("bad", "pgative", "good", "")
    lines = (json.dumps({column: mood, "text": f"day of {mood}"}) for mood in moods)
    file.write_text("\n".join(lines))
    found = read_synthetic(Path("run"), task, file, None)
    assert found.texts(9) == ["day of bad", "day of good"]
    assert found.no_rows == 2
    file.write_text(json.dumps({column: "pgative", "text": "x"}))
    with pytest.raises(
        InputError, match="at least one row whose label is of task.labels, got none"
    ):
        read_synthetic(Path("run"), task, file, None)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.jsonl", None, "synthetic must name a file that `dpft generate` wrote, got"),
        ("new.txt", "text", r"synthetic must end with \.csv, .*got"),
        ("new.jsonl", "", "synthetic must hold at least one row, got none in"),
        ("new.jsonl", "text\n", "line 1: not a JSON object"),
        ("new.jsonl", '{"text": "a"}\n', "line 1: lacks the column meaning_representation"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said) as refused:
        read(tmp_path / name)
    assert len(refused.value.faults) == 1


def test_the_runs_own_records_are_refused(file: Path) -> None:
    (file.parent / "data").mkdir()
    write_rows(file.parent / "data/train.jsonl", ROWS)
    (file.parent / "link.jsonl").symlink_to(file.parent / "data/train.jsonl")
    with pytest.raises(InputError, match=r"which is the run's own train\.jsonl\."):
        read(file.parent / "link.jsonl")


def test_records_of_another_run_are_refused(file: Path) -> None:
    state(file, ledger={"lines": 3, "head": "b" * 64}, run="2026/1")
    with pytest.raises(InputError, match="got records of 2026/1, by the statement beside them"):
        read(file)


def test_without_a_statement_nothing_may_be_released(file: Path) -> None:
    assert "no new.privacy.json lies beside" in str(read(file).why_private)


def test_of_a_run_without_privacy_nothing_may_be_released(file: Path) -> None:
    state(file)
    reproducible = {**PRIVACY, "private": False}
    for privacy in (reproducible, None):
        assert "the run promises no privacy" in str(read(file, privacy).why_private)


def test_prompts_are_no_more_open_than_their_file(file: Path) -> None:
    state(file, prompts="the user's")
    assert read(file).why_private is None
    file.chmod(0o600)
    assert "prompts in a file that its owner alone may read" in str(read(file).why_private)


def test_a_damaged_statement_is_said(file: Path) -> None:
    for content in ("{", json.dumps({"schema_version": 1, "notes": "x", "prompts": "none"})):
        file.with_name("new.privacy.json").write_text(content)
        with pytest.raises(StateError, match="is damaged"):
            read(file)


def texts(seed: int, words: str, count: int = 200) -> list[str]:
    order = random.Random(seed)
    return [" ".join(order.choices(words.split(), k=12)) for _ in range(count)]


ONE, OTHER = "a pub in the old town by a river", "stones of red iron lie under gray moss"


def compared(synthetic: list[str], real: list[str]) -> Likeness:
    found = likeness(synthetic, real)
    assert isinstance(found, Likeness)
    return found


def test_texts_of_one_kind_are_not_told_apart() -> None:
    found = compared(texts(0, ONE), texts(1, ONE))
    assert found.records == 200
    assert found.p_value > 0.05
    for n, divergence in found.divergences.items():
        assert divergence == pytest.approx(found.control[n], abs=0.05)


def test_texts_of_two_kinds_are_told_apart() -> None:
    found = compared(texts(0, ONE), texts(1, OTHER))
    assert found.accuracy == 1
    assert found.p_value < 1e-20
    assert found.divergences == pytest.approx({1: 1.0, 2: 1.0, 3: 1.0})
    assert all(control < 0.5 for control in found.control.values())


def test_too_few_texts_are_not_compared() -> None:
    assert likeness(texts(0, ONE, FEWEST - 1), texts(1, ONE)) == (
        "fewer than 20 texts of a kind are too few to be told apart"
    )


def test_the_shape_of_texts() -> None:
    shape = shape_of(["a pub in town", "a pub in town", "b"])
    record = as_json(shape.record())
    assert shape.lengths == (4, 4, 1)
    assert shape.repeated == 2
    assert record["distinct_percent"] == pytest.approx(200 / 3)
    assert record["distinct_1"] == pytest.approx(5 / 9)
    assert record["distinct_3"] == pytest.approx(2 / 4)


def test_empty_texts_have_a_shape_too() -> None:
    assert shape_of([""]).record().distinct_2 == 0
    assert compared([""] * 20, [""] * 20).divergences == {1: 0.0, 2: 0.0, 3: 0.0}


PAIRS = CustomTexts(name="custom", prompt_template="{mood}: ", target_template="{text} ({owner})")


def example(mood: str, text: str) -> Example:
    return Example(prompt=mood, target=text, group="")


TAUGHT = [example("good", "great warm"), example("bad", "dull cold")] * 5


def test_the_class_is_read_apart_from_the_rest() -> None:
    row = {"mood": "good", "text": "a day", "owner": "o1"}
    (read,) = label_task(PAIRS, "mood").examples(row)
    assert (read.prompt, read.target) == ("good", "a day o1")
    (other,) = label_task(PAIRS, "owner").examples(row)
    assert (other.prompt, other.target) == ("o1", "good a day")


@pytest.mark.parametrize("label", ["mod", "other"])
def test_a_class_that_no_template_has_is_refused(label: str) -> None:
    with pytest.raises(InputError, match=r"audit\.label must be .* mood, text, owner, got"):
        label_task(PAIRS, label)


def test_a_task_without_columns_of_yours_has_no_class() -> None:
    with pytest.raises(InputError, match=r"audit\.label needs task=custom .* got task=e2e; drop"):
        label_task(E2ETask(name="e2e"), "food")


def test_a_classifier_learns_what_there_is_to_learn() -> None:
    tested = [example("good", "warm"), example("bad", "cold"), example("bad", "dull")]
    assert classifier_scores(TAUGHT, tested) == ClassifierScores(accuracy=1.0, macro_f1=1.0)
    assert commonest_class_scores(tested).accuracy == pytest.approx(2 / 3)
    assert classifier_scores(TAUGHT[:1], tested) == (
        "the records that it would learn from have one class alone"
    )


def test_training_and_held_out_records_keep_their_sides(texts_runs: Workspace) -> None:
    config, run, file = saved_run("held"), Path("held"), Path("synthetic.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in moods()[:30]))
    encoding = trained_model_of_run(run, config).encoding(config.task, max_new_tokens=None)
    records, unseen = records_and_unseen(run, config, encoding)
    found = utility_of(config, file, "mood", records, unseen, 100)
    assert isinstance(found, Utility)
    assert not isinstance(unseen, str)
    assert found.tested == len(unseen.records)
    for scores in (found.synthetic, found.training):
        assert isinstance(scores, ClassifierScores)
        assert scores.accuracy > found.commonest.accuracy
    assert "no column of a class" in str(utility_of(config, file, None, records, unseen, 100))
    assert "no real records" in str(utility_of(config, file, "mood", records, "why", 100))
