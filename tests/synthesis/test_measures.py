"""Measures against numbers that are known, and what each of them sees and must not miss."""

import io
import math
import random
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad

from dpft.records.synthesis import Synthesis
from dpft.reports.terminal import Grid
from dpft.synthesis import measures
from dpft.synthesis.columns import Text
from dpft.synthesis.measures import (
    FEWEST_TEXTS,
    SCALE,
    Tables,
    associations,
    bins,
    cramers_v,
    embedding,
    frontier_area,
    leakage,
    marginal,
    marginals,
    mauve,
    measured,
    patterns,
    personal_data,
    stretch,
    stretch_name,
    texts,
    total_variation,
    usefulness,
)
from dpft.synthesis.outcome import _place_of_bin, private_page, terminal
from dpft.synthesis.schema import Row, schema_of
from tests.models import small
from tests.synthesis.tables import SCHEMA as CONTENT
from tests.synthesis.tables import visitors

SCHEMA = schema_of(CONTENT)


def rows(count: int, seed: int = 0) -> list[Row]:
    """Returns rows in another order for each seed."""
    found = [SCHEMA.row(row) for row in visitors(2 * count)]
    random.Random(seed).shuffle(found)
    return found[:count]


def test_total_variation_of_known_shares() -> None:
    assert total_variation(["a"] * 3, ["a"]) == 0
    assert total_variation(["a"], ["b"]) == 1
    assert total_variation([*"aaab"], [*"abbb"]) == pytest.approx(0.5)


def test_cramers_v_is_the_corrected_one() -> None:
    """Against scipy's chi-squared and Bergsma's correction written out; and its two ends."""
    from scipy.stats import chi2_contingency
    from scipy.stats.contingency import crosstab

    draw = random.Random(0)
    one = [draw.choice("abc") for _ in range(200)]
    other = [each if draw.random() < 0.4 else draw.choice("abcd") for each in one]
    table = crosstab(one, other).count
    r, k, n = *table.shape, 200
    phi = max(0, chi2_contingency(table, correction=False).statistic / n - (r - 1) * (k - 1) / 199)
    least = min(r - (r - 1) ** 2 / 199, k - (k - 1) ** 2 / 199) - 1
    assert cramers_v(one, other) == pytest.approx(math.sqrt(phi / least))
    assert cramers_v(one, one) == pytest.approx(1)
    assert cramers_v(one, ["x"] * 200) == 0
    assert cramers_v(one, random.Random(1).sample(one, 200)) < 0.15


def test_bins_follow_the_schemas_range_and_not_the_rows() -> None:
    age = SCHEMA.named["age"]
    assert [stretch(age, value) for value in (18, 26, 27, 99)] == [0, 0, 1, 9]
    assert [stretch_name(age, at) for at in (0, 1, 9)] == ["from 18", "from 27", "from 92"]
    few = schema_of({"columns": {"n": {"type": "integer", "minimum": 1, "maximum": 5}}}).named["n"]
    assert len({stretch_name(few, at) for at in range(10)}) == 10  # some have no value of their own
    day = schema_of(
        {"columns": {"d": {"type": "date", "minimum": "2020-01-01", "maximum": "2020-01-20"}}}
    ).named["d"]
    first = day.read("2020-01-01")
    assert [stretch(day, day.read(f"2020-01-{n:02d}")) for n in (1, 2, 3, 20)] == [0, 0, 1, 9]
    assert stretch_name(day, 1) == "from 2020-01-03" and stretch(day, first) == 0
    assert bins(age, [18, None]) == ["from 18", ""]


def test_a_texts_bin_is_its_number_of_words_and_one_for_all_long_ones() -> None:
    note = next(column for column in SCHEMA.learned if isinstance(column, Text))
    texts = ["", "a b c d", "a b c d e", "a " * 50, "a " * 200]
    found = ["0 to 4 words", "0 to 4 words", "5 to 9 words", *["50 words and more"] * 2]
    assert bins(note, texts) == found
    counted = marginal(note, texts)
    assert list(counted.items()) == [(name, found.count(name)) for name in dict.fromkeys(found)]


def test_bars_stand_by_size_then_by_name_and_empty_cells_last() -> None:
    names = ["", "10 to 14 words", "from 2020-01-03", "5 to 9 words", "50 words and more", "Oslo"]
    assert sorted(names, key=_place_of_bin) == [
        "5 to 9 words", "10 to 14 words", "50 words and more", "Oslo", "from 2020-01-03", "",
    ]  # fmt: skip


