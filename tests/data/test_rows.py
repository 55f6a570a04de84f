"""What a row holds; no refusal quotes it."""

import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dpft.data.readers import Row
from dpft.data.rows import examples_of, row_values, set_apart, unit_of
from dpft.errors import InputError
from tests.evaluation.letters import LetterTask, example

SECRET = "Qzxsecret"


@dataclass(frozen=True, kw_only=True)
class KeyedTask(LetterTask):
    """A task whose column a configuration key names."""

    key: str
    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def column_key(self, column: str) -> str:
        return self.key


TASK = LetterTask(name="letters", max_length=12, column_aliases={"letters": "target"})


def row(**values: object) -> Row:
    return Row("x.csv, line 7", values)


def test_a_column_is_found_under_its_own_name_or_an_alias() -> None:
    for name in ("target", "letters"):
        assert row_values(TASK, row(group="a", **{name: "b"}), TASK.columns) == {
            "group": "a",
            "target": "b",
        }
    (made,) = examples_of(TASK, row(group="a", letters="b"))
    assert (made.group, made.target) == ("a", "b")


def test_a_missing_column_is_named_by_all_its_names_and_the_row_by_its_place() -> None:
    with pytest.raises(InputError) as error:
        examples_of(TASK, row(group=SECRET, **{SECRET: "b"}))
    assert str(error.value) == (
        "x.csv, line 7: lacks the column target (or letters); task=letters needs group, target."
    )


@pytest.mark.parametrize("value", [None, 3, [SECRET], f"{SECRET}\ud800"])
def test_a_value_that_is_no_text_is_refused_and_not_quoted(value: object) -> None:
    with pytest.raises(InputError, match="line 7: the column letters must hold text") as error:
        examples_of(TASK, row(group="a", letters=value))
    assert SECRET not in str(error.value)


@dataclass(frozen=True, kw_only=True)
class Refusing(LetterTask):
    """Finds fault with every row."""

    def examples(self, row: Any) -> Any:
        raise InputError("two letters are needed.")


def test_a_tasks_own_refusal_says_which_row_it_is_of() -> None:
    task = Refusing(name="letters")
    with pytest.raises(InputError, match=r"^x.csv, line 7: two letters are needed\.$"):
        examples_of(task, row(group="a", target="b"))


def test_groups_that_an_earlier_row_has_are_numbered() -> None:
    taken = {"a", "a (2)"}
    same = example("a", "x")
    apart = set_apart([same, replace(same, target="y"), example("b", "z")], taken)
    assert [each.group for each in apart] == ["a (3)", "a (3)", "b"]
    assert taken == {"a", "a (2)", "a (3)", "b"}


def test_a_unit_is_a_text_or_a_whole_number_without_blanks_around_it() -> None:
    assert [unit_of(row(of=value), "of") for value in (" ann ", 3, "3")] == ["ann", "3", "3"]


@pytest.mark.parametrize("value", ["", "  ", None, True, 1.5, [SECRET], f"{SECRET}\ud800"])
def test_a_record_of_nobody_is_refused_and_not_quoted(value: object) -> None:
    with pytest.raises(InputError, match=r"line 7: the column of, which privacy\.unit") as error:
        unit_of(row(of=value), "of")
    assert SECRET not in str(error.value)


def test_a_unit_that_the_file_lacks_counts_its_columns_and_names_none() -> None:
    with pytest.raises(InputError, match="the row has 2 columns under other names") as error:
        unit_of(row(**{SECRET: "x", "other": "y"}), "customer")
    assert SECRET not in str(error.value)


def test_a_terminal_is_shown_the_columns_and_the_nearest_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its owner reads it; a pipe or a log gets their number alone."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    known = row(id="1", text="a", label="b", **{"x" * 50: "c"})
    shown = (
        f"which task.text names; the row has id, text, label, {'x' * 39}…: did you mean {{text}}?"
    )
    with pytest.raises(InputError) as error:
        examples_of(KeyedTask(name="letters", max_length=12, key="task.text", column="txt"), known)
    assert shown in str(error.value)
    with pytest.raises(InputError, match=r"did you mean label\? \(the first line") as error:
        unit_of(known, "lbel")
    with pytest.raises(InputError, match="correct the one or the other"):
        unit_of(known, "customer")
