import pytest
from scipy import stats

from dpft.reports.comparison.tables import best, p_value


def test_the_p_value_is_welchs() -> None:
    """Closed form: t = (m1 - m2) / √(s1²/n1 + s2²/n2), Welch-Satterthwaite degrees of freedom."""
    one, other = (1.0, 2.0, 3.0), (2.0, 6.0, 10.0)  # means 2 and 6, variances 1 and 16
    error = 1 / 3 + 16 / 3
    freedom = error**2 / ((1 / 3) ** 2 / 2 + (16 / 3) ** 2 / 2)
    expected = 2 * stats.t.sf(4 / error**0.5, freedom)
    assert p_value(one, other) == pytest.approx(expected, rel=1e-9)
    assert (p_value((1, 1), (1, 1)), p_value((1, 1), (2, 2))) == (1.0, 0.0)


@pytest.mark.filterwarnings("error")
def test_scores_that_are_all_but_alike_are_compared_without_a_warning() -> None:
    assert p_value((1.0, 1.0 + 1e-15), (2.0, 2.0)) < 1e-6


def test_lower_perplexity_is_better_and_single_runs_are_not_tested() -> None:
    scores = {0: (20.0, 20.1, 20.2), 1: (30.0, 30.1, 30.2)}
    assert best(scores, "perplexity") == {0} and best(scores, "bleu") == {1}
    assert best(scores, "mean_length") == set()
    assert best({**scores, 2: (1.0,)}, "perplexity") == set()
