import pytest

from dpft.errors import InputError
from dpft.tasks.templates import Template


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
    ("template", "parts"),
    [
        ("<S1> It was great .", ["must hold [MASK] once", "0 times"]),
        ("<S1> [MASK] [MASK]", ["must hold [MASK] once", "2 times"]),
        ("It was [MASK]", ["must hold <S1> once", "0 times"]),
        ("<S1> <S1> [MASK]", ["must hold <S1> once", "2 times"]),
        ("<S1> <S2> [MASK]", ["may name <S1> and [MASK]", "the unknown field <S2>"]),
        ("<S1> <mask>", ["the unknown field <mask>"]),
        ("<s1> [MASK]", ["the unknown field <s1>"]),
        ("", ["must hold <S1> once"]),
    ],
)
def test_a_bad_template_is_refused_by_its_key(template, parts):
    with pytest.raises(InputError) as caught:
        Template.parse(template, texts=1, key="task.other_template")
    sentence = str(caught.value)
    assert sentence.startswith("task.other_template ")
    assert [part for part in parts if part not in sentence] == [], sentence
