"""A clipper for each phase of a plan: in every step, what trains is clipped at its phase's norm.

Apart from the engine, which reads like the algorithm; what a phase's clipper may do to the model
is checked here against the plan that was accounted for.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from torch import Tensor, nn

from dpft.errors import RunError
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.clipper import ClippingOptions
from dpft.privacy.clipping.engine import LossFunction, clipping_style, rounding_headroom
from dpft.privacy.frozen_state import Fingerprints, HeldParameters
from dpft.privacy.plan import ClippingPlan, Phase


class PhasedClipper:
    """The clipper of the phase that a run is in, on the model inside its ``with`` block.

    Guarantees:
        In a step of ``phase`` a unit's presence moves the sum that ``accumulate`` adds up by at
        most ``phase.sensitivity``, the rounding of a step's sum included, and what trains is what
        trained when the phase began. Between ``begin_step`` and ``end_step`` nothing moves it.
    """

    def __init__(
        self, model: nn.Module, plan: ClippingPlan, *, step: int, options: ClippingOptions
    ) -> None:
        """Prepares to clip from step ``step`` on.

        Args:
            model: What requires grad now trains in the phase of the next step; what does at the
                first ``begin_step`` of each later one trains in that.
            plan: Of the run; a private one's is the mechanism that was accounted for.
            step: The next one, counted from 0.
            options: How to clip; the norm is each phase's own.

        Raises:
            ValueError: A phase's sensitivity is not the clipper's.
            InputError: As ``PerExampleClipper``.
        """
        for phase in plan.phases:
            style = clipping_style(plan.clipping, max_grad_norm=phase.max_grad_norm)
            _check_sensitivity(phase, style.sensitivity)
        headroom = rounding_headroom(plan.expected_batch_size)
        self._options = replace(options, clipping=plan.clipping, headroom=headroom)
        self._model, self._plan = model, plan
        self._number = plan.phase_number_at(min(step, plan.steps - 1))
        self._clipper = self._make(plan.phases[self._number])
        self.parameters: Sequence[nn.Parameter] = self._trainable()
        """What trains in the phase."""
        self._fingerprints = Fingerprints()
        self._held: HeldParameters | None = None
        self._non_finite_before = 0
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        self._resources.enter_context(self._clipper)
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    @property
    def non_finite(self) -> int:
        """Examples left out so far because their loss or gradient was not finite; private."""
        return self._non_finite_before + self._clipper.non_finite

    def begin_step(self, step: int) -> None:
        """Clips what trains now at its phase's norm, where step ``step`` is of another phase.

        Raises:
            RunError: What trains is no longer what the phase's clipper was made for.
        """
        number = self._plan.phase_number_at(step)
        if number != self._number:
            self._resources.close()
            self._non_finite_before = self.non_finite
            self._clipper = self._make(self._plan.phases[number])
            self.parameters, self._number = self._trainable(), number
            self._resources.enter_context(self._clipper)
        self.check_parameters()
        own = {
            name: parameter
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad or name in self._options.moved
        }
        self._held = HeldParameters(self._fingerprints, own)

    def accumulate(self, compute_losses: LossFunction, units: Tensor | None = None) -> Tensor:
        """Adds a micro-batch's clipped sum to ``grad``; as ``PerExampleClipper.accumulate``."""
        return self._clipper.accumulate(compute_losses, units)

    def end_step(self) -> None:
        """Refuses a step in which something else than noisy sums moves what trains.

        Raises:
            RunError: What trains is no longer what the phase's clipper was made for, or a forward
                wrote to it.
        """
        self.check_parameters()
        held, self._held = self._held, None
        if held is None:
            raise RuntimeError("end_step must follow begin_step.")
        held.check()

    def check_parameters(self) -> None:
        """Refuses a parameter that would move without noise, or get noise and never move."""
        if [id(p) for p in self._trainable()] != [id(p) for p in self.parameters]:
            raise RunError(
                "the trainable parameters must stay those the phase began with, got others."
            )

    def _make(self, phase: Phase) -> PerExampleClipper:
        clipper = replace(self._options, max_grad_norm=phase.max_grad_norm).make(self._model)
        _check_sensitivity(phase, clipper.sensitivity)
        return clipper

    def _trainable(self) -> list[nn.Parameter]:
        return [p for p in self._model.parameters() if p.requires_grad]


def _check_sensitivity(phase: Phase, sensitivity: float) -> None:
    if phase.sensitivity != sensitivity:
        raise ValueError(
            f"every phase's sensitivity must be its clipper's, {sensitivity}, got {phase}."
        )
