"""Measures against numbers that are known, and what each of them sees and must not miss."""

import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ks_2samp

from dpft.synthesis.measures import (
    Tables,
    associations,
    binned,
    binned_counts,
    classifier_accuracy,
    column_distance,
    compare_tables,
    copies,
    frame_of,
    usefulness,
)
from dpft.synthesis.schema import Row, column_of, schema_of
from tests.synthesis.tables import SCHEMA as CONTENT
from tests.synthesis.tables import visitors

SCHEMA = schema_of(CONTENT)


def rows(count: int, seed: int = 0) -> list[Row]:
    """Return rows in another order for each seed."""
    found = [SCHEMA.row(row) for row in visitors(2 * count)]
    random.Random(seed).shuffle(found)
    return found[:count]


def tables(synthetic: list[Row], training: list[Row], controls: list[Row]) -> Tables:
    return Tables(*(frame_of(SCHEMA, side) for side in (synthetic, training, controls)))


def series(*values: Any) -> pd.Series:
    return pd.Series(values, dtype=object)


def test_bins_follow_the_schemas_range_and_not_the_rows() -> None:
    age = column_of("age", {"type": "integer", "minimum": 18, "maximum": 99, "missing": True})
    assert binned(age, series(18, 26, 27, 99, None)).tolist() == [
        "from 18", "from 18", "from 27", "from 92", "",
    ]  # fmt: skip
    bill = column_of("bill", {"type": "decimal", "minimum": 0, "maximum": 1, "step": 0.25})
    steps = [0.0, 0.25, 0.5, 0.75, 1.0]
    assert binned(bill, series(*steps)).tolist() == [f"from {each:.2f}" for each in steps]
    day = column_of("d", {"type": "date", "minimum": "2020-01-01", "maximum": "2020-01-20"})
    assert binned(day, series("2020-01-02", "2020-01-20")).tolist() == [
        "from 2020-01-01", "from 2020-01-19",
    ]  # fmt: skip
    note = SCHEMA.named["note"]
    assert binned(note, series("a b", "x " * 80)).tolist() == ["from 0 words", "from 50 words"]
    flag = SCHEMA.named["smoker"]
    counts = binned_counts(flag, {"rows": pd.DataFrame({"smoker": series(True, True)})})
    assert counts.rows == {"true": (2,)}


def test_distances_of_known_samples() -> None:
    """Total variation of categories, also of missing cells; Kolmogorov-Smirnov of numbers."""
    city = column_of("c", {"type": "category", "values": ["a", "b"], "missing": True})
    assert column_distance(city, series(*"aaab"), series(*"abbb")) == pytest.approx(0.5)
    assert column_distance(city, series("a", None), series("a", "a")) == pytest.approx(0.5)
    age = column_of("n", {"type": "integer", "minimum": 0, "maximum": 99, "missing": True})
    draw = np.random.default_rng(0)
    one, other = draw.integers(0, 60, 50).tolist(), draw.integers(20, 99, 70).tolist()
    expected = ks_2samp(one, other).statistic
    assert column_distance(age, series(*one, None), series(*other)) == pytest.approx(expected)
    assert column_distance(age, series(None), series(3)) == 1


@pytest.mark.slow
def test_associations_are_between_0_and_1_and_see_a_bond() -> None:
    """The visitors' notes name their city and whether they smoke."""
    found = associations(SCHEMA, tables(rows(80, 1), rows(80, 2), rows(80, 3))).rows
    assert set(found) == {"city, age", "city, smoker", "city, note", "age, smoker", "age, note",
                          "smoker, note"}  # fmt: skip
    assert all(0 <= value <= 1 for values in found.values() for value in values)
    real = [{"city": c, "age": 20, "smoker": c == "Rome", "note": ""} for c in ("Rome", "Oslo")]
    bound = associations(SCHEMA, tables(real * 30, real * 30, real * 30)).rows
    assert bound["city, smoker"] == pytest.approx((1, 1, 1), abs=0.05)
    assert bound["city, age"] == (0, 0, 0), "a column of one value"


@pytest.mark.slow
def test_a_label_is_learned_from_rows_that_hold_it_and_not_from_noise() -> None:
    noise = [{**row, "smoker": random.Random(n).random() < 0.5} for n, row in enumerate(rows(100))]
    for synthetic, low, high in ((rows(100), 0.9, 1), (noise, 0, 0.85)):
        found = usefulness(SCHEMA, tables(synthetic, rows(100, 2), rows(100, 3)))
        scores = found.rows["smoker by trees trained on them"]
        assert low <= scores[0] <= high and scores[1] >= 0.9
    few = usefulness(SCHEMA, tables(rows(5), rows(100), rows(9)))
    assert few.rows == {} and "fewer than 20 rows" in str(few.note)
    assert usefulness(schema_of({"columns": CONTENT["columns"]}), few_tables()).rows == {}


def few_tables() -> Tables:
    return tables(rows(30), rows(30), rows(30))


@pytest.mark.slow
def test_texts_of_one_kind_are_not_told_apart_and_others_are() -> None:
    draw = random.Random(0)
    one, other, third = ([f"{draw.choice('abc')} {draw.choice('xyz')}" for _ in range(200)]
                         for _ in range(3))  # fmt: skip
    assert classifier_accuracy(one, other) == pytest.approx(0.5, abs=0.1)
    assert classifier_accuracy(one, [f"{text} !" for text in third]) == 1
    assert classifier_accuracy(one[:19], other) is None


@pytest.mark.slow
def test_copied_records_are_seen_beside_those_that_were_not_trained_on() -> None:
    draw = random.Random(0)

    def texts(count: int) -> list[str]:
        return [
            " ".join(draw.choices([f"word{n}" for n in range(300)], k=12)) for _ in range(count)
        ]

    training, others, fresh = texts(60), texts(60), texts(60)
    clean = copies(fresh, training, others)
    assert clean.columns == ("training records", "other records")
    assert clean.rows["identical to a synthetic text, %"] == (0, 0)
    near = f"{training[6]} one"
    leaked = copies([*fresh, *training[:6], near], training, others)
    assert leaked.rows["identical to a synthetic text, %"] == pytest.approx((10, 0))
    assert leaked.rows["with a near duplicate, %"] == pytest.approx((100 * 7 / 60, 0))
    assert leaked.rows["phrases of five words found, mean %"][0] > 10
    assert "probability 0.558" in str(leaked.note)
    alone = copies(fresh, training, None)
    assert alone.columns == ("training records",) and alone.note is None


@pytest.mark.slow
def test_every_measure_of_tables_and_of_a_table_of_one_column() -> None:
    found = compare_tables(SCHEMA, tables(rows(60, 1), rows(60, 1), rows(60, 3)))
    titles = [table.title for table in found]
    assert titles[:4] == ["In short", "Columns: distance from training rows",
                          "Pairs of columns: Cramér's V", "Copies of single records"]  # fmt: skip
    short = found[0].rows
    assert short["columns, mean distance"][0] == 0
    assert short["training rows found unchanged"][0] == 1
    assert all(len(values) == 2 for values in short.values())
    schema = schema_of({"columns": {"a": {"type": "boolean"}}})
    some = frame_of(schema, [{"a": True}, {"a": False}])
    assert compare_tables(schema, Tables(some, some, some))[2].rows == {}
