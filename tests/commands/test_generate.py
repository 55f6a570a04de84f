"""Synthetic records: from what prompts, into which files, and never without what they cost."""

from pathlib import Path
from typing import Any

import pytest

from dpft.commands.generate import generated_task, privacy_of, prompts_of, source_of_prompts
from dpft.config.schema import GenerateConfig
from dpft.errors import StateError
from dpft.generation.decoding import DecodeConfig
from dpft.reports.privacy_json import OWN_RECORDS
from dpft.tasks.custom import CustomTexts
from dpft.tasks.e2e import E2ETask
from dpft.tasks.glue import GlueTask
from tests.commands.run_folders import make_run
from tests.rejections import rejects
from tests.stories.tiny import write_rows

E2E = E2ETask(name="e2e", data_dir="data")
WHOLE = CustomTexts(name="custom", data_dir="data", text_template="{text}")
PAIRS = CustomTexts(name="custom", data_dir="data", prompt_template="{q}: ", target_template="{a}")
LEARNED = PAIRS.replace(learn_prompt=True)
ROWS = [("name[Cafe 1]", "A cafe."), ("name[Cafe 2]", "A cafe.")]
NUCLEUS = DecodeConfig(strategy="nucleus")


def asked(**given: Any) -> GenerateConfig:
    return GenerateConfig(**{"task": E2E, "decode": NUCLEUS, "run": "outputs/a/b", **given})


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with ``data``, the records of a run, and ``prompts.jsonl``."""
    (tmp_path / "data").mkdir()
    for split in ("train", "validation", "test"):
        write_rows(tmp_path / "data" / f"{split}.jsonl", ROWS)
    write_rows(tmp_path / "prompts.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_what_a_runs_texts_cost_must_be_known(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    assert privacy_of(folder).private
    (folder / "privacy.json").write_text("{")
    with pytest.raises(StateError, match=r"privacy\.json"):
        privacy_of(folder)
    (folder / "privacy.json").unlink()
    with rejects("run", str(folder)):
        privacy_of(folder)


def test_a_task_of_labels_is_refused() -> None:
    task = GlueTask(name="rte", labels=("yes", "no"), objective="cls")
    with rejects("run", "outputs/a/b") as faults:
        generated_task(asked(task=task, num=1), task)
    assert faults[0].hint == "dpft eval run=outputs/a/b"


def test_prompts_are_the_rows_of_the_file_in_its_order(data: Path) -> None:
    config = asked(prompts="prompts.jsonl")
    rows = [row for row, _ in prompts_of(config, E2E)]
    assert [list(row.values()) for row in rows] == [[record] for record, _ in ROWS]


def test_where_whole_records_were_trained_on_the_model_goes_on_from_nothing() -> None:
    prompts = prompts_of(asked(task=WHOLE, num=3), WHOLE)
    assert [(row, example.prompt) for row, example in prompts] == [({}, "")] * 3


def test_the_other_way_to_ask_is_refused_by_task(data: Path) -> None:
    with rejects("num", 3) as faults:
        generated_task(asked(num=3), E2E)
    assert "meaning_representation" in faults[0].message
    with rejects("num", 3) as faults:
        generated_task(asked(task=PAIRS, num=3), PAIRS)
    assert "task.learn_prompt=true" in faults[0].message
    with rejects("prompts", "prompts.jsonl") as faults:
        prompts_of(asked(prompts="prompts.jsonl"), WHOLE)
    assert str(faults[0].hint).startswith("num=")


def test_a_learned_prompt_is_written_from_nothing_or_given() -> None:
    whole = generated_task(asked(task=LEARNED, num=1), LEARNED)
    assert whole.record({}, "Why: so") == {"q": "Why", "a": "so"}
    assert generated_task(asked(task=LEARNED, prompts="x"), LEARNED) == LEARNED


@pytest.mark.parametrize(("task", "trained"), [(LEARNED, PAIRS), (PAIRS, LEARNED)])
def test_whether_a_prompt_was_learned_cannot_be_said_afterwards(task: Any, trained: Any) -> None:
    for given in ({"num": 1}, {"prompts": "x"}):
        with rejects("task.learn_prompt", str(task.learn_prompt).lower()):
            generated_task(asked(task=task, **given), trained)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_prompts_that_are_the_runs_own_records_are_recognized(data: Path, split: str) -> None:
    (data / "link.jsonl").symlink_to(data / "data" / f"{split}.jsonl")
    for file in (f"data/{split}.jsonl", "link.jsonl"):
        assert source_of_prompts(asked(prompts=file), E2E) == OWN_RECORDS
    assert source_of_prompts(asked(prompts="prompts.jsonl"), E2E) == "the user's"
    assert source_of_prompts(asked(num=3), E2E) == "none"
