import math

import pytest

from dpft.errors import InputError
from dpft.privacy.privacy_config import (
    Clipping,
    DifferentialPrivacy,
    NoPrivacy,
    privacy_class,
)


def test_the_two_choices_are_classes_of_their_own() -> None:
    assert privacy_class("dp") is DifferentialPrivacy
    assert privacy_class("none") is NoPrivacy
    with pytest.raises(InputError, match="privacy"):
        privacy_class("off")


@pytest.mark.parametrize(
    ("given", "got"), [({}, "neither"), ({"eps": 1.0, "noise_multiplier": 1.0}, "both")]
)
def test_exactly_one_of_epsilon_and_noise_is_given(given: dict[str, float], got: str) -> None:
    with pytest.raises(ValueError, match=f"got {got}.*privacy=none"):
        DifferentialPrivacy(name="dp", **given)


@pytest.mark.parametrize("name", ["eps", "noise_multiplier"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_promise_is_positive_and_finite(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        DifferentialPrivacy(name="dp", **{name: value})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"num_examples": 0}, "num_examples"),
        (
            {"max_grad_norm": 0.0},
            "max_grad_norm",
        ),
        ({"max_grad_norm": math.inf}, "max_grad_norm"),
        ({"clipping": "warp"}, "clipping"),
        ({"engine": "warp"}, "engine"),
        ({"groups": ("*",)}, "privacy.groups needs privacy.clipping=per_layer, got flat"),
        ({"accountant": "gdp"}, "accountant"),
    ],
)
def test_a_bad_setting_is_refused_by_name(given: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DifferentialPrivacy(name="dp", eps=3.0, **given)


def test_the_size_is_checked_without_privacy_too() -> None:
    with pytest.raises(ValueError, match="num_examples"):
        NoPrivacy(name="none", num_examples=0)


def test_the_unit_is_an_example_or_a_column_and_says_what_it_is() -> None:
    example = DifferentialPrivacy(name="dp", eps=1.0)
    customer = DifferentialPrivacy(name="dp", eps=1.0, unit="customer_id", records_per_unit=3)
    assert (example.has_units, customer.has_units) == (False, True)
    assert example.unit_definition("row of the file") == "one row of the file"
    assert customer.unit_definition("row") == (
        "all records with one value of customer_id, of which at most 3 are trained on"
    )


def test_a_guarantee_answers_for_itself_and_ordinary_training_has_none() -> None:
    seeded = DifferentialPrivacy(
        name="dp", eps=1.0, noise_seed=3, num_examples=9, unit="customer_id"
    )
    assert seeded.guarantee is seeded
    assert (seeded.noise_seed, seeded.num_examples, seeded.unit) == (3, 9, "customer_id")
    assert (seeded.has_units, seeded.show_diagnostics) == (True, False)
    none = NoPrivacy(name="none", num_examples=9)
    assert (none.guarantee, none.noise_seed, none.num_examples) == (None, None, 9)
    assert (none.has_units, none.show_diagnostics) == (False, True)
    assert NoPrivacy(name="none").num_examples is None


def test_what_both_answer_to_is_no_key_of_ordinary_training() -> None:
    names = set(NoPrivacy.model_fields)
    assert names == set(Clipping.model_fields) | {"num_examples", "max_grad_norm"}


def test_without_noise_gradients_are_clipped_where_a_norm_is_given() -> None:
    plain, clipped = NoPrivacy(name="none"), NoPrivacy(name="none", max_grad_norm=0.5)
    assert plain.clips is None and clipped.clips is clipped
    assert clipped.guarantee is None and clipped.clipping_options(4.0).max_grad_norm == 0.5
    assert plain.alarm == "privacy=none: this run is not private"
    assert "clips each example's gradient at 0.5 and adds no noise" in str(clipped.alarm)
    assert DifferentialPrivacy(name="dp", eps=1.0).alarm is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"clipping": "automatic"},
            "privacy.clipping needs privacy.max_grad_norm with privacy=none",
        ),
        ({"engine": "rows"}, "privacy.engine needs privacy.max_grad_norm .*, got rows"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"max_grad_norm": 1.0, "clipping": "warp"}, "clipping"),
        ({"max_grad_norm": 1.0, "groups": ("*",)}, "privacy.groups needs privacy.clipping="),
    ],
)
def test_clipping_without_noise_is_checked_as_with_it(given: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        NoPrivacy(name="none", **given)