def test_rows_of_the_same_kind_are_near_in_everything() -> None:
    tables = Tables(synthetic=rows(150, 1), training=rows(150, 2), controls=rows(150, 3))
    for each in marginals(SCHEMA, tables):
        assert each.total_variation < 0.25 and sum(each.synthetic.values()) == 150
    pairs = associations(SCHEMA, tables)
    assert pairs is not None and pairs.mean_difference < 0.15
    found = usefulness(SCHEMA, tables)
    assert not isinstance(found, str)
    assert found.logistic_synthetic > 0.95 and found.commonest < 0.8
    assert (found.taught, found.tested) == (150, 150)


def test_columns_drawn_apart_lose_what_hangs_together() -> None:
    """The marginals stay; pairs and the label's classifier see it."""
    real = rows(300, 2)
    apart = [dict(row) for row in rows(300, 1)]
    for seed, name in enumerate(("smoker", "note")):
        values = [row[name] for row in apart]
        random.Random(seed).shuffle(values)
        for row, value in zip(apart, values, strict=True):
            row[name] = value
    found = usefulness(SCHEMA, Tables(synthetic=apart, training=real, controls=rows(100, 3)))
    assert not isinstance(found, str)
    assert found.logistic_real > 0.95 > 0.85 > found.logistic_synthetic
    same = usefulness(SCHEMA, Tables(synthetic=real, training=real, controls=rows(100, 3)))
    assert not isinstance(same, str) and same.logistic_synthetic == same.logistic_real


def test_copies_are_found_and_counted_against_controls() -> None:
    def numbered(start: int, count: int) -> list[Row]:
        return [
            {**row, "note": f"{row['note']} {n} {n * n}"}
            for n, row in enumerate(rows(count), start)
        ]

    training, controls = numbered(0, 40), numbered(1000, 40)
    found = leakage(SCHEMA, Tables(synthetic=training[:10], training=training, controls=controls))
    assert found.whole_rows_of_training == pytest.approx(0.25)
    assert found.whole_rows_of_controls == 0
    assert found.texts.copies == 10 and found.texts.longest_run_auc > 0.5


def test_mauve_of_texts_is_high_for_real_ones_and_low_for_others() -> None:
    """Beside it stands that of training texts; without a model, or of a few texts, none is."""

    def embed(texts: Sequence[str]) -> np.ndarray:
        return np.array([[text.count(each) for each in "abcdefghiRO"] for text in texts], float)

    real, controls = rows(120), rows(120, seed=2)
    (near,) = texts(SCHEMA, Tables(synthetic=rows(120, 3), training=real, controls=controls), embed)
    other = [{**row, "note": "b" * (at % 7) + "gg"} for at, row in enumerate(real)]
    (far,) = texts(SCHEMA, Tables(synthetic=other, training=real, controls=controls), embed)
    assert near.mauve > 0.8 and near.mauve_of_training == far.mauve_of_training > 0.8
    assert far.mauve < 0.05
    few = Tables(synthetic=rows(40), training=real, controls=controls)
    assert [each.mauve for each in texts(SCHEMA, few, embed)] == [None]
    whole = Tables(synthetic=other, training=real, controls=controls)
    assert [each.mauve for each in texts(SCHEMA, whole)] == [None]


def test_what_cannot_be_taught_is_said() -> None:
    few = Tables(synthetic=rows(5), training=rows(50), controls=rows(5))
    assert "fewer than 20 rows" in str(usefulness(SCHEMA, few))
    one = [{**row, "smoker": True} for row in rows(50)]
    of_one = Tables(synthetic=one, training=rows(50), controls=rows(5))
    assert "synthetic rows have one class" in str(usefulness(SCHEMA, of_one))
    unlabeled = schema_of({"columns": CONTENT["columns"]})
    assert "no label" in str(usefulness(unlabeled, few))


PHONES = ["+44 7700 900123", "(030) 901820-12", "07700900123"]


@pytest.mark.parametrize("number", PHONES)
def test_phone_numbers_are_found_as_they_are_written(number: str) -> None:
    assert patterns(f"Call {number}, please.") == [("phone numbers", number)]


@pytest.mark.parametrize("text", ["2024-01-31", "12", "a 3.5 of 5", "1234567a", "in 1999 and 2004"])
def test_dates_and_small_numbers_are_no_phone_numbers(text: str) -> None:
    assert patterns(text) == []


