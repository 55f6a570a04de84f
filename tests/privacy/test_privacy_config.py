import math

import pytest

from dpft.config.load import from_values
from dpft.privacy.privacy_config import (
    DifferentialPrivacy,
    HistogramPrivacy,
    NoPrivacy,
    privacy_class,
)
from tests.rejections import rejects


def test_the_two_choices_are_classes_of_their_own() -> None:
    assert privacy_class("dp") is DifferentialPrivacy
    assert privacy_class("none") is NoPrivacy
    with rejects("privacy", "off"):
        privacy_class("off")


@pytest.mark.parametrize("given", [{}, {"eps": 1.0, "noise_multiplier": 1.0}])
def test_exactly_one_of_epsilon_and_noise_is_given(given: dict[str, float]) -> None:
    with rejects("privacy.eps") as faults:
        from_values({"name": "dp"} | given, DifferentialPrivacy)
    assert faults[0].hint == "privacy.eps=3"


@pytest.mark.parametrize("name", ["eps", "noise_multiplier"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_promise_is_positive_and_finite(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        DifferentialPrivacy(name="dp", **{name: value})


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"num_examples": 0}, "num_examples"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"clipping": "warp"}, "clipping"),
        ({"engine": "warp"}, "engine"),
        ({"groups": ["*"]}, "privacy.groups"),
        ({"accountant": "gdp"}, "accountant"),
        ({"unit": " "}, "privacy.unit"),
    ],
)
def test_a_bad_setting_is_refused_by_name(given: dict, key: str) -> None:
    with rejects(key):
        from_values({"name": "dp", "eps": 3.0} | given, DifferentialPrivacy)


def test_without_noise_gradients_are_clipped_where_a_norm_is_given() -> None:
    plain, clipped = NoPrivacy(name="none"), NoPrivacy(name="none", max_grad_norm=0.5)
    assert plain.clips is None and clipped.clips is clipped
    assert clipped.guarantee is None and clipped.clipping_options(4.0).max_grad_norm == 0.5
    assert plain.alarm == "privacy=none: this run is not private"
    assert "clips each example's gradient at 0.5 and adds no noise" in str(clipped.alarm)
    assert DifferentialPrivacy(name="dp", eps=1.0).alarm is None


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"clipping": "automatic"}, "privacy.clipping"),
        ({"engine": "rows"}, "privacy.engine"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"max_grad_norm": 1.0, "groups": ["*"]}, "privacy.groups"),
        ({"num_examples": 0}, "num_examples"),
    ],
)
def test_clipping_without_noise_is_checked_as_with_it(given: dict, key: str) -> None:
    with rejects(key):
        from_values({"name": "none"} | given, NoPrivacy)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"name": "none", "eps": 3.0}, "privacy.eps"),
        ({"name": "none", "unit": "customer"}, "privacy.unit"),
        ({"name": "histogram", "unit": "chunk"}, "privacy.unit"),
    ],
)
def test_a_histogram_rejects_keys_that_have_no_effect(given: dict, key: str) -> None:
    with rejects(key):
        from_values(given, HistogramPrivacy)
