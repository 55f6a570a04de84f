import hashlib
import hmac
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpft.data import training_records
from dpft.data.training_records import (
    KEY_BYTES,
    PackedRecords,
    batched,
    bounded_units,
    drained,
    group_by_unit,
    new_key,
    records_fingerprint,
    split_held_out,
)
from dpft.tasks.base import Example, LabeledExample, Record
from dpft.tasks.custom import ChatExample, Message

CHAT = ChatExample(
    prompt="user: a",
    target="b",
    group="user: a",
    cut_start=True,
    messages=(Message(role="user", content="a"), Message(role="system", content="é😀")),
)
RECORDS: list[Record] = [
    Example(prompt="Q: a\nA:", target=" b", group="Q: a\nA:", lead="Q: ", separator="\nA:"),
    Example(prompt="", target="", group="", cut_target_end=True, learns_prompt=True),
    CHAT,
    LabeledExample(texts=("a film", "eine Größe"), label=0.1),
    LabeledExample(texts=("",), label=2.0),
    Example(prompt="last", target="one", group="last"),
    Example(prompt="\n\x00 blank ", target="…", group=" "),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_records, "TOGETHER", 3)


def test_records_of_every_kind_come_back_as_they_were_in_any_order() -> None:
    packed = PackedRecords(iter(RECORDS))
    assert len(packed) == len(RECORDS)
    assert list(packed) == RECORDS == packed[:]
    assert [packed[at] for at in (6, 0, 3, -1)] == [RECORDS[at] for at in (6, 0, 3, -1)]
    with pytest.raises(IndexError):
        packed[7]


@pytest.mark.parametrize("number", [0, 1, 3, 6])
def test_any_number_of_records_fits(number: int) -> None:
    packed = PackedRecords(RECORDS[:number])
    assert (len(packed), list(packed)) == (number, RECORDS[:number])
    assert list(packed.drain()) == RECORDS[:number]


@pytest.mark.parametrize("places", [[0, 2, 3, 6], [6], [], range(7), range(2, 5)])
def test_some_of_them_are_had_alone(places: Sequence[int]) -> None:
    packed = PackedRecords(RECORDS)
    some = packed.only(places)
    assert list(some) == [RECORDS[at] for at in places] == list(drained(some))


def test_those_of_those_are_counted_among_them() -> None:
    some = PackedRecords(RECORDS).only([1, 3, 5]).only([0, 2])
    assert list(some) == [RECORDS[1], RECORDS[5]]


def test_a_librarys_own_kind_of_text_or_number_is_packed_as_pythons() -> None:
    class Text(str):
        def __str__(self) -> str:
            raise AssertionError

    class Number(float):
        pass

    (record,) = PackedRecords([LabeledExample(texts=(Text("é"),), label=Number(0.5))])
    assert record == LabeledExample(texts=("é",), label=0.5)
    assert isinstance(record, LabeledExample)
    assert (type(record.texts[0]), type(record.label)) == (str, float)


