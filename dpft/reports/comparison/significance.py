"""Which settings' scores are best, by a two-sample test, as in Table 1 of Li et al. 2022.

They set "best numbers based on two-sample test for each privacy level" in bold and name no test.
Here it is Welch's t-test (Welch 1947), two-sided at the 5 % level, for runs over seeds need not
vary alike under two settings. It is not corrected for how many settings are compared.
"""

import statistics
import warnings
from collections.abc import Mapping, Sequence

LEVEL = 0.05
LOWER_IS_BETTER = frozenset({"perplexity"})
NEITHER_IS_BETTER = frozenset({"mean_length"})
BOLD_NOTE = (
    "Bold: within one privacy level, the best mean and every one that Welch's t-test (two-sided,"
    " 5 %, not corrected for the number of comparisons) does not tell from it, if it tells any"
    " apart; it needs at least two runs of each setting."
)


def best(scores: Mapping[int, Sequence[float]], metric: str) -> set[int]:
    """Returns the settings whose scores are best; none where the test tells none apart.

    Args:
        scores: Setting to its runs' scores.
        metric: What the scores are of.
    """
    if metric in NEITHER_IS_BETTER or len(scores) < 2 or min(map(len, scores.values())) < 2:
        return set()
    sign = -1 if metric in LOWER_IS_BETTER else 1
    leader = max(scores, key=lambda setting: sign * statistics.fmean(scores[setting]))
    alike = {
        setting
        for setting, values in scores.items()
        if setting == leader or p_value(scores[leader], values) >= LEVEL
    }
    return alike if len(alike) < len(scores) else set()


def p_value(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the two-sided p-value of Welch's t-test; at least two scores each.

    Where neither side varies at all, it is 0 for two values and 1 for one.
    """
    from scipy import stats

    if statistics.pvariance(one) == statistics.pvariance(other) == 0:
        return 1.0 if one[0] == other[0] else 0.0
    with warnings.catch_warnings():
        # of seeds that score all but alike, whose p-value is then 0 or 1 all the same
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        return float(stats.ttest_ind(one, other, equal_var=False).pvalue)
