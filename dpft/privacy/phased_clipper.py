"""Clipper for plans with phases, between which trainable parameters and clipping norm change.

The second phase of a two-phase method (LP-FT, two-phase training) trains other parameters, with its
own clipping norm. ``PrivacyEngine`` and ``ClippedEngine`` use this clipper.
"""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

from torch import nn

from dpft.errors import RunError
from dpft.privacy.clipping.clipper import ClippingChoice, ClippingOptions, PerExampleClipper
from dpft.privacy.clipping.options import LossFunction
from dpft.privacy.clipping.styles import clipping_style
from dpft.privacy.clipping.sums import rounding_headroom
from dpft.privacy.engine_results import MicroBatchResult
from dpft.privacy.plan import ClippingPlan, Phase
from dpft.privacy.release_guard import HeldState


class PhasedClipper:
    """Clipper of the current phase of a run, attached to the model inside its ``with`` block.

    Guarantees:
        In a step of ``phase``, one unit changes the sum that ``accumulate`` adds up by at most
        ``phase.sensitivity``, including the rounding of the sum. The trainable parameters are those
        with which the phase began. Nothing changes their values between ``begin_step`` and
        ``end_step``.
    """

    def __init__(
        self, model: nn.Module, losses_of: LossFunction, plan: ClippingPlan, *,
        step: int, options: ClippingOptions, choices: Sequence[ClippingChoice] = (),
        moved: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Prepare to clip from step ``step`` on, counted from 0.

        ``options`` define how to clip, except for the norm, which each phase sets. The other
        arguments are those of ``PrivacyEngine``.

        Raises:
            ValueError: The sensitivity of a phase differs from that of the clipper.
            InputError: See ``PerExampleClipper``.
        """
        for phase in plan.phases:
            style = clipping_style(plan.clipping, max_grad_norm=phase.max_grad_norm)
            _check_sensitivity(phase, style.sensitivity)
        headroom = rounding_headroom(plan.expected_batch_size)
        self._options = replace(options, clipping=plan.clipping, headroom=headroom)
        self._model, self._losses_of, self._plan = model, losses_of, plan
        self._choices, self._moved = choices, moved
        self._number = plan.phase_number_at(min(step, plan.steps - 1))
        self._clipper = self._make(self._number)
        self.parameters: Sequence[nn.Parameter] = self._trainable()
        """Trainable parameters of the phase."""
        self._held: HeldState | None = None
        self._non_finite_before = 0
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        self._resources.enter_context(self._clipper)
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    @property
    def non_finite(self) -> int:
        """Examples skipped so far because their loss or gradient was not finite; private."""
        return self._non_finite_before + self._clipper.non_finite

    def begin_step(self, step: int) -> None:
        """Begin a step, and switch to the next phase's clipper if step ``step`` begins that phase.

        Raises:
            RunError: The trainable parameters are no longer those of the phase's clipper.
        """
        number = self._plan.phase_number_at(step)
        if number != self._number:
            self._resources.close()
            self._non_finite_before = self.non_finite
            self._clipper = self._make(number)
            self.parameters, self._number = self._trainable(), number
            self._resources.enter_context(self._clipper)
        self.check_parameters()
        named, moved = self._model.named_parameters(), self._moved
        self._held = HeldState({n: p for n, p in named if p.requires_grad or n in moved})

    def accumulate(self, batch: Any, rows_per_unit: int = 1) -> MicroBatchResult:
        """Add the clipped sum of a micro-batch to ``grad``; see ``PerExampleClipper.accumulate``.

        ``batch`` is the argument of ``losses_of``. The rows of a privacy unit are contiguous.
        """
        norms = self._clipper.accumulate(batch, rows_per_unit)
        return MicroBatchResult(losses=self._clipper.losses, norms=norms)

    def self_check(self, *batches: Any, rows_per_unit: int = 1) -> ClippingChoice:
        """Check the clipper of this phase; see ``PerExampleClipper.self_check``."""
        return self._clipper.self_check(*batches, rows_per_unit=rows_per_unit)

    def end_step(self) -> None:
        """Reject a step in which anything but a noisy sum changes the trainable parameters.

        Raises:
            RunError: The trainable parameters are no longer those of the phase's clipper, or a
                forward pass wrote to them.
        """
        self.check_parameters()
        held, self._held = self._held, None
        if held is None:
            raise RuntimeError("end_step must follow begin_step.")
        held.check()

    def check_parameters(self) -> None:
        """Reject a parameter that would change without noise, or get noise and never change."""
        if [id(p) for p in self._trainable()] != [id(p) for p in self.parameters]:
            raise RunError(
                "the trainable parameters changed since the phase began. Do not freeze, unfreeze or"
                " replace parameters within a phase."
            )

    def _make(self, number: int) -> PerExampleClipper:
        phase = self._plan.phases[number]
        choice = self._choices[number] if self._choices else None
        options = replace(self._options, max_grad_norm=phase.max_grad_norm, choice=choice)
        clipper = options.make(self._model, self._losses_of)
        _check_sensitivity(phase, clipper.sensitivity)
        return clipper

    def _trainable(self) -> list[nn.Parameter]:
        return [p for p in self._model.parameters() if p.requires_grad]


def _check_sensitivity(phase: Phase, sensitivity: float) -> None:
    if phase.sensitivity != sensitivity:
        raise ValueError(f"every phase's sensitivity must be {sensitivity}, got {phase}.")
