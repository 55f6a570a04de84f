"""A weight as if each example had its own: the way to exact gradients where there is no rule."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dpft.privacy.clipping.uses import GradientUse


def expanded(weight: Tensor, count: int, report: Callable[[GradientUse], None]) -> Tensor:
    """Returns a weight as (count, *shape), without a copy; its gradients go to ``report``.

    Ordinary autograd then gives each example's gradient, whatever is computed with the weight,
    as long as example i meets row i alone.
    """
    if not weight.requires_grad:
        return weight.expand(count, *weight.shape)
    rows: Tensor = _Expand.apply(weight, count, report)
    return rows


class _Expand(torch.autograd.Function):
    """A weight as (count, …), whose backward hands out the (count, …) gradient."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, count: int, report: Callable[[GradientUse], None]
    ) -> Tensor:
        ctx.report = report
        return weight.expand(count, *weight.shape)

    @staticmethod
    def backward(ctx: Any, backprops: Tensor) -> tuple[None, None, None]:
        ctx.report(GradientUse(backprops))
        return None, None, None
