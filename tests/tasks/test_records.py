import pytest

from dpft.tasks.base import (
    Example,
    LabeledExample,
    are_texts,
    is_unicode,
)

TEXT = Example(prompt="name[x] :", target="x", group="name[x]", separator=" :")
LABEL = LabeledExample(texts=("x",), label=1.0)


@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        ({"separator": "?"}, "must end with separator"),
        ({"lead": "no"}, "must start with lead"),
        ({"lead": "name[x] :", "separator": " :"}, "separator follow it"),
    ],
)
def test_the_ends_that_stay_when_a_prompt_is_cut_are_its_own_and_do_not_overlap(
    ends: dict[str, str], sentence: str
) -> None:
    Example(prompt="name[x] :", target="x", group="g", lead="name", separator=" :")
    with pytest.raises(ValueError, match=sentence):
        Example(prompt="name[x] :", target="x", group="g", **ends)


def test_records_are_texts_where_every_one_is() -> None:
    assert are_texts([TEXT, TEXT]) and not are_texts([TEXT, LABEL])


def test_a_lone_surrogate_is_no_unicode() -> None:
    assert is_unicode("é ✓ 😀") and not is_unicode("x\ud800")
