"""Comparisons of the losses of one watched layer, without an engine around it."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.separation.cross_example import CrossExampleCheck, SubsetLosses
from dpft.privacy.clipping.separation.reexecution import RandomState
from dpft.privacy.clipping.separation.row_subset import ModelCalls


def compare_losses(
    model: nn.Module, losses_of: Callable[[nn.Module], Tensor]
) -> tuple[CrossExampleCheck, SubsetLosses | None]:
    """Returns the check, and the losses of few rows that are those among all.

    Raises:
        RunError: They are others, or that cannot be seen.
    """
    calls, own = ModelCalls(model), model.forward
    model.forward = calls.watched(lambda x: own(x))
    state = RandomState.now(torch.device("cpu"))
    compute = lambda: losses_of(model)  # noqa: E731
    with calls.training(lambda _: True, None):
        expected = compute().detach()
    calls.survey.choose(expected)
    check = CrossExampleCheck(
        model_calls=calls,
        compute_losses=compute,
        expected=expected,
        state=state,
        deterministic=nullcontext,
        precision=torch.float32,
        check_repeatable=lambda: None,
    )
    return check, check.compare(calls.survey)
