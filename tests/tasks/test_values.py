import pytest

from dpft.errors import InputError
from dpft.tasks.values import list_of, objects_of, text_of, texts_of


def test_values_of_the_right_shape_are_returned():
    assert text_of("é", "x") == "é"
    assert texts_of(["a", ""], "x") == ("a", "")
    assert objects_of([{"a": 1}], "x") == ({"a": 1},)
    assert list_of([1], "x", "numbers") == [1]


@pytest.mark.parametrize("value", [None, 1, ["secret"], b"secret", "secret\ud800"])
def test_what_is_no_text_is_refused_without_being_quoted(value):
    with pytest.raises(InputError, match=r"^reply must be text") as caught:
        text_of(value, "reply")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("check", [texts_of, objects_of])
@pytest.mark.parametrize("value", [None, "secret", {"secret": 1}, [["secret"]], [3]])
def test_what_is_no_such_list_is_refused_without_being_quoted(check, value):
    with pytest.raises(InputError, match="turns must be") as caught:
        check(value, "turns")
    assert "secret" not in str(caught.value)
