"""Rows of one privacy unit, put together."""

import torch

from dpft.privacy.clipping.units import Units

# Units in ascending order: 3 has row 1 alone; 7 has rows 0 and 2.
UNITS = Units.of(torch.tensor([7, 3, 7]))
ROWS = torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]], [[5.0], [6.0]]])


def test_rows_are_numbered_by_unit_and_within_it():
    assert UNITS.index.tolist() == [1, 0, 1] and UNITS.position.tolist() == [0, 0, 1]
    assert (UNITS.count, UNITS.longest) == (2, 2)


def test_a_units_rows_stand_end_to_end_and_zeros_fill_up():
    assert UNITS.concatenate(ROWS)[..., 0].tolist() == [[3, 4, 0, 0], [1, 2, 5, 6]]


def test_a_units_rows_add_up():
    assert UNITS.sum(ROWS)[..., 0].tolist() == [[3, 4], [6, 8]]
