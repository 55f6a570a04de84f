import doctest

import pytest

from dpft.errors import InputError
from dpft.tasks import columns
from dpft.tasks.columns import ColumnTemplate


def parse(text: str) -> ColumnTemplate:
    return ColumnTemplate.parse(text, key="task.text")


def test_docstrings_show_what_the_code_does():
    assert doctest.testmod(columns).failed == 0


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{a}", "x"),
        ("{{{a}}} {b}", "{x} 7"),
        (r"{a}\n\t{b}", "x\n\t7"),
        (r"{a}\\nabla", "x\\nabla"),
        ("{a}{b}{a}", "x7x"),
    ],
)
def test_a_template_is_filled_as_python_fills_it(template, filled):
    assert parse(template).fill({"a": "x", "b": 7}) == filled


@pytest.mark.parametrize(
    ("value", "written"), [(7, "7"), (1.5, "1.5"), (True, "true"), (" x ", " x "), ("", "")]
)
def test_numbers_are_written_as_json_has_them_and_texts_as_they_are(value, written):
    assert parse("{a}").fill({"a": value}) == written


@pytest.mark.parametrize("value", [None, float("nan"), ["secret"], {"secret": 1}, b"secret"])
def test_a_value_that_is_neither_text_nor_number_is_refused_and_not_quoted(value):
    with pytest.raises(
        InputError, match="the column a, which task.text names, (holds n|is empty)"
    ) as caught:
        parse("{a}").fill({"a": value})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "template",
    ["{a", "a}", "{}", "{a.b}", "{a[0]}", "{a!r}", "{a:>9}", "{a:{b}}", "{ }", "no column"],
)
def test_anything_but_columns_in_braces_is_refused_with_the_key(template):
    with pytest.raises(InputError, match="task.text m"):
        parse(template)


def test_lead_and_separator_are_what_stands_around_the_columns():
    template = parse("Q: {a} by {b}\nA: ")
    assert (template.lead, template.separator) == ("Q: ", "\nA: ")
    whole = ColumnTemplate.parse("Say it:", key="task.prompt", needs_column=False)
    assert (whole.lead, whole.separator) == ("Say it:", "")


@pytest.mark.parametrize(
    ("template", "text", "found"),
    [
        ("{a}", " any\ntext ", {"a": "any\ntext"}),
        ("{a}: {b}", "x: y: z", {"a": "x", "b": "y: z"}),
        ("{a} and {a}", "x and x", {"a": "x"}),
        ("{a} and {a}", "x and y", None),
        (" ({a})\n", "(x)", {"a": "x"}),
        ("a.b {a}", "aXb x", None),
    ],
)
def test_a_text_is_read_back_by_its_template(template, text, found):
    assert parse(template).read(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Q: x y\nA: 1, 2", ("x y", "1, 2")),
        # a blank where pieces that are tokenised apart begin, and nowhere else
        ("Q:  x y\nA:  1, 2", ("x y", "1, 2")),
        ("Q: x y \nA: 1, 2", ("x y", "1, 2")),
        (" Q:  x y \nA:  1, 2 \n", ("x y", "1, 2")),
        ("Q:   x y\nA: 1, 2", (" x y", "1, 2")),
        ("Q: x y\n A: 1", None),
        ("Q: x y A: 1", None),
    ],
)
def test_two_templates_in_a_row_read_their_text_with_and_without_blanks_at_their_seams(text, found):
    whole = parse(r"Q: {a}\nA: ").followed_by(parse("{b}"))
    assert whole.fill({"a": "x y", "b": "1, 2"}) == "Q: x y\nA: 1, 2"
    assert whole.read(text) == (found and dict(zip("ab", found, strict=True)))


@pytest.mark.parametrize("text", ["x\nN: y", "x\n N: y", " x \n N: y"])
def test_a_seam_is_also_before_the_second_templates_own_words(text):
    assert parse(r"{a}\n").followed_by(parse("N: {b}")).read(text) == {"a": "x", "b": "y"}


def test_a_template_without_a_column_may_come_first():
    first = ColumnTemplate.parse(" Say it:", key="task.prompt", needs_column=False)
    whole = first.followed_by(parse("{a}"))
    assert [whole.read(text) for text in ("Say it:x", "Say it: x")] == [{"a": "x"}] * 2


def test_a_row_is_blank_where_no_column_says_anything():
    assert parse("<{a}{b}>").is_blank({"a": " ", "b": "\n"})
    assert not parse("<{a}{b}>").is_blank({"a": " ", "b": 0})
