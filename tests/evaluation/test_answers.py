from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from dpft.errors import InputError
from dpft.evaluation.eval_config import EvalConfig
from dpft.evaluation.evaluate import (
    AttributeAnswers,
    LabelAnswers,
    TextAnswers,
    compute_metrics,
    group_examples,
)
from dpft.evaluation.metrics.base import LABELS, LIKELIHOODS, TEXTS
from dpft.generation.decoding import DecodeConfig
from dpft.tasks.base import Example, ImagePlace, LabeledExample, LabeledImage
from dpft.tasks.celeba import CelebA
from dpft.tasks.glue import GlueTask, GlueTexts
from dpft.tasks.images import ImagesTask
from tests.evaluation.letters import LetterTask, example

EXAMPLES = [example(*pair) for pair in [("a b", "c d e"), ("f", "g h"), ("a b", "c"), ("h", "a")]]
RECORDS = [LabeledExample(texts=("same",), label=label) for label in (1.0, 0.0, 0.0)]
SENTIMENT = GlueTask(
    name="sst2", labels=("negative", "positive"), objective="cls", metrics=("accuracy",)
)


def letters(*metrics: str) -> LetterTask:
    return LetterTask(name="letters", max_length=12, metrics=metrics)


class Likelihoods(NamedTuple):
    log_likelihoods: Sequence[float]


