import pytest

from dpft.evaluation.metrics.chrf import chrf


def test_chrf_of_one_segment_by_hand():
    # one of two characters and no pair is common: precision and recall are (1/2 + 0) / 2
    assert chrf(["ab"], [["ac"]]) == pytest.approx(25)


def test_the_best_of_several_references_counts_and_case_does():
    assert chrf(["a pub", "x"], [["an inn", "a pub"], ["x"]]) == pytest.approx(100)
    assert chrf(["AB"], [["ab"]]) == 0
