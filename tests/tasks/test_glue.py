import math
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from dpft.config.load import from_values
from dpft.tasks.base import Example, LabeledExample, LabelTask, chosen_task_class
from dpft.tasks.glue import NAMES, NO_LABEL, GlueTask, GlueTexts
from tests.rejections import rejects

CONF = Path(__file__).parents[2] / "conf" / "task"
# Li et al. 2022 (arXiv 2110.05679), Table 10; the others after Gao et al. 2020 (arXiv 2012.15723),
# Table 1. Classes in the order of the numbers of nyu-mll/glue.
TEMPLATES = {
    "sst2": ("<S1> It was [MASK] .", ("terrible", "great")),
    "mnli": ("<S1> ? [MASK] , <S2>", ("Yes", "Maybe", "No")),
    "qnli": ("<S1> ? [MASK] , <S2>", ("Yes", "No")),
    "qqp": ("<S1> [MASK] , <S2>", ("No", "Yes")),
    "cola": ("<S1> This is [MASK] .", ("incorrect", "correct")),
    "mrpc": ("<S1> [MASK] , <S2>", ("No", "Yes")),
    "rte": ("<S1> ? [MASK] , <S2>", ("Yes", "No")),
    "stsb": ("<S1> [MASK] , <S2>", ("No", "Yes")),
}


def task(name: str, **settings: object) -> GlueTask:
    return from_values(
        {**OmegaConf.to_object(OmegaConf.load(CONF / f"{name}.yaml")), **settings}, GlueTask
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_and_label_words_are_the_published_ones(name):
    assert set(NAMES) == set(TEMPLATES)
    template, words = TEMPLATES[name]
    assert (task(name).template, tuple(task(name).words)) == (template, words)


def test_a_masked_model_reads_the_template_and_others_what_ends_with_the_answer():
    example = LabeledExample(texts=("one", "two"), label=0.0)
    pieces = {causal: task("mnli").pieces(example, causal=causal) for causal in (False, True)}
    assert [p.text or "*" for p in pieces[False]] == ["one", " ?", "*", " ,", " two"]
    assert [p.text or "*" for p in pieces[True]] == ["one", " ?", " two", " ?", "*"]


def test_mnli_is_scored_in_two_parts_and_trained_on_one():
    mnli = task("mnli")
    assert list(mnli.parts("validation")) == ["validation_matched", "validation_mismatched"]
    assert list(mnli.parts("train")) == ["train"]


@pytest.mark.parametrize("value", [1, 1.0, "1", " 1 ", "positive"])
def test_a_class_is_given_by_number_or_name(value):
    assert task("sst2").label(value) == 1.0


@pytest.mark.parametrize(
    "value", [2, -2, 0.5, "good", "", None, True, [1], {"a": 1}, math.nan, math.inf, 10**400]
)
@pytest.mark.parametrize("name", ["sst2", "stsb"])
def test_a_label_that_is_neither_a_class_nor_a_score_is_rejected_and_not_quoted(name, value):
    if name == "stsb" and value in (2, 0.5):
        value = 5.1
    with rejects("label") as faults:
        task(name).label(value)
    assert faults[0].value is None


@pytest.mark.parametrize(("name", "text"), [("sst2", "-1"), ("sst2", "good"), ("stsb", "inf")])
def test_an_invalid_prediction_is_rejected(name, text):
    with rejects("predictions"):
        task(name).prediction(text)


@pytest.mark.parametrize("value", [-1, -1.0, "-1"])
def test_a_hidden_label_is_rejected_and_a_split_with_labels_suggested(value):
    for made in (task("stsb"), task("qnli"), text_task("qnli")):
        with rejects("label") as faults:
            made.examples({**dict.fromkeys(made.text_columns, "A"), "label": value})
        assert faults[0].hint == "eval.split=validation"


def test_texts_are_stripped_and_the_label_read():
    example = task("rte").examples({"sentence1": " a ", "sentence2": "b\n", "label": "1"})[0]
    assert example == LabeledExample(texts=("a", "b"), label=1.0)


@pytest.mark.parametrize(("label", "expected"), [(0.0, (1.0, 0.0)), (5.0, (0.0, 1.0))])
def test_a_score_divides_the_probability_between_the_ends(label, expected):
    assert task("stsb").distribution(label) == expected
    assert sum(task("stsb").distribution(3.7)) == pytest.approx(1)


def test_the_probability_of_yes_is_the_score_over_five():
    stsb = task("stsb")
    for label in (0.0, 1.2, 5.0):
        assert stsb.predicted(stsb.distribution(label)) == pytest.approx(label)


def test_a_class_has_all_the_probability_and_the_likeliest_is_predicted():
    assert task("mnli").distribution(1.0) == (0.0, 1.0, 0.0)
    assert task("mnli").predicted([0.2, 0.3, 0.5]) == 2.0
    assert task("mnli").label_text(2.0) == "contradiction"


def test_the_head_of_a_score_gives_it_as_it_is():
    assert task("stsb", objective="cls").predicted([5.4]) == 5.4


@pytest.mark.slow
def test_a_prediction_is_read_as_it_was_written():
    for name, values in (("mnli", (0.0, 2.0)), ("stsb", (5.4, -1.0, 2.125))):
        for value in values:
            assert task(name).prediction(task(name).label_text(value)) == pytest.approx(value)


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ({"objective": "ranking"}, "task.objective", "ranking"),
        ({"labels": ("one",)}, "task.labels", ["one"]),
        ({"labels": ("one", "one")}, "task.labels", ["one", "one"]),
        ({"max_score": 0.0}, "task.max_score", 0.0),
        ({"max_score": 1.0, "labels": ("a", "b", "c")}, "task.max_score", 1.0),
        ({"template": "<S1> It was great ."}, "task.template", "<S1> It was great ."),
        ({"causal_template": "<S1> [MASK] ."}, "task.causal_template", "<S1> [MASK] ."),
        ({"causal_template": "[MASK]"}, "task.causal_template", "[MASK]"),
        ({"label_words": {"negative": "bad"}}, "task.label_words", {"negative": "bad"}),
        ({"label_words": {}}, "task.label_words", {}),
        (
            {"label_words": {"negative": "so", "positive": "so"}},
            "task.label_words",
            {"negative": "so", "positive": "so"},
        ),
    ],
)
def test_a_bad_setting_is_rejected_by_its_key(setting, key, value):
    with rejects(key, value):
        task("sst2", **setting)


