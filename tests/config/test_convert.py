from typing import Literal

import pytest

from dpft.config.keys import known_keys
from dpft.config.load import Schema, build, describe, union_members
from dpft.errors import InputError
from tests.config.recipe import POLYMORPHIC, Full, LoRA, Privacy, Root

SCHEMA = Schema(polymorphic=POLYMORPHIC, known_keys=tuple(known_keys(Root)))


def built(**changes: object) -> Root:
    values = {"method": {"name": "full"}, "privacy": {"eps": 3}} | changes
    root: Root = build(values, Root, key="", schema=SCHEMA)
    return root


def refusal(**changes: object) -> str:
    with pytest.raises(InputError) as error:
        built(**changes)
    return str(error.value)


def test_what_is_not_given_takes_the_dataclass_default() -> None:
    assert built() == Root(method=Full(name="full"), privacy=Privacy(eps=3.0))
    assert isinstance(built().privacy.eps, float)


def test_a_class_chosen_by_name_is_built_with_its_own_keys() -> None:
    assert built(method={"name": "lora", "rank": 8}).method == LoRA(name="lora", rank=8)


def test_a_class_that_does_not_exist_is_refused_by_its_registry() -> None:
    assert (
        refusal(method={"name": "lorra"}) == "method.name must be one of full, lora, got 'lorra'."
    )
    assert refusal(method={"rank": 8}).startswith("method is not chosen; set method=NAME, and")


def test_containers_become_the_annotated_types() -> None:
    config = built(labels=["yes", "no"], betas=[0, 0.5], urls={"train": "a.csv"})
    assert config.labels == ("yes", "no")
    assert config.betas == [0.0, 0.5]
    assert config.urls == {"train": "a.csv"}


def test_a_number_is_taken_for_a_name_where_a_text_belongs() -> None:
    assert built(path=2024).path == "2024"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"privacy": {"eps": "abc"}}, "privacy.eps must be a number, got 'abc'."),
        ({"privacy": {"eps": True}}, "privacy.eps must be a number, got True."),
        (
            {"privacy": {"eps": 1, "delta": "small"}},
            "privacy.delta must be a number or null, got 'small'.",
        ),
        ({"steps": 1.5}, "steps must be a whole number or null, got 1.5."),
        ({"betas": [0.9, "x"]}, "betas[1] must be a number, got 'x'."),
        ({"labels": [True]}, "labels[0] must be text, got True."),
        ({"urls": {"train": True}}, "urls.train must be text, got True."),
        (
            {"privacy": {"eps": 1, "self_check": "no"}},
            "privacy.self_check must be true or false, got 'no'.",
        ),
        (
            {"privacy": {"eps": 1, "accountant": "gdp"}},
            "privacy.accountant must be one of prv, rdp, got 'gdp'.",
        ),
        ({"privacy": 3}, "privacy must be a group of keys, got 3."),
    ],
)
def test_a_value_of_another_type_is_refused_with_key_value_and_type(
    changes: dict[str, object], sentence: str
) -> None:
    assert refusal(**changes) == sentence


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    assert refusal(privacy={"eps": value}) == f"privacy.eps must be a finite number, got {value}."
    assert "betas[0] must be a finite number" in refusal(betas=[value])


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    assert refusal(privacy={"eps": 3, "epz": 3}) == (
        "unknown configuration key privacy.epz; did you mean privacy.eps?"
    )
    assert refusal(eps=3) == "unknown configuration key eps; did you mean privacy.eps?"
    assert "the known keys here are betas, labels, method" in refusal(foo=1)


def test_a_key_of_another_choice_is_refused() -> None:
    assert "method.rank" in refusal(method={"name": "full", "rank": 8})


def test_a_missing_value_is_refused_by_name() -> None:
    expected = "privacy.eps has no value; set privacy.eps=VALUE (a number)."
    assert refusal(privacy={"eps": "???"}) == expected
    assert refusal(privacy={}) == expected


def test_what_a_dataclass_refuses_passes_unchanged() -> None:
    refused = refusal(method={"name": "lora", "rank": 0})
    assert refused == "method.rank must be at least 1, got 0."


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["+", "-"])
def test_a_whole_number_beyond_every_float_is_refused(value: int) -> None:
    assert "privacy.eps must be a number below 1.8e308" in refusal(privacy={"eps": value})


def test_no_name_is_taken_for_a_mapping_and_no_mapping_for_a_list() -> None:
    assert refusal(urls=["a.csv"]) == "urls must be a group of keys, got ['a.csv']."
    assert refusal(labels={"a": "b"}) == "labels must be a list, each entry text, got {'a': 'b'}."
    assert refusal(labels="yes") == "labels must be a list, each entry text, got 'yes'."


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (None | int, "a whole number or null"),
        (str | tuple[str, ...] | None, "a list, each entry text or text or null"),
        (list[float], "a list, each entry a number"),
        (dict[str, str], "a group of keys"),
        (Privacy, "a group of keys"),
        (int | Literal["auto"], "a whole number or auto"),
        (Literal["a", "b"], "one of a, b"),
    ],
)
def test_a_type_is_told_in_words_with_null_last(hint: object, words: str) -> None:
    assert describe(hint) == words


def test_a_whole_number_stays_one_where_a_number_or_text_would_do() -> None:
    assert union_members(str | float | int) == (int, float, str)
