"""Whether a row of a model's output changes with the rows beside it, seen in two runs.

A gradient cannot show this where the influence is detached, as that of batch statistics may be.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.separation.arguments import named_tensors, take_rows
from dpft.privacy.clipping.separation.flow import ROWS
from dpft.privacy.clipping.separation.kept_state import evaluating, state_kept

MIXED = 1e-2
"""Share of an output's size by which it may change with its neighbors: rounding is far below."""


def mixed_output(
    root: nn.Module, forward: Callable[..., Any], arguments: tuple[Sequence[Any], Mapping[str, Any]]
) -> str | None:
    """Returns the place of an output whose rows change with the rows beside them, or None.

    A gradient cannot show this where the influence is detached (batch statistics). In training
    mode where the model is not random there, else in evaluation mode.
    """

    def run(rows: int) -> dict[str, Tensor]:
        args, kwargs = take_rows(arguments, rows)
        return named_tensors(forward(*args, **kwargs))

    with state_kept(root), torch.no_grad():
        if _first_difference(run(ROWS[0]), run(ROWS[0]), ROWS[0]) is not None:
            with evaluating(root):
                return _first_difference(run(ROWS[0]), run(ROWS[1]), ROWS[0])
        return _first_difference(run(ROWS[0]), run(ROWS[1]), ROWS[0])


def _first_difference(
    few: Mapping[str, Tensor], more: Mapping[str, Tensor], rows: int
) -> str | None:
    """Returns the first place where the leading rows of two outputs differ, or None."""
    for place, expected in few.items():
        got = more.get(place)
        if got is None or not expected.is_floating_point() or expected.dim() == 0:
            continue
        if len(expected) != rows or got.shape[1:] != expected.shape[1:] or len(got) < rows:
            continue
        size = float(expected.abs().nan_to_num(0.0, 0.0, 0.0).max())
        if not torch.allclose(got[:rows], expected, rtol=0, atol=MIXED * size, equal_nan=True):
            return place
    return None