def test_personal_data_that_came_through_are_counted() -> None:
    def noted(*notes: str) -> Sequence[Any]:
        return [{"note": note} for note in notes]

    schema = schema_of({"columns": {"note": {"type": "text", "max_tokens": 9}}})
    real = noted("ring 07700 900123", "or 07700 900456", "ann@example.org", "4111 1111 1111 1111")
    synthetic = noted("ring (07700) 900123", "call 07700 900999", "bob@example.org")
    found = personal_data(schema, real, synthetic)
    assert found is not None
    phones = found.kinds["phone numbers"]
    assert (phones.real, phones.synthetic, phones.synthetic_that_are_real) == (2, 2, 1)
    mails = found.kinds["e-mail addresses"]
    assert (mails.real, mails.synthetic, mails.synthetic_that_are_real) == (1, 1, 0)
    assert found.kinds["card numbers"].real == 1
    assert personal_data(schema_of({"columns": {"a": {"type": "boolean"}}}), [], []) is None


def test_presidio_adds_to_the_patterns_and_asks_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("presidio_analyzer", reason="the extra pii is not installed")
    import socket

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a private text is looked at, and the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refused)
    texts = {
        "Ask ann@example.org or +44 7700 900123; card 4111 1111 1111 1111.": 3,
        "Call 07700 900123 or (212) 555-0123.": 2,
        "Between 2020-01-02 and 12:30 nothing was 42.": 0,
    }
    finder, by = measures._finder()
    assert by.startswith("presidio") and ("names" in by)
    for text, expected in texts.items():
        assert len(finder(text)) == expected, text
    schema = schema_of({"columns": {"note": {"type": "text", "max_tokens": 60}}})
    real = [{"note": text} for text in texts]
    found = personal_data(schema, real, [{"note": "Write to ANN@example.org."}])
    assert found is not None and found.by == by
    assert {kind: (n.real, n.synthetic_that_are_real) for kind, n in found.kinds.items()} == {
        "e-mail addresses": (1, 1), "phone numbers": (3, 0), "card numbers": (1, 0),
    }  # fmt: skip


def test_presidio_finds_names_where_a_model_of_spacy_is() -> None:
    pytest.importorskip("presidio_analyzer", reason="the extra pii is not installed")
    import spacy

    if not any(name.startswith("en_") for name in spacy.util.get_installed_models()):
        pytest.skip("no English model of spaCy is installed")
    schema = schema_of({"columns": {"note": {"type": "text", "max_tokens": 60}}})
    real = [{"note": "Ask Anna Schmidt, or call 07700 900123."}, {"note": "John Miller came."}]
    found = personal_data(schema, real, [{"note": "I saw John Miller."}, {"note": "Nobody."}])
    assert found is not None and "of names by en_" in found.by
    names = found.kinds["names"]
    assert (names.real, names.synthetic, names.synthetic_that_are_real) == (2, 1, 1)
    assert found.kinds["phone numbers"].real == 1


def test_all_measures_of_tables_without_texts() -> None:
    schema = schema_of({"columns": {"a": {"type": "boolean"}}})
    some: list[Row] = [{"a": True}, {"a": False}]
    found = measured(schema, Tables(synthetic=some, training=some, controls=some))
    assert found.associations is None and found.personal is None and found.texts == ()


