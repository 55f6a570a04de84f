import gc
from collections.abc import Sequence

import pytest

from dpft.data import packed_records
from dpft.data.packed_records import PackedRecords, drained, pieces
from dpft.tasks.custom_chats import ChatExample, Message
from dpft.tasks.records import Example, LabeledExample, Record

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
    monkeypatch.setattr(packed_records, "TOGETHER", 3)


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


def test_drained_records_are_forgotten_a_block_at_a_time_and_still_counted() -> None:
    packed = PackedRecords(Example(prompt=f"{n:0100}", target="", group="") for n in range(9))
    drain = packed.drain()
    for _ in range(4):
        next(drain)
    assert [len(block) > 0 for block in packed._blocks] == [False, True, True]
    assert [record.prompt[-1] for record in drain] == list("45678")
    assert (len(packed), packed._blocks) == (9, [])


def test_no_record_is_kept_as_an_object() -> None:
    packed = PackedRecords(Example(prompt=f"kept {n}", target="", group="") for n in range(30))
    # asked for its type: what is weakly referenced elsewhere may be gone when asked for more
    kept = [each for each in gc.get_objects() if type(each) is Example]
    assert len(packed) == 30
    assert not [each for each in kept if each.prompt.startswith("kept ")]


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
    assert list(pieces(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(pieces([], 3)) == []
