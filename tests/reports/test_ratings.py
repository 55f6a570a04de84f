import math

import pytest

from dpft.records.scores import RatingsReport
from dpft.reports.ratings import mean_interval, rating_record, ratings_table


def test_the_interval_of_two_and_three_ratings_is_students_closed_form() -> None:
    """For one and two degrees of freedom Student's quantile function has a closed form.

    t(p, 1) = tan(π(p - 1/2)), as Cauchy's, and t(p, 2) = (2p - 1) / √(2p(1 - p)): Shaw 2006,
    Sampling Student's T distribution, Journal of Computational Finance 9/4.
    """
    p = 0.975
    # 2 and 5: mean 3.5, s = 3/√2, s/√2 = 1.5; 2, 3 and 4: mean 3, s = 1
    for values, mean, error, quantile in [
        ([2, 5], 3.5, 1.5, math.tan(math.pi * (p - 0.5))),
        ([2, 3, 4], 3.0, 1 / math.sqrt(3), (2 * p - 1) / math.sqrt(2 * p * (1 - p))),
    ]:
        expected = (mean - quantile * error, mean + quantile * error)
        assert mean_interval(values) == pytest.approx(expected, rel=1e-9)


def test_the_interval_of_five_ratings_has_the_tabled_quantile() -> None:
    """t(0.975, 4) = 2.776: NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2."""
    half = 2.776 * math.sqrt(2.5 / 5)  # the variance of 1, 2, 3, 4, 5 is 2.5
    assert mean_interval([1, 2, 3, 4, 5]) == pytest.approx((3 - half, 3 + half), abs=5e-4)


def test_one_rating_has_a_mean_and_no_interval() -> None:
    record = rating_record("a", [(1, 4)])
    assert (record.mean, record.interval, record.mean_over_items) == (4.0, None, 4.0)
    assert rating_record("a", []).mean is None


def test_the_mean_over_items_counts_each_item_once() -> None:
    record = rating_record("a", [(1, 5), (1, 5), (1, 5), (2, 1)])
    assert (record.ratings, record.items) == (4, 2)
    assert (record.mean, record.mean_over_items) == (4.0, 3.0)


def table(*, split_is_public: bool = True) -> str:
    systems = (
        rating_record("outputs/a", [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]),
        rating_record("reference", [(1, 5)]),
        rating_record("outputs/long/name", []),
    )
    report = RatingsReport(
        task="chat",
        split="test",
        split_is_public=split_is_public,
        ratings=6,
        raters=1,
        not_rated=9,
        interval="",
        systems=systems,
    )
    return ratings_table(report)


def test_the_table_tells_counts_means_and_intervals() -> None:
    lines = table().splitlines()
    assert lines[0] == "chat, split test: 6 ratings by 1 rater, 9 rows not rated"
    assert lines[2].split() == ["outputs/a", "5", "5", "3.00", "(1.04,", "4.96)", "3.00"]
    assert lines[3].split() == ["reference", "1", "1", "5.00", "none", "5.00"]
    assert lines[4].split() == ["outputs/long/name", "0", "0", "none", "none", "none"]
    assert lines[5] == "One rating has no interval."
    assert lines[6].startswith("95 % interval: Student's t over the ratings, each counted as indep")
    assert len(lines) == 8


def test_ratings_of_private_records_say_so() -> None:
    assert table(split_is_public=False).endswith("private held-out records, not covered by epsilon")
