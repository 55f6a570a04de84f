import pytest
from sklearn.metrics import top_k_accuracy_score

from dpft.evaluation.metrics.accuracy import (
    accuracy,
    mean_accuracy,
    text_accuracy,
    token_accuracy,
    top_5_accuracy,
)
from dpft.evaluation.metrics.base import NotComputed, metric_specs
from tests.rejections import rejects


def test_accuracy_is_the_share_of_right_classes():
    assert accuracy([0, 2, 1, 1, 0], [0, 2, 2, 1, 1]) == pytest.approx(3 / 5)


@pytest.mark.parametrize(("gold", "expected"), [([1, 1], 1.0), ([0, 0], 0.0)])
def test_the_ends_of_the_scale(gold, expected):
    assert accuracy([1, 1], gold) == expected


def test_an_index_may_be_written_as_any_number():
    assert accuracy([1, 0], [1.0, 0.0]) == 1.0


def test_scores_are_refused():
    with rejects("task.metrics", 2.5):
        accuracy([2.5, 1.0], [2.0, 1.0])


def test_it_is_the_share_whose_class_is_among_the_five_likeliest():
    scores = [[0.3, 0.1, 0.2, 0.15, 0.05, 0.2], [0.02, 0.3, 0.2, 0.18, 0.2, 0.1]]
    ranked = [sorted(range(6), key=lambda k: -one[k]) for one in scores]
    for gold in ([4, 1], [0, 0], [5, 5]):
        expected = top_k_accuracy_score(gold, scores, k=5, labels=range(6))
        assert top_5_accuracy(ranked, gold) == expected


def test_it_is_the_mean_of_each_attributes_accuracy():
    told, gold = [[1, 0], [1, 1], [0, 0], [1, 1]], [[1, 1], [1, 1], [0, 1], [0, 1]]
    assert mean_accuracy(told, gold) == (3 / 4 + 2 / 4) / 2


def test_a_text_is_right_to_the_letter_or_wrong() -> None:
    written = ["positive", "positiv", "POSITIVE", "", "3.8", "3.80"]
    references = [["positive"]] * 4 + [["3.8"]] * 2
    assert text_accuracy(written, references) == 2 / 6


def test_any_reference_will_do_and_blanks_at_the_ends_do_not_count() -> None:
    assert text_accuracy([" b\n"], [["a", "b"]]) == 1.0


def test_it_is_reported_as_accuracy() -> None:
    assert metric_specs(["text_accuracy"])[0].reported_as == "accuracy"


def test_every_token_counts_the_same():
    assert token_accuracy([9, 0], [9, 1]) == 0.9


def test_references_without_tokens_have_no_accuracy():
    with pytest.raises(NotComputed, match="no tokens"):
        token_accuracy([0], [0])
