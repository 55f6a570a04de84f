import re

import numpy as np
import pytest

from dpft.audit.guessing import best_lower_bound
from dpft.audit.plots import (
    exposure_histogram,
    lower_bound_plot,
    roc_plot,
    trade_off_plot,
)
from dpft.audit.trade_off import GaussianTradeOff, roc_curve
from tests.audit.known_mechanisms import gaussian

SCORES, INCLUDED = gaussian(1.0, 400, np.random.default_rng(1))


def figures():
    curve = roc_curve(SCORES, INCLUDED)
    bounds = {
        "Steinke et al. 2023": best_lower_bound(SCORES, INCLUDED, delta=1e-5),
        "f-DP, Gaussian": best_lower_bound(SCORES, INCLUDED, delta=1e-5, gaussian=True),
    }
    return {
        "exposure": exposure_histogram({"r = 1": [0.1, 2.0, 17.5], "r = 10": [9.0]}, bits=16.6),
        "roc": roc_plot({"loss": curve}, trade_off=GaussianTradeOff(1.0)),
        "lower": lower_bound_plot(bounds, epsilon=4.38),
        "trade_off": trade_off_plot(curve, planned=GaussianTradeOff(1.0)),
    }


def words(figure):
    return re.findall(r"<text[^>]*>([^<]+)</text>", str(figure))


@pytest.fixture(scope="module")
def drawn():
    return figures()


@pytest.mark.slow
def test_a_figure_is_the_same_bytes_each_time_and_names_no_address(drawn):
    assert drawn == figures()
    for figure in drawn.values():
        assert figure.startswith('<svg role="img" aria-label="')
        assert "<script" not in figure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exposure", {"r = 1 (3)", "r = 10 (1)", "never inserted: P(≥ x) = 2⁻ˣ", "all suffixes"}),
        ("roc", {"upper bound by the mechanism", "guessing blindly", "1 %", "100 %"}),
        ("lower", {"Steinke et al. 2023, 95 %", "ε of the report (upper bound)", "400", "20"}),
        ("trade_off", {"measured", "planned mechanism"}),
    ],
)
def test_a_figure_says_what_its_lines_are(drawn, name, said):
    assert said <= set(words(drawn[name]))


@pytest.mark.slow
def test_what_is_not_known_is_not_drawn():
    curve = roc_curve(SCORES, INCLUDED)
    assert "planned mechanism" not in words(trade_off_plot(curve))
    assert "upper bound by the mechanism" not in words(roc_plot({"loss": curve}))
    bounds = {"one run": best_lower_bound(SCORES, INCLUDED, delta=1e-5)}
    assert not [word for word in words(lower_bound_plot(bounds)) if "report" in word]