class Answering:
    """Stands in for a model's outputs; what the metrics do not read must not be asked for."""

    def texts(self, examples: Sequence[Example], decode: DecodeConfig, count: Any) -> list[str]:
        return [f"{example.group}!" for example in examples]

    def likelihoods(self, examples: Sequence[Any], count: Any) -> Likelihoods:
        return Likelihoods([-1.0] * len(examples))

    def answers(self, records: Sequence[Any], count: Callable[[int], None]) -> list[list[float]]:
        count(2)
        count(1)
        return [[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]


@pytest.mark.parametrize(
    ("metric", "kinds", "predictions"),
    [("perplexity", {LIKELIHOODS}, 0), ("rouge_l", {TEXTS}, 3)],
)
def test_a_model_is_asked_only_for_what_the_metrics_read(
    metric: str, kinds: set[str], predictions: int
) -> None:
    task = letters(metric)
    groups = TextAnswers().to_score(task, EXAMPLES, EvalConfig(), "test")
    scored = TextAnswers().of_model(task, groups, Answering(), DecodeConfig())
    assert (set(scored.columns), len(scored.predictions), scored.count) == (kinds, predictions, 3)


def test_likelihoods_are_of_every_reference_and_texts_of_every_distinct_input() -> None:
    task = letters("rouge_l", "perplexity")
    groups = TextAnswers().to_score(task, EXAMPLES, EvalConfig(), "test")
    columns = TextAnswers().of_model(task, groups, Answering(), DecodeConfig()).columns
    assert columns[TEXTS] == {
        "predictions": ["a b!", "f!", "h!"],
        "references": [["c d e", "c"], ["g h"], ["a"]],
    }
    assert columns[LIKELIHOODS] == {"log_likelihoods": [-1.0] * 4}


def test_a_models_answers_become_labels_and_progress_adds_up_the_batches() -> None:
    seen = []
    scored = LabelAnswers().of_model(
        SENTIMENT, RECORDS, Answering(), DecodeConfig(), lambda *report: seen.append(report)
    )
    assert scored.columns == {LABELS: {"predicted": [1, 0, 1], "gold": [1, 0, 0]}}
    assert seen == [("predictions", 2, 3), ("predictions", 3, 3)]


def test_texts_and_labels_of_a_file_stand_beside_the_true_ones() -> None:
    groups = TextAnswers().to_score(letters("bleu"), EXAMPLES, EvalConfig(limit=2), "test")
    texts = TextAnswers().of_file(letters("bleu"), groups, ["c d", "g"])
    assert [(p.prediction, p.references) for p in texts.predictions] == [
        ("c d", ("c d e", "c")),
        ("g", ("g h",)),
    ]
    labels = LabelAnswers().of_file(SENTIMENT, RECORDS, ["0", "0", "1"])
    assert [(p.prediction, *p.references) for p in labels.predictions] == [
        ("negative", "positive"),
        ("negative", "negative"),
        ("positive", "negative"),
    ]


def test_the_limit_counts_distinct_inputs_of_texts_and_records_of_labels() -> None:
    config = EvalConfig(limit=2)
    groups = TextAnswers().to_score(letters("bleu"), EXAMPLES, config, "test")
    assert [(group.input, len(group.examples)) for group in groups] == [("a b", 2), ("f", 1)]
    assert LabelAnswers().to_score(SENTIMENT, RECORDS, config, "test") == RECORDS[:2]


@pytest.mark.parametrize(
    ("answers", "task"), [(TextAnswers(), letters("bleu")), (LabelAnswers(), SENTIMENT)]
)
def test_an_empty_split_is_refused(answers: Any, task: Any) -> None:
    with pytest.raises(InputError, match=f"validation split of task {task.name} .* eval.split"):
        answers.to_score(task, [], EvalConfig(), "validation")


def test_what_a_split_holds_is_not_in_its_repr() -> None:
    groups = TextAnswers().to_score(letters("bleu"), EXAMPLES, EvalConfig(), "test")
    assert "a b" not in repr(TextAnswers().of_file(letters("bleu"), groups, ["x"] * 3))


def test_texts_that_spell_labels_are_read_as_labels_too() -> None:
    task = GlueTexts(name="rte", labels=("entailment", "not_entailment"), metrics=("f1",))
    examples = [
        Example(prompt=f"rte sentence: {at}", target=target, group=f"{at}")
        for at, target in enumerate(("entailment", "not_entailment", "entailment"))
    ]
    groups = TextAnswers().to_score(task, examples, EvalConfig(), "validation")
    scored = TextAnswers().of_file(task, groups, ["entailment", "no", "not_entailment"])
    assert scored.columns["labels"] == {"predicted": [0.0, -1.0, 1.0], "gold": [0.0, 1.0, 0.0]}
    values, not_computed = compute_metrics(task.metrics, scored.columns)
    assert values["accuracy"] == pytest.approx(1 / 3)
    assert (values["f1"], not_computed) == (0.0, {})


ATTRIBUTE_ANSWERS = AttributeAnswers()
FACES = CelebA(name="celeba", labels=("Bald", "Male"), metrics=("mean_accuracy",))
PICTURES = [
    LabeledImage(image=ImagePlace(file=f"faces/{at}.jpg"), answer=answer)
    for at, answer in enumerate([(0.0, 1.0), (1.0, 1.0)])
]


def test_each_attribute_has_an_accuracy_of_its_own():
    scored = ATTRIBUTE_ANSWERS.of_file(FACES, PICTURES, ["Male", "Male"])
    assert scored.more == {"accuracy_Bald": 0.5, "accuracy_Male": 1.0}
    assert [(p.input, p.prediction, p.references) for p in scored.predictions] == [
        ("0: 0.jpg", "Male", ("Male",)),
        ("1: 1.jpg", "Male", ("Bald, Male",)),
    ]


def test_a_model_tells_what_is_likelier_than_not():
    class AnsweringAttributes:
        def answers(self, records, on_batch):
            on_batch(len(records))
            return [[0.4, 0.6], [0.51, 0.5]]

    scored = ATTRIBUTE_ANSWERS.of_model(FACES, PICTURES, AnsweringAttributes(), DecodeConfig())
    assert scored.columns["attributes"]["predicted"] == [[0, 1], [1, 0]]


def test_a_file_names_them_with_commas():
    records = [*PICTURES, PICTURES[0]]
    scored = ATTRIBUTE_ANSWERS.of_file(FACES, records, ["Male, Bald", "", "Male"])
    assert scored.columns["attributes"]["predicted"] == [[1, 1], [0, 0], [0, 1]]
    with pytest.raises(InputError, match="record 2: it must name attributes") as error:
        ATTRIBUTE_ANSWERS.of_file(FACES, PICTURES, ["Male", "secret"])
    assert "secret" not in str(error.value)


ENTAILMENT = GlueTask(name="rte", objective="cls", labels=("entailment", "not_entailment"))
SAME = [LabeledExample(texts=("It rains.", "It is wet."), label=label) for label in (0.0, 1.0)]


def test_records_of_the_same_text_are_told_apart_and_scored_apart() -> None:
    assert LabelAnswers().inputs(ENTAILMENT, SAME) == [
        "0: It rains. | It is wet.",
        "1: It rains. | It is wet.",
    ]
    scored = LabelAnswers().of_file(ENTAILMENT, SAME, ["1", "1"])
    predictions = scored.predictions
    assert [each.prediction for each in predictions] == ["not_entailment"] * 2
    assert [each.references for each in predictions] == [("entailment",), ("not_entailment",)]
    assert scored.columns == {LABELS: {"predicted": [1.0, 1.0], "gold": [0.0, 1.0]}}


def test_predictions_are_names_or_numbers_and_a_bad_one_is_not_quoted() -> None:
    scored = LabelAnswers().of_file(ENTAILMENT, SAME, [" entailment", "1 "])
    assert scored.columns[LABELS]["predicted"] == [0.0, 1.0]
    with pytest.raises(InputError, match="predictions, record 2: .*must be one of 0") as error:
        LabelAnswers().of_file(ENTAILMENT, SAME, ["0", "secret"])
    assert "secret" not in str(error.value)


GROUPED = [
    Example(prompt=group, target=target, group=group)
    for group, target in [("b", "1"), ("a", "2"), ("b", "3"), ("c", "4")]
]


def test_groups_stand_in_order_of_first_occurrence_with_all_their_references():
    groups = group_examples(GROUPED)
    assert [(group.input, group.references) for group in groups] == [
        ("b", ("1", "3")),
        ("a", ("2",)),
        ("c", ("4",)),
    ]


def test_limit_counts_groups_and_keeps_their_later_references():
    assert [group.references for group in group_examples(GROUPED, limit=1)] == [("1", "3")]


def test_an_empty_target_is_a_reference_only_where_there_is_no_other():
    texts = [("a", ""), ("a", "1"), ("b", "")]
    groups = group_examples([Example(prompt="x", target=t, group=g) for g, t in texts])
    assert [group.references for group in groups] == [("1",), ("",)]


def test_classes_that_were_confused_are_counted_and_wrong_records_are_pictured():
    task = ImagesTask(name="images", labels=("cat", "dog"), metrics=("accuracy",))
    right = [(0.0,), (0.0,), (1.0,)]
    records = [
        LabeledImage(image=ImagePlace(file=f"{at}.png"), answer=a) for at, a in enumerate(right)
    ]

    class AnsweringClasses:
        encoding = SimpleNamespace(
            picture=lambda wrong: ",".join(each.image.file for each in wrong)
        )

        def answers(self, records, on_batch):
            return [[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]

    scored = LabelAnswers().of_model(task, records, AnsweringClasses(), DecodeConfig())
    assert scored.confusion == [[1, 1], [0, 1]]
    assert scored.picture == "1.png"
