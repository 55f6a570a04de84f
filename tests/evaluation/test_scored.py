from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from dpft.errors import InputError
from dpft.evaluation.answers import LabelAnswers
from dpft.evaluation.eval_config import EvalConfig
from dpft.evaluation.groups import Group
from dpft.evaluation.metrics.base import LABELS, LIKELIHOODS, TEXTS
from dpft.evaluation.scored import (
    groups_to_score,
    model_labels,
    model_texts,
    scored_labels,
    scored_texts,
)
from dpft.evaluation.scoring import compute_metrics
from dpft.generation.decoding import DecodeConfig
from dpft.tasks.glue import GlueTask
from dpft.tasks.glue_texts import GlueTexts
from dpft.tasks.records import Example, LabeledExample
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

    def texts(self, groups: Sequence[Group], decode: DecodeConfig, count: Any) -> list[str]:
        return [f"{group.input}!" for group in groups]

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
    groups = groups_to_score(task, EXAMPLES, EvalConfig(), "test")
    scored = model_texts(task, groups, Answering(), DecodeConfig())
    assert (set(scored.columns), len(scored.predictions), scored.count) == (kinds, predictions, 3)


def test_likelihoods_are_of_every_reference_and_texts_of_every_distinct_input() -> None:
    task = letters("rouge_l", "perplexity")
    groups = groups_to_score(task, EXAMPLES, EvalConfig(), "test")
    columns = model_texts(task, groups, Answering(), DecodeConfig()).columns
    assert columns[TEXTS] == {
        "predictions": ["a b!", "f!", "h!"],
        "references": [["c d e", "c"], ["g h"], ["a"]],
    }
    assert columns[LIKELIHOODS] == {"log_likelihoods": [-1.0] * 4}


def test_a_models_answers_become_labels_and_progress_adds_up_the_batches() -> None:
    seen = []
    scored = model_labels(SENTIMENT, RECORDS, Answering(), lambda *report: seen.append(report))
    assert scored.columns == {LABELS: {"predicted": [1, 0, 1], "gold": [1, 0, 0]}}
    assert seen == [("predictions", 2, 3), ("predictions", 3, 3)]


def test_texts_and_labels_of_a_file_stand_beside_the_true_ones() -> None:
    groups = groups_to_score(letters("bleu"), EXAMPLES, EvalConfig(limit=2), "test")
    texts = scored_texts(letters("bleu"), groups, ["c d", "g"])
    assert [(p.prediction, p.references) for p in texts.predictions] == [
        ("c d", ("c d e", "c")),
        ("g", ("g h",)),
    ]
    labels = scored_labels(SENTIMENT, RECORDS, [0, 0, 1])
    assert [(p.prediction, *p.references) for p in labels.predictions] == [
        ("negative", "positive"),
        ("negative", "negative"),
        ("positive", "negative"),
    ]


def test_the_limit_counts_distinct_inputs_of_texts_and_records_of_labels() -> None:
    config = EvalConfig(limit=2)
    groups = groups_to_score(letters("bleu"), EXAMPLES, config, "test")
    assert [(group.input, len(group.examples)) for group in groups] == [("a b", 2), ("f", 1)]
    assert LabelAnswers().to_score(SENTIMENT, RECORDS, config, "test") == RECORDS[:2]


@pytest.mark.parametrize(
    ("choose", "task"), [(groups_to_score, letters("bleu")), (LabelAnswers().to_score, SENTIMENT)]
)
def test_an_empty_split_is_refused(choose: Callable[..., Any], task: Any) -> None:
    with pytest.raises(InputError, match=f"validation split of task {task.name} .* eval.split"):
        choose(task, [], EvalConfig(), "validation")


def test_what_a_split_holds_is_not_in_its_repr() -> None:
    groups = groups_to_score(letters("bleu"), EXAMPLES, EvalConfig(), "test")
    assert "a b" not in repr(scored_texts(letters("bleu"), groups, ["x"] * 3))


def test_texts_that_spell_labels_are_read_as_labels_too() -> None:
    task = GlueTexts(name="rte", labels=("entailment", "not_entailment"), metrics=("f1",))
    examples = [
        Example(prompt=f"rte sentence: {at}", target=target, group=f"{at}")
        for at, target in enumerate(("entailment", "not_entailment", "entailment"))
    ]
    groups = groups_to_score(task, examples, EvalConfig(), "validation")
    scored = scored_texts(task, groups, ["entailment", "no", "not_entailment"])
    assert scored.columns["labels"] == {"predicted": [0.0, -1.0, 1.0], "gold": [0.0, 1.0, 0.0]}
    values, not_computed = compute_metrics(task.metrics, scored.columns)
    assert values["accuracy"] == pytest.approx(1 / 3)
    assert (values["f1"], not_computed) == (0.0, {})
