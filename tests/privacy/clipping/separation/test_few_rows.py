"""Which rows of a batch a proof runs on."""

import pytest
import torch

from dpft.privacy.clipping.separation.few_rows import MOST_ROWS, few_rows, other_rows


def rows_of(count, units=None, losses=None, masks=None):
    arguments = ((torch.ones(count, 3),), {} if masks is None else {"mask": masks})
    return few_rows(arguments, count, units, losses).tolist()


@pytest.mark.parametrize("count", [4, 5, 8, 9, 40])
def test_few_rows_are_others_than_all_and_in_another_order(count):
    rows = rows_of(count)
    assert 3 <= len(rows) <= min(count - 1, MOST_ROWS) and len(set(rows)) == len(rows)
    assert rows != sorted(rows)


def test_of_two_or_three_rows_one_comes_twice_and_one_row_is_itself():
    assert sorted(rows_of(3)) == [0, 1, 2, 2]
    assert sorted(rows_of(2)) == [0, 1, 1] and rows_of(1) == [0] and rows_of(0) == []


def test_the_rows_of_extreme_losses_and_the_fullest_are_left_out():
    masks = torch.ones(6, 4, dtype=torch.long)
    masks[[0, 1, 2, 3, 5], 3] = 0
    losses = torch.tensor([1.0, 9.0, 2.0, 3.0, 4.0, 5.0])
    assert sorted(rows_of(6, losses=losses, masks=masks)) == [2, 3, 5]


def test_rows_of_a_long_batch_are_of_every_length():
    masks = (torch.arange(64) < torch.arange(64)[:, None] + 1).long()
    lengths = [row + 1 for row in rows_of(64, masks=masks)]
    assert min(lengths) == 1 and 40 < max(lengths) < 64 and len(lengths) == MOST_ROWS


def test_the_number_of_rows_is_no_other_size():
    assert len(few_rows(((torch.ones(20, 8, 7),), {}), 20, None)) == 6


def test_rows_of_a_unit_stay_together_and_in_their_order():
    units = torch.arange(6).repeat(2)
    rows = rows_of(12, units=units)
    assert rows == sorted(rows) and len(rows) <= MOST_ROWS
    assert all(units[rows].tolist().count(unit) == 2 for unit in units[rows].tolist())


@pytest.mark.parametrize("count", [2, 3, 4, 5, 9, 40])
def test_no_row_is_in_all_three_choices_and_the_second_largest_is_beside_no_larger_one(count):
    losses = torch.randn(count, generator=torch.Generator().manual_seed(count))
    *_, second, largest = losses.argsort().tolist()
    choices = [set(rows.tolist()) for rows in other_rows(count, None, losses)]
    choices.append(set(rows_of(count, losses=losses)))
    assert len(choices) == 3 and not set.intersection(*choices)
    assert all(len(rows) <= MOST_ROWS for rows in choices)
    assert any(largest in rows and second not in rows for rows in choices)
    assert any(largest not in rows for rows in choices)
    assert any(second not in rows for rows in choices)


@pytest.mark.parametrize("number", [2, 3, 4, 6])
def test_no_unit_is_in_all_three_choices(number):
    units = torch.arange(number).repeat(2)
    losses = torch.randn(2 * number, generator=torch.Generator().manual_seed(number))
    chosen = [few_rows(((losses,), {}), len(units), units, losses)]
    chosen += other_rows(len(units), units, losses)
    assert not set.intersection(*(set(units[rows].tolist()) for rows in chosen))
    assert all(len(rows) == 2 * len(units[rows].unique()) for rows in chosen)


def test_one_row_or_unit_has_no_other_choice():
    assert other_rows(1, None, torch.ones(1)) == []
    assert other_rows(3, torch.zeros(3, dtype=torch.long), torch.ones(3)) == []
