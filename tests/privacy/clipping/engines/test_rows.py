"""Rows of a batch by unit: norms, and weighted sums."""

import torch

from dpft.privacy.clipping.engines.base import ClipDecision
from dpft.privacy.clipping.engines.rows import Rows
from dpft.privacy.clipping.uses import GradientUse, OuterUse


def test_rows_of_a_unit_add_up_before_the_norm_and_take_its_factor():
    units = torch.tensor([7, 5, 7])
    rows = Rows(torch.tensor([1.0, 1.0, float("nan")]), units)
    assert rows.finite.tolist() == [True, False]
    formed = rows.fold(GradientUse(torch.tensor([[3.0], [1.0], [4.0]])))
    # Units in ascending order: 5 has row 1, and 7 rows 0 and 2.
    assert formed.values.tolist() == [[1.0], [7.0]]
    factored = OuterUse(torch.tensor([[[3.0]], [[1.0]], [[4.0]]]), torch.ones(3, 1, 1))
    assert rows.fold(factored) is factored
    for use in (formed, factored):
        assert rows.squared_norms([use], 0.0).values.tolist() == [1.0, 49.0]
    decision = ClipDecision(
        norms=torch.tensor([1.0, 7.0]),
        factors=torch.tensor([[10.0, 100.0]]),
        finite=torch.tensor([True, True]),
        non_finite=0,
    )
    for use, shape in ((formed, (1,)), (factored, (1, 1))):
        total = torch.zeros(shape)
        rows.add_weighted_sum(use, decision, 0, total)
        assert total.item() == 10 * 1 + 100 * 7


def test_what_is_not_finite_adds_zero_and_is_counted():
    rows = Rows(torch.ones(2), None)
    decision = ClipDecision(
        norms=torch.tensor([2.0, 0.0]),
        factors=torch.tensor([[0.5, 1.0]]),
        finite=torch.tensor([True, False]),
        non_finite=1,
    )
    total = torch.zeros(1)
    rows.add_weighted_sum(GradientUse(torch.tensor([[2.0], [float("nan")]])), decision, 0, total)
    assert total.tolist() == [1.0]
    batch = decision.clipped_batch()
    assert batch.norms.tolist() == [2.0, 0.0] and batch.non_finite == 1
