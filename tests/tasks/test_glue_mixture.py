"""GLUE's tasks together: what each row becomes, how many of them, and what is scored."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from dpft.config.hydra_compose import compose
from dpft.data.sources import has_split, load_examples
from dpft.evaluation.evaluate import Evaluation, mean_of
from dpft.tasks.glue_mixture import GlueMixture
from tests.rejections import rejects
from tests.tasks.test_conf import CONF, built

ROWS = {
    "cola": {"sentence": "A cat."}, "sst2": {"sentence": "fine"},
    "stsb": {"sentence1": "a", "sentence2": "b"},
    "mnli": {"premise": "rain", "hypothesis": "wet"},
}  # fmt: skip


def mixture(folder: Path | None = None, **changes: Any) -> GlueMixture:
    values = OmegaConf.to_object(OmegaConf.load(CONF / "glue_mixture.yaml"))
    where = {} if folder is None else {"data_dir": str(folder)}
    task = built(values | where | changes)
    assert isinstance(task, GlueMixture)
    return task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, row in ROWS.items():
        place = tmp_path / name
        place.mkdir()
        splits = ("validation_matched", "validation_mismatched")
        for split in ("train", *(splits if name == "mnli" else ("validation",))):
            count = 6 if split == "train" else 2
            lines = [json.dumps({**row, "label": number % 2}) for number in range(count)]
            (place / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def of(*names: str) -> dict[str, Any]:
    return {"tasks": {name: mixture().tasks[name] for name in names}}


def test_its_tasks_are_those_of_their_own_configurations() -> None:
    for name, values in mixture().tasks.items():
        own = OmegaConf.to_object(OmegaConf.load(CONF / f"{name}.yaml"))
        parts = own["split_parts"].get("validation", ["validation"])
        assert values == {
            "text_columns": own["text_columns"], "labels": own["labels"],
            "max_score": own["max_score"], "num_train_examples": own["num_train_examples"],
            "parts": parts,
        }  # fmt: skip


@pytest.mark.slow
def test_every_row_is_the_record_that_its_own_task_makes(folder: Path) -> None:
    records = load_examples(mixture(folder, **of(*ROWS)), "train")
    assert len(records) == 4 * 6
    assert [(r.prompt, r.target) for r in records[::6]] == [
        ("cola sentence: A cat.", "unacceptable"),
        ("sst2 sentence: fine", "negative"),
        ("stsb sentence1: a sentence2: b", "0.0"),
        ("mnli hypothesis: wet premise: rain", "entailment"),
    ]


@pytest.mark.slow
def test_a_limit_bounds_each_tasks_training_records_and_no_others(folder: Path) -> None:
    limited = mixture(folder, **of(*ROWS), mixture_limit=2)
    assert len(load_examples(limited, "train")) == 4 * 2
    assert (
        len(load_examples(mixture(folder, **of("sst2"), mixture_limit=1), "sst2_validation")) == 2
    )


def test_parts_are_each_tasks_own(folder: Path) -> None:
    task = mixture(folder, **of("sst2", "mnli"))
    assert task.parts("validation") == (
        "sst2_validation", "mnli_validation_matched", "mnli_validation_mismatched",
    )  # fmt: skip
    assert len(load_examples(task, "mnli_validation_mismatched")) == 2
    assert has_split(task, "validation") and not has_split(task, "test")
    with rejects():
        load_examples(task, "validation")


@pytest.mark.slow
def test_the_public_number_is_that_of_all_tasks_within_the_limit() -> None:
    assert mixture().public_num_train_examples == 949_098
    limited = mixture(mixture_limit=10_000, **of("rte", "mnli"))
    assert limited.public_num_train_examples == 2490 + 10_000
    assert mixture(Path("data")).public_num_train_examples is None


def test_the_mean_counts_every_part_alike() -> None:
    def scored(part: str, count: int, **metrics: float) -> Evaluation:
        return Evaluation(
            task="glue_mixture", split=part, examples=count, stage="after", metrics=metrics,
            not_computed={}, predictions=(),
        )  # fmt: skip

    mean = mean_of([scored("a", 2, accuracy=1.0), scored("b", 8, accuracy=0.5)], "validation")
    assert (mean.split, mean.examples, mean.metrics) == ("validation", 10, {"accuracy": 0.75})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"tasks": {}}, "task.tasks"),
        ({"tasks": {"wnli": {}}}, "task.tasks"),
        ({"tasks": {"sst2": {"labels": ["a", "b"]}}}, "task.tasks.sst2"),
        ({"mixture_limit": 0}, "task.mixture_limit"),
    ],
)
def test_an_invalid_mixture_is_rejected(changes: dict[str, Any], key: str) -> None:
    with rejects(key):
        mixture(**changes)


@pytest.mark.slow
def test_a_private_run_leaves_no_row_out_for_those_before_it() -> None:
    from dpft.config.load import load
    from dpft.config.schema import TrainCommand

    words = ["task=glue_mixture", "task.mixture_limit=5", "model=t5-small"]
    for privacy in ("privacy=none", "privacy.eps=3"):
        composed = compose("train", [*words, privacy], TrainCommand)
        if privacy == "privacy=none":
            load(composed.values, TrainCommand)
            continue
        with rejects("task.mixture_limit"):
            load(composed.values, TrainCommand)