def test_a_list_is_drained_as_it_is_and_pieces_keep_the_order() -> None:
    assert list(drained(RECORDS)) == RECORDS
    assert list(batched(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(batched([], 3)) == []


KEY = b"k" * KEY_BYTES
UNITS = [str(number) for number in range(4000)]


def test_every_record_is_on_one_side_in_its_order():
    kept, held = split_held_out(UNITS, 0.2, KEY)
    assert sorted(kept + held) == list(range(len(UNITS)))
    assert (kept, held) == (sorted(kept), sorted(held))


def test_the_side_is_that_of_hmac_sha256():
    def first_word(unit: str) -> int:
        digest = hmac.new(KEY, unit.encode(), hashlib.sha256).hexdigest()
        return int(digest[:16], 16)

    _, held = split_held_out(UNITS[:50], 0.5, KEY)
    assert held == [index for index in range(50) if first_word(UNITS[index]) < 2**63]


def test_the_fraction_is_a_probability():
    """Four standard deviations of a binomial of 4000 at 0.2 are 101."""
    _, held = split_held_out(UNITS, 0.2, KEY)
    assert abs(len(held) - 800) < 101


def test_a_unit_is_not_divided_and_no_other_record_moves_it():
    units = ["ann", "ben", "ann", "cy"] * 20
    kept, held = split_held_out(units, 0.5, KEY)
    assert not {units[index] for index in kept} & {units[index] for index in held}
    _, alone = split_held_out(["ann", "ben", "cy"], 0.5, KEY)
    assert {units[index] for index in held} == {("ann", "ben", "cy")[index] for index in alone}


def test_another_key_gives_other_sides():
    first, second = new_key(), new_key()
    assert len(first) == KEY_BYTES and first != second
    assert split_held_out(UNITS, 0.2, first) != split_held_out(UNITS, 0.2, second)
    assert split_held_out(UNITS, 0.2, first) == split_held_out(UNITS, 0.2, first)


def test_records_are_known_by_what_they_hold_their_order_and_whose_they_are():
    records = [
        Example(prompt="a", target="b", group="a"),
        Example(prompt="ab", target="", group="ab"),
        LabeledExample(texts=("a", "b"), label=1.0),
    ]
    units = ["0", "1", "2"]
    known = records_fingerprint(records, units, KEY)
    assert records_fingerprint(list(records), list(units), KEY) == known
    others = [
        (records[::-1], units, KEY),
        (records[:2], units[:2], KEY),
        ([*records[:2], LabeledExample(texts=("a", "b"), label=0.0)], units, KEY),
        (records, ["0", "1", "1"], KEY),
        (records, units, b"j" * KEY_BYTES),
    ]
    assert known not in {records_fingerprint(*other) for other in others}


ZEROS = bytes(32)
OWNERS = st.lists(st.sampled_from("abcde"), max_size=30)


def bounded(values, *, most=3, key=ZEROS, usable=None):
    usable = [True] * len(values) if usable is None else usable
    return bounded_units(values, usable=usable, records_per_unit=most, key=key)


@pytest.mark.slow
@given(OWNERS)
def test_each_record_belongs_to_one_unit(values):
    groups = group_by_unit(values)
    assert sorted(at for group in groups for at in group) == list(range(len(values)))
    assert [{values[at] for at in group} for group in groups] == [
        {value} for value in dict.fromkeys(values)
    ]


@pytest.mark.slow
@given(OWNERS, st.integers(1, 5))
def test_a_unit_keeps_at_most_the_bound_and_all_its_records_below_it(values, most):
    for kept, all_of_them in zip(bounded(values, most=most), group_by_unit(values), strict=True):
        assert len(kept) == min(most, len(all_of_them))
        assert set(kept) <= set(all_of_them)


@pytest.mark.slow
@given(OWNERS, st.sampled_from("abcde"))
def test_trust_rule_2_removing_a_unit_changes_nothing_for_the_others(values, gone):
    """Positions shift, so what is compared is the record's number within its unit."""
    rest = [value for value in values if value != gone]
    assert numbers_kept(rest) == {
        unit: kept for unit, kept in numbers_kept(values).items() if unit != gone
    }


def numbers_kept(values):
    """Which of its own records, by number, each unit keeps."""
    return {
        values[group[0]]: [group.index(at) for at in kept]
        for group, kept in zip(group_by_unit(values), bounded(values, most=2), strict=True)
    }


def test_what_is_kept_follows_the_key_and_not_the_order():
    values = ["a"] * 20
    choices = {tuple(bounded(values, key=bytes([n]) * 32)[0]) for n in range(20)}
    assert len(choices) > 10
    assert bounded(values) == bounded(values)


def test_a_unit_without_a_usable_record_is_still_a_unit():
    assert bounded(["a", "b", "a"], usable=[True, False, True]) == [[0, 2], []]
    assert bounded(["a", "a", "a"], most=1, usable=[False, False, True]) == [[2]]
