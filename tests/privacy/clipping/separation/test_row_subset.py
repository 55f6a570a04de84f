"""A function that holds its batch runs on some of its rows."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpft.privacy.clipping.separation.row_subset import RowSubset

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(5)
ROWS = torch.tensor([4, 0, 2])


def on_rows(function, *, whole=(), protected=(), units=None):
    subset = RowSubset(protected, whole)
    subset.choose(ROWS, count=5, units=units)
    with subset:
        return function(), subset


def test_values_shapes_lengths_and_lists_are_those_of_the_rows():
    (values, sizes, listed), _ = on_rows(
        lambda: (X * 2, (len(X), X.shape[0], X.size(0)), [int(label) for label in LABELS])
    )
    assert torch.equal(values, X[ROWS] * 2) and sizes == (3, 3, 3) and listed == [4, 0, 2]


def test_what_was_computed_from_rows_is_not_cut_again():
    losses, _ = on_rows(lambda: (X.repeat(2, 1)[:5] + 1).sum(1))
    assert torch.allclose(losses, (X[ROWS].repeat(2, 1)[:5] + 1).sum(1))


def test_weights_are_no_rows_though_they_have_as_many():
    layer, buffer = nn.Linear(3, 5), torch.arange(5.0)
    out, _ = on_rows(lambda: (layer(X), buffer + 0), protected=[buffer])
    assert torch.allclose(out[0], layer(X)[ROWS]) and torch.equal(out[1], buffer)


def test_class_weights_can_be_left_whole():
    weights = torch.linspace(1, 2, 5)
    compute = lambda: F.cross_entropy(X @ torch.ones(3, 5), LABELS, weights, reduction="none")  # noqa: E731
    with pytest.raises(RuntimeError):
        on_rows(compute)
    losses, subset = on_rows(compute, whole=(2,))
    assert torch.allclose(losses, compute()[ROWS]) and subset.met == 3


def test_what_has_an_entry_for_each_unit_is_cut_too():
    per_unit = torch.tensor([10.0, 20.0])
    cut, _ = on_rows(lambda: per_unit + 0, units=(torch.tensor([1]), 2))
    assert cut.tolist() == [20.0]


def test_the_first_argument_of_a_model_is_its_rows():
    subset = RowSubset((), whole=(0,))
    subset.choose(ROWS, count=5)
    with pytest.raises(ValueError, match="carries the batch"):
        subset.rows_of(((X,), {"mask": LABELS}))
    subset = RowSubset((), whole=(1,))
    subset.choose(ROWS, count=5)
    (x,), options = subset.rows_of(((X,), {"mask": LABELS}))
    assert torch.equal(x, X[ROWS]) and options["mask"] is LABELS


def test_asleep_it_takes_nothing():
    subset = RowSubset(())
    subset.choose(ROWS, count=5)
    with subset, subset.asleep():
        assert len(X + 1) == 5
