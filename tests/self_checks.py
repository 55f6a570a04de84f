"""Self-checks of a clipper, for engines that tests make without a run's preparation."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dpft.data.batches import Layout
from dpft.methods.base import Method
from dpft.models.losses import per_example_losses
from dpft.privacy.clipping.clipper import ClippingChoice, ClippingOptions, PerExampleClipper
from dpft.privacy.clipping.options import LossFunction
from dpft.privacy.plan import ClippingPlan
from dpft.training.synthetic_batches import CAUSAL_TEXT, self_check_batches

OPTIONS = ClippingOptions(max_grad_norm=1.0)


def checked(
    model: nn.Module, losses_of: LossFunction, *batches: Any, options: ClippingOptions = OPTIONS
) -> ClippingChoice:
    """Return the choice of a self-check on some batches."""
    with options.make(model, losses_of) as clipper:
        return clipper.self_check(*batches)


def checked_rows(model: nn.Module, losses_of: LossFunction, width: int = 4) -> ClippingChoice:
    """Return the choice for a model that takes rows of numbers."""
    rows = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    return checked(model, losses_of, rows)


def check_text(
    clipper: PerExampleClipper, model: nn.Module, layout: Layout = CAUSAL_TEXT, *,
    max_length: int = 12, has_units: bool = False,
) -> ClippingChoice:  # fmt: skip
    """Run the self-check of a clipper that is entered, as a run does."""
    check = self_check_batches(model, max_length=max_length, layout=layout, has_units=has_units)
    return clipper.self_check(*check.batches, alone=check.alone, rows_per_unit=check.rows_per_unit)


def checked_phases(
    model: nn.Module, method: Method, plan: ClippingPlan, layout: Layout = CAUSAL_TEXT, *,
    options: ClippingOptions = OPTIONS, max_length: int = 12, has_units: bool = False,
) -> Sequence[ClippingChoice]:  # fmt: skip
    """Return the choice for each phase of a plan, as a run does; ends in the first phase."""
    choices, options = [], replace(options, clipping=plan.clipping)
    was_training = model.training
    model.train()
    for phase, start in zip(plan.phases, plan.phase_starts(), strict=True):
        method.begin_step(model, start)
        own = replace(options, max_grad_norm=phase.max_grad_norm)
        with own.make(model, per_example_losses) as clipper:
            choices.append(
                check_text(clipper, model, layout, max_length=max_length, has_units=has_units)
            )
    method.begin_step(model, 0)
    model.train(was_training)
    return choices
