"""The README's figure shows the results in benchmarks/real_lm."""

from docs.tools.results_figures import README_CURVE, readme_curve


def test_the_readmes_curve_is_of_the_measured_scores() -> None:
    assert README_CURVE.read_text() == readme_curve(), "python -m docs.tools.results_figures"
