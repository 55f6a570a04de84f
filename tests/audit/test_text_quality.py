"""Texts of one kind are not told apart, and those of two are."""

import random

import pytest

from dpft.audit.text_quality import FEWEST, Likeness, likeness, shape_of
from dpft.records.form import as_json


def texts(seed: int, words: str, count: int = 200) -> list[str]:
    order = random.Random(seed)
    return [" ".join(order.choices(words.split(), k=12)) for _ in range(count)]


ONE, OTHER = "a pub in the old town by a river", "stones of red iron lie under gray moss"


def compared(synthetic: list[str], real: list[str]) -> Likeness:
    found = likeness(synthetic, real)
    assert isinstance(found, Likeness)
    return found


def test_texts_of_one_kind_are_not_told_apart() -> None:
    found = compared(texts(0, ONE), texts(1, ONE))
    assert found.records == 200
    assert found.p_value > 0.05
    for n, divergence in found.divergences.items():
        assert divergence == pytest.approx(found.control[n], abs=0.05)


def test_texts_of_two_kinds_are_told_apart() -> None:
    found = compared(texts(0, ONE), texts(1, OTHER))
    assert found.accuracy == 1
    assert found.p_value < 1e-20
    assert found.divergences == pytest.approx({1: 1.0, 2: 1.0, 3: 1.0})
    assert all(control < 0.5 for control in found.control.values())


def test_too_few_texts_are_not_compared() -> None:
    assert likeness(texts(0, ONE, FEWEST - 1), texts(1, ONE)) == (
        "fewer than 20 texts of a kind are too few to be told apart"
    )


def test_the_shape_of_texts() -> None:
    shape = shape_of(["a pub in town", "a pub in town", "b"])
    record = as_json(shape.record())
    assert shape.lengths == (4, 4, 1)
    assert shape.repeated == 2
    assert record["distinct_percent"] == pytest.approx(200 / 3)
    assert record["distinct_1"] == pytest.approx(5 / 9)
    assert record["distinct_3"] == pytest.approx(2 / 4)


def test_empty_texts_have_a_shape_too() -> None:
    assert shape_of([""]).record().distinct_2 == 0
    assert compared([""] * 20, [""] * 20).divergences == {1: 0.0, 2: 0.0, 3: 0.0}
