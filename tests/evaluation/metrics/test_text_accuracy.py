from dpft.evaluation.metrics.base import metric_specs
from dpft.evaluation.metrics.text_accuracy import text_accuracy


def test_a_text_is_right_to_the_letter_or_wrong() -> None:
    written = ["positive", "positiv", "POSITIVE", "", "3.8", "3.80"]
    references = [["positive"]] * 4 + [["3.8"]] * 2
    assert text_accuracy(written, references) == 2 / 6


def test_any_reference_will_do_and_blanks_at_the_ends_do_not_count() -> None:
    assert text_accuracy([" b\n"], [["a", "b"]]) == 1.0


def test_it_is_reported_as_accuracy() -> None:
    assert metric_specs(["text_accuracy"])[0].reported_as == "accuracy"
