"""A classifier taught by synthetic records and tested on real ones, by a column of the user's."""

import json
from pathlib import Path

import pytest

from dpft.audit.run_records import records_and_unseen
from dpft.audit.utility import (
    ClassifierScores,
    Utility,
    classifier_scores,
    commonest_class_scores,
    label_task,
    utility_of,
)
from dpft.errors import InputError
from dpft.runs.saved_run import saved_run
from dpft.runs.task_model import trained_model_of_run
from dpft.tasks.custom_texts import CustomTexts
from dpft.tasks.e2e import E2ETask
from dpft.tasks.records import Example
from tests.audit.conftest import moods
from tests.stories.tiny import Workspace

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
