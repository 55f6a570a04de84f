import doctest

import pytest

from dpft.tasks import templates
from dpft.tasks.templates import ColumnTemplate, Template, objects_of, text_of, texts_of
from tests.rejections import rejects


def filled(text: str, *texts: str) -> str:
    pieces = Template.parse(text, texts=len(texts)).fill(texts)
    return "".join("*" if piece.is_mask else piece.text for piece in pieces)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("<S1> It was [MASK] .", "one It was* ."),
        ("<S1> ? [MASK] , <S2>", "one ?* , two"),
        ("<S1>? [MASK], <S2>", "one?*, two"),
        ("<S2>[MASK]<S1>", "two*one"),
        (" <S1> [MASK]  ", " one*"),
    ],
)
def test_texts_take_their_places_and_blanks_belong_to_what_follows(template, expected):
    texts = ("one", "two") if "<S2>" in template else ("one",)
    assert filled(template, *texts) == expected


def test_a_text_that_spells_a_place_stays_a_text():
    pieces = Template.parse("<S1> [MASK] , <S2>", texts=2).fill(("[MASK] <S2>", "<S1>"))
    assert [piece.text for piece in pieces] == ["[MASK] <S2>", "", " ,", " <S1>"]
    assert [piece.is_mask for piece in pieces] == [False, True, False, False]


def test_only_the_records_own_texts_may_be_cut():
    pieces = Template.parse("<S1> ? [MASK] , <S2>", texts=2).fill(("a", "b"))
    assert [piece.text for piece in pieces if piece.may_be_cut] == ["a", " b"]


@pytest.mark.parametrize(
    ("template", "blank"), [("<S1> [MASK]", True), ("<S1>[MASK]", False), (" [MASK]<S1>", True)]
)
def test_whether_a_blank_stands_before_the_mask(template, blank):
    assert Template.parse(template, texts=1).blank_before_mask is blank


@pytest.mark.parametrize(("template", "ends"), [("<S1> [MASK] ", True), ("<S1> [MASK] .", False)])
def test_whether_the_answer_continues_the_text(template, ends):
    assert Template.parse(template, texts=1).ends_with_mask is ends


@pytest.mark.parametrize(
    "template",
    [
        "<S1> It was great .",
        "<S1> [MASK] [MASK]",
        "It was [MASK]",
        "<S1> <S2> [MASK]",
        "<S1> <mask>",
        "",
    ],
)
def test_a_bad_template_is_rejected_by_its_key(template):
    with rejects("task.other_template", template):
        Template.parse(template, texts=1, key="task.other_template")


def parse(text: str) -> ColumnTemplate:
    return ColumnTemplate.parse(text, key="task.text")


def test_docstrings_show_what_the_code_does():
    assert doctest.testmod(templates).failed == 0


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
    with rejects("a") as faults:
        parse("{a}").fill({"a": value})
    assert "secret" not in repr(faults)


@pytest.mark.parametrize(
    "template",
    ["{a", "a}", "{}", "{a.b}", "{a[0]}", "{a!r}", "{a:>9}", "{a:{b}}", "{ }", "no column"],
)
def test_anything_but_columns_in_braces_is_refused_with_the_key(template):
    with rejects("task.text", template):
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


@pytest.mark.parametrize("value", [None, 1, ["secret"], b"secret", "secret\ud800"])
def test_what_is_no_text_is_refused_without_being_quoted(value):
    with rejects("reply") as faults:
        text_of(value, "reply")
    assert "secret" not in repr(faults)


@pytest.mark.parametrize("check", [texts_of, objects_of])
@pytest.mark.parametrize("value", [None, "secret", {"secret": 1}, [["secret"]], [3]])
def test_what_is_no_such_list_is_refused_without_being_quoted(check, value):
    with rejects() as faults:
        check(value, "turns")
    assert "secret" not in repr(faults)
