import pytest

from dpft.errors import InputError
from dpft.evaluation.labels import label_columns, label_input, label_predictions, read_labels
from dpft.tasks.glue import GlueTask
from dpft.tasks.records import LabeledExample

TASK = GlueTask(name="rte", objective="cls", labels=("entailment", "not_entailment"))
SAME = [LabeledExample(texts=("It rains.", "It is wet."), label=label) for label in (0.0, 1.0)]


def test_records_of_the_same_text_are_told_apart_and_scored_apart() -> None:
    assert [label_input(number, each) for number, each in enumerate(SAME)] == [
        "0: It rains. | It is wet.",
        "1: It rains. | It is wet.",
    ]
    predictions = label_predictions(TASK, SAME, [1.0, 1.0])
    assert [each.prediction for each in predictions] == ["not_entailment"] * 2
    assert [each.references for each in predictions] == [("entailment",), ("not_entailment",)]
    assert label_columns(SAME, [1.0, 1.0]) == {"predicted": [1.0, 1.0], "gold": [0.0, 1.0]}


def test_predictions_are_names_or_numbers_and_a_bad_one_is_not_quoted() -> None:
    assert read_labels(TASK, [" entailment", "1 "]) == [0.0, 1.0]
    with pytest.raises(InputError, match="predictions, record 2: .*must be one of 0") as error:
        read_labels(TASK, ["0", "secret"])
    assert "secret" not in str(error.value)
