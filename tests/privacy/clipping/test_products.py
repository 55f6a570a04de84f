"""Products of half precision: in float32 on a processor, on the matrix units of an accelerator."""

import pytest
import torch
from torch import Tensor

from dpft.devices import multiplies_halves
from dpft.privacy.clipping import products
from dpft.privacy.clipping.norms import squared_norms
from dpft.privacy.clipping.products import bfloat16_parts, product, weighted_product
from dpft.privacy.clipping.uses import GradientUse, OuterProduct, Use
from tests import pretended
from tests.pretended import on_pretended

THERE = f"{pretended.NAME}:0"
Found = tuple[Tensor, Tensor, Tensor, Tensor]


def recorded(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output gradients, inputs, factors, and what is added to."""
    torch.manual_seed(0)
    left, right = (torch.randn(3, 40, size).to(dtype) for size in (70, 90))
    return left, right, torch.rand(3), torch.randn(70, 90)


def computed(dtype: torch.dtype, where: str) -> Found:
    """A product, a weighted sum, the same added to something, and squares of norms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "CHAIN", 16)  # 40 positions are three chains
        device = torch.device(where)
        assert multiplies_halves(device) == (device.type != "cpu")
        left, right, factors, total = (each.to(device) for each in recorded(dtype))
        found = (
            product(left.transpose(1, 2), right),
            weighted_product(left, right, factors),
            weighted_product(left, right, factors, total),
            OuterProduct(left, right).squares().values,
        )
        return tuple(each.cpu() for each in found)  # type: ignore[return-value]


@pytest.mark.parametrize("where", ["cpu", pretended.NAME])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_are_float32s_of_what_was_recorded(dtype: torch.dtype, where: str) -> None:
    if where == "cpu":
        formed, added, onto, squares = computed(dtype, "cpu")
    else:
        formed, added, onto, squares = on_pretended(computed, dtype, THERE)
    left, right, factors, total = (each.double() for each in recorded(dtype))
    each = left.transpose(1, 2) @ right
    expected = (each * factors.view(-1, 1, 1)).sum(0)
    for found, exact in ((formed, each), (added, expected), (onto, expected + total)):
        assert found.dtype == torch.float32
        assert (found - exact).abs().max() <= 1e-6 * exact.abs().max()
    exact = each.square().sum((1, 2))
    assert ((squares - exact) / exact).abs().max() <= 1e-3


def test_squares_of_halves_are_raised_by_what_matrix_units_may_cut_off() -> None:
    """So a chain of additions that loses a unit in the last place each time is no norm too low."""
    _, _, _, squares = on_pretended(computed, torch.bfloat16, THERE)
    left, right, _, _ = (each.double() for each in recorded(torch.bfloat16))
    exact = (left.transpose(1, 2) @ right).square().sum((1, 2))
    assert (squares > exact * (1 + products.CUT_OFF / 2)).all()
    assert (computed(torch.bfloat16, "cpu")[3] < exact * (1 + 1e-6)).all()


def test_three_numbers_of_bfloat16_hold_one_of_float32() -> None:
    values = torch.randn(1000) * 10.0 ** torch.arange(-20, 20).repeat(25)
    parts = bfloat16_parts(values.clone())
    assert torch.equal(sum(part.double() for part in parts), values.double())


def cut_off(left: Tensor, right: Tensor, total: Tensor | None) -> Tensor:
    """Adds products of half precision eight at a time, and cuts off what float32 would round."""
    added = torch.zeros(*left.shape[:-1], right.shape[-1], dtype=torch.float64)
    for factors in zip(left.double().split(8, -1), right.double().split(8, -2), strict=True):
        exact = added + torch.matmul(*factors)
        short = exact.float()
        beyond = short.double().abs() > exact.abs()
        added = torch.where(beyond, short.nextafter(torch.zeros_like(short)), short).double()
    return added.float() if total is None else total.add_(added)


@pytest.mark.parametrize("others", ["none", "a formed gradient"])
@pytest.mark.parametrize("steps", [40, 4000])
def test_no_norm_is_too_low_where_a_device_cuts_off(
    monkeypatch: pytest.MonkeyPatch, steps: int, others: str
) -> None:
    torch.manual_seed(0)
    left, right = (torch.rand(2, steps, size).bfloat16() for size in (12, 9))
    uses: list[Use] = [OuterProduct(left, right)]
    if others == "a formed gradient":
        uses.append(GradientUse(torch.rand(2, 12, 9)))
    exact = torch.stack([use.double(torch.arange(2)).instantiate() for use in uses]).sum(0)
    monkeypatch.setattr(products, "multiplies_halves", lambda device: True)
    monkeypatch.setattr(products, "_added_halves", cut_off)
    found = squared_norms(uses).values.double().sqrt()
    assert (found >= torch.linalg.vector_norm(exact, dim=(1, 2)) * (1 - 1e-6)).all()
