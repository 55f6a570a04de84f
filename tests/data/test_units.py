from hypothesis import given
from hypothesis import strategies as st

from dpft.data.units import bounded_units, group_by_unit

KEY = bytes(32)
UNITS = st.lists(st.sampled_from("abcde"), max_size=30)


def bounded(values, *, most=3, key=KEY, usable=None):
    usable = [True] * len(values) if usable is None else usable
    return bounded_units(values, usable=usable, records_per_unit=most, key=key)


@given(UNITS)
def test_each_record_belongs_to_one_unit(values):
    groups = group_by_unit(values)
    assert sorted(at for group in groups for at in group) == list(range(len(values)))
    assert [{values[at] for at in group} for group in groups] == [
        {value} for value in dict.fromkeys(values)
    ]


@given(UNITS, st.integers(1, 5))
def test_a_unit_keeps_at_most_the_bound_and_all_its_records_below_it(values, most):
    for kept, all_of_them in zip(bounded(values, most=most), group_by_unit(values), strict=True):
        assert len(kept) == min(most, len(all_of_them))
        assert set(kept) <= set(all_of_them)


@given(UNITS, st.sampled_from("abcde"))
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