def test_the_terminals_table_has_ten_lines_of_eighty_letters_whatever_is_compared() -> None:
    """Heads and figures; of twelve columns of long names, three texts, a label, personal data."""
    from rich.console import Console

    wide = "der Straße, in der jemand wohnte 東京都千代田区\n`" * 3
    lines = {f"{number} {wide}": {"type": "boolean"} for number in range(9)}
    lines |= {f"note {n} {wide}": {"type": "text", "max_tokens": 40} for n in range(3)}
    schema = schema_of({"columns": lines, "label": f"0 {wide}"})
    draw = random.Random(0)
    tables = [
        [
            {
                name: draw.random() < 0.5
                if says["type"] == "boolean"
                else f"{draw.choice(PHONES)} {draw.choice(['smokes', 'sings'])} {draw.random()}"
                for name, says in lines.items()
            }
            for _ in range(120)
        ]
        for _ in range(3)
    ]
    found = measured(
        schema,
        Tables(synthetic=tables[0], training=tables[1], controls=tables[2]),
        lambda texts: np.array([[len(text), text.count("s")] for text in texts], float),
    )
    assert len(found.texts) == 3 and found.personal is not None and found.texts[0].mauve is not None
    assert all(text.told_apart is not None for text in found.texts)
    assert not isinstance(found.usefulness, str) and found.associations is not None
    nothing: dict[str, Any] = dict.fromkeys((each.name for each in fields(Synthesis)), None)
    said = Synthesis(**{**nothing, "private": False, "warnings": ()})
    (grid,) = (
        part for part in terminal(said, found, {}) if isinstance(part, Grid) and part.columns
    )
    assert len(grid.rows) == 9, "every kind of figure is there"
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(grid)
    title, *table = console.file.getvalue().splitlines()
    assert title.startswith("Against real rows") and len(table) == 10, "no line is wrapped"
    page = private_page(said, found, {})
    for text in found.texts:
        assert f"Texts of {text.name}".splitlines()[0] in page
    assert page.count("MAUVE by the generator") == 3, "the page has what the table leaves out"


def test_equal_shares_have_1_and_disjoint_ones_the_closed_form() -> None:
    """The integral of (1 - x^(1/c))^c is c!^2 / (2c)!: 1/252 of c = 5."""
    assert frontier_area([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]) == pytest.approx(1)
    least = math.factorial(5) ** 2 / math.factorial(10)
    assert frontier_area([1, 0], [0, 1], points=4000) == pytest.approx(least, rel=1e-3)
    assert frontier_area([1, 0], [0, 1]) == pytest.approx(least, rel=0.1), "25 points are near it"


def test_two_groups_by_hand() -> None:
    """P = (1, 0), Q = (1/2, 1/2): KL(Q | R) = -log(1 - w^2) / 2 and KL(P | R) = -log((1 + w) / 2).

    From where w is 0 the curve goes on to (1, 0).
    """

    def x(w: float) -> float:
        return (1 - w * w) ** (SCALE / 2)

    def y(w: float) -> float:
        return ((1 + w) / 2) ** SCALE

    area = quad(lambda w: y(w) * SCALE * w * (1 - w * w) ** (SCALE / 2 - 1), 0, 1)[0]
    assert x(0) == 1 and y(1) == 1
    assert frontier_area([1, 0], [0.5, 0.5], points=4000) == pytest.approx(area, rel=1e-3)
    assert frontier_area([0.5, 0.5], [1, 0], points=4000) == pytest.approx(area, rel=1e-3)


def clusters(counts: dict[int, int]) -> np.ndarray:
    """Features in groups far apart, so many of each."""
    noise = np.random.default_rng(sum(counts))
    centers = np.eye(8)
    rows = [
        centers[group] + 1e-3 * noise.normal(size=8)
        for group, n in counts.items()
        for _ in range(n)
    ]
    return np.array(rows)


def test_samples_of_one_distribution_are_near_and_of_disjoint_ones_far() -> None:
    noise = np.random.default_rng(0)
    one, other = noise.normal(size=(2, 400, 6))
    assert mauve(one, other) > 0.9
    assert mauve(one, one) == pytest.approx(1)
    assert mauve(clusters({0: 60, 1: 60}), clusters({2: 60, 3: 60})) == pytest.approx(
        frontier_area([1, 0], [0, 1]), rel=1e-6
    )
    shifted = mauve(clusters({0: 60, 1: 60}), clusters({0: 90, 1: 30}))
    assert 0.004 < shifted < 1


def test_a_few_texts_or_equal_ones_are_no_division_by_zero() -> None:
    assert mauve(np.ones((FEWEST_TEXTS - 1, 3)), np.ones((100, 3))) is None
    assert mauve(np.ones((60, 3)), np.ones((60, 3))) == pytest.approx(1)


def test_features_are_the_last_state_of_each_text_whatever_stands_beside_it() -> None:
    model, tokenizer = small.language_model("gpt2"), small.blank_words(closes=False)
    embed = embedding(model, tokenizer, most_tokens=8)
    texts = ["the cat sat", "the", "a dog sat on the mat"]
    together = embed(texts)
    for text, features in zip(texts, together, strict=True):
        np.testing.assert_allclose(embed([text])[0], features, rtol=1e-5, atol=1e-6)
    assert np.abs(together[0] - together[1]).max() > 1e-3
