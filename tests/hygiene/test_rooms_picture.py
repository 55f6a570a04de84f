"""The picture of the rooms is of the imports there are."""

import pytest

from docs.tools.rooms import PICTURE, arrows, imports_between_rooms, picture, rows


def test_the_picture_is_of_todays_imports() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(imports_between_rooms()), (
        "python -m docs.tools.rooms draws it anew"
    )


def test_every_arrow_points_down_and_none_says_what_others_imply() -> None:
    imports = {"top": {"middle", "low"}, "middle": {"low"}, "low": set()}
    assert rows(imports) == [["top"], ["middle"], ["low"]]
    assert arrows(imports) == [("middle", "low"), ("top", "middle")]


def test_a_circle_is_no_picture() -> None:
    with pytest.raises(ValueError, match="circle"):
        rows({"a": {"b"}, "b": {"a"}})