def test_a_classification_head_needs_no_words():
    sst2 = task("sst2", objective="cls", template="", causal_template="", label_words={})
    assert sst2.examples({"sentence": "a", "label": 0})[0].label == 0.0


# Raffel et al. 2020 (arXiv 1910.10683), Appendix D: the prompt's form, and the words of the labels
# in the order of the numbers of nyu-mll/glue.
PUBLISHED = {
    "sst2": ("sst2 sentence: A", ("negative", "positive")),
    "cola": ("cola sentence: A", ("unacceptable", "acceptable")),
    "mrpc": ("mrpc sentence1: A sentence2: B", ("not_equivalent", "equivalent")),
    "stsb": ("stsb sentence1: A sentence2: B", ("0.0", "1.0", "2.0", "3.0", "4.0", "5.0")),
    "qqp": ("qqp question1: A question2: B", ("not_duplicate", "duplicate")),
    "mnli": ("mnli hypothesis: B premise: A", ("entailment", "neutral", "contradiction")),
    "qnli": ("qnli question: A sentence: B", ("entailment", "not_entailment")),
    "rte": ("rte sentence1: A sentence2: B", ("entailment", "not_entailment")),
}


def text_task(name: str, **settings: object) -> GlueTexts:
    values = OmegaConf.to_object(OmegaConf.load(CONF / f"{name}.yaml"))
    values |= {"objective": "text2text", **settings}
    made = from_values(values, chosen_task_class(values))
    assert isinstance(made, GlueTexts)
    return made


def row(made: GlueTexts, label: object) -> dict[str, object]:
    return {**dict(zip(made.text_columns, (" A", "B\n"), strict=False)), "label": label}


@pytest.mark.parametrize("name", PUBLISHED)
def test_prompts_and_words_are_those_of_t5(name: str) -> None:
    assert set(NAMES) == set(PUBLISHED)
    prompt, words = PUBLISHED[name]
    made = text_task(name)
    for label, word in enumerate(words):
        (example,) = made.examples(row(made, label))
        assert (example.prompt, example.target) == (prompt, word)


@pytest.mark.parametrize(
    ("score", "text"),
    [(0, "0.0"), (3.75, "3.8"), (3.799, "3.8"), ("2.6", "2.6"), (1.29, "1.2"), (5, "5.0")],
)
def test_a_score_is_rounded_to_a_fifth(score: object, text: str) -> None:
    stsb = text_task("stsb")
    assert stsb.examples(row(stsb, score))[0].target == text


def test_the_form_is_a_task_of_texts_and_others_stay_tasks_of_labels() -> None:
    for objective, labeled in (("text2text", False), ("cls", True), ("infilling", True)):
        chosen = chosen_task_class({"name": "rte", "objective": objective})
        assert issubclass(chosen, LabelTask) is labeled


def test_another_objective_is_rejected() -> None:
    values = OmegaConf.to_object(OmegaConf.load(CONF / "rte.yaml")) | {"objective": "text"}
    with rejects("task.objective", "text"):
        from_values(values, chosen_task_class(values))


@pytest.mark.parametrize("name", NAMES)
def test_accuracy_of_the_text_leads_and_the_usual_metrics_follow(name: str) -> None:
    metrics = text_task(name).metrics
    assert metrics[0] == "text_accuracy"
    assert "accuracy" not in metrics
    assert text_task(name, metrics=metrics).metrics == metrics


@pytest.mark.parametrize(
    ("name", "text", "label"),
    [
        ("sst2", "positive", 1.0),
        ("sst2", " positive ", 1.0),
        ("sst2", "Positive", NO_LABEL),
        ("sst2", "1", NO_LABEL),
        ("sst2", "", NO_LABEL),
        ("stsb", "3.8", 3.8),
        ("stsb", "9", NO_LABEL),
        ("stsb", "nan", NO_LABEL),
        ("stsb", "same", NO_LABEL),
    ],
)
def test_a_text_is_a_label_only_to_the_letter(name: str, text: str, label: float) -> None:
    assert text_task(name).spelt_labels([text]) == [label]


def test_a_written_text_makes_a_row_only_where_it_is_a_label() -> None:
    rte = text_task("rte")
    given = {"sentence1": "A", "sentence2": "B"}
    assert rte.record(given, "not_entailment") == {**given, "label": 1}
    assert rte.record(given, "entail") is None
    assert text_task("stsb").record(given, "3.8") == {**given, "label": 3.8}


def test_a_canary_has_the_form_and_what_is_learned_is_the_answer() -> None:
    made = text_task("mrpc").canary(["a", "b"], ["c"], number=0)
    assert isinstance(made, Example)
    assert (made.prompt, made.target) == ("mrpc sentence1: a b sentence2: ", "c")
