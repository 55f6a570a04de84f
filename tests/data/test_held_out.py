import hashlib
import hmac

from dpft.data.held_out import KEY_BYTES, fingerprint, new_key, split_held_out
from dpft.tasks.records import Example, LabeledExample

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
    known = fingerprint(records, units, KEY)
    assert fingerprint(list(records), list(units), KEY) == known
    others = [
        (records[::-1], units, KEY),
        (records[:2], units[:2], KEY),
        ([*records[:2], LabeledExample(texts=("a", "b"), label=0.0)], units, KEY),
        (records, ["0", "1", "1"], KEY),
        (records, units, b"j" * KEY_BYTES),
    ]
    assert known not in {fingerprint(*other) for other in others}
