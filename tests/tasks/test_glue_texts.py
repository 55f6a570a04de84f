from pathlib import Path

import pytest
from omegaconf import OmegaConf

from dpft.errors import InputError
from dpft.tasks.base import LabelTask, chosen_task_class
from dpft.tasks.glue import NAMES
from dpft.tasks.glue_texts import NO_LABEL, GlueTexts
from dpft.tasks.records import Example

CONF = Path(__file__).parents[2] / "conf" / "task"
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


def task(name: str, **settings: object) -> GlueTexts:
    values = OmegaConf.to_object(OmegaConf.load(CONF / f"{name}.yaml"))
    values |= {"objective": "text2text", **settings}
    made = chosen_task_class(values)(**values)
    assert isinstance(made, GlueTexts)
    return made


def row(made: GlueTexts, label: object) -> dict[str, object]:
    return {**dict(zip(made.text_columns, (" A", "B\n"), strict=False)), "label": label}


def test_every_task_has_its_published_form() -> None:
    assert set(NAMES) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_prompts_and_words_are_those_of_t5(name: str) -> None:
    prompt, words = PUBLISHED[name]
    made = task(name)
    for label, word in enumerate(words):
        (example,) = made.examples(row(made, label))
        assert (example.prompt, example.target) == (prompt, word)


@pytest.mark.parametrize(
    ("score", "text"),
    [(0, "0.0"), (3.75, "3.8"), (3.799, "3.8"), ("2.6", "2.6"), (1.29, "1.2"), (5, "5.0")],
)
def test_a_score_is_rounded_to_a_fifth(score: object, text: str) -> None:
    stsb = task("stsb")
    assert stsb.examples(row(stsb, score))[0].target == text


def test_the_form_is_a_task_of_texts_and_others_stay_tasks_of_labels() -> None:
    for objective, labeled in (("text2text", False), ("cls", True), ("infilling", True)):
        chosen = chosen_task_class({"name": "rte", "objective": objective})
        assert issubclass(chosen, LabelTask) is labeled


def test_another_objective_is_refused_with_all_three() -> None:
    values = OmegaConf.to_object(OmegaConf.load(CONF / "rte.yaml")) | {"objective": "text"}
    with pytest.raises(InputError, match="one of infilling, cls, text2text, got 'text'"):
        chosen_task_class(values)(**values)


@pytest.mark.parametrize("name", NAMES)
def test_accuracy_of_the_text_leads_and_the_usual_metrics_follow(name: str) -> None:
    metrics = task(name).metrics
    assert metrics[0] == "text_accuracy"
    assert "accuracy" not in metrics
    assert task(name, metrics=metrics).metrics == metrics


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
    assert task(name).spelt_labels([text]) == [label]


def test_a_written_text_makes_a_row_only_where_it_is_a_label() -> None:
    rte = task("rte")
    given = {"sentence1": "A", "sentence2": "B"}
    assert rte.record(given, "not_entailment") == {**given, "label": 1}
    assert rte.record(given, "entail") is None
    assert task("stsb").record(given, "3.8") == {**given, "label": 3.8}


def test_a_hidden_label_is_refused_with_the_way_out() -> None:
    qnli = task("qnli")
    with pytest.raises(InputError, match=r"eval\.split=validation"):
        qnli.examples(row(qnli, -1))


def test_a_canary_has_the_form_and_what_is_learned_is_the_answer() -> None:
    made = task("mrpc").canary(["a", "b"], ["c"], number=0)
    assert isinstance(made, Example)
    assert (made.prompt, made.target) == ("mrpc sentence1: a b sentence2: ", "c")
