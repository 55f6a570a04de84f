"""The one place where sampling, clipping, noise and ledger meet: DP-SGD's private gradient.

Read this file to audit a run. Each step: a Poisson draw of the plan's sample rate; the sum of
per-example gradients, each clipped to the phase's sensitivity; Gaussian noise of noise_multiplier
times that sensitivity, once; a ledger line, on disk; division by the public expected batch size.
Only then may the caller move a weight. Everything after is post-processing (Abadi et al. 2016,
Algorithm 1). The mechanism (``mechanisms``) decides how the draws and the noise of steps depend on
each other. ``PhasedClipper`` has one clipper per phase of the plan.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from dpft.errors import RunError
from dpft.parallel.cutting import local
from dpft.parallel.ranks import ALONE, Ranks, first_numbers
from dpft.parallel.shards import ShardedModel
from dpft.privacy.clipping.clipper import ClippingChoice, ClippingOptions, PerExampleClipper
from dpft.privacy.clipping.options import LossFunction
from dpft.privacy.clipping.styles import clipping_style
from dpft.privacy.clipping.sums import rounding_headroom
from dpft.privacy.frozen_state import HeldState
from dpft.privacy.ledger import StepLog
from dpft.privacy.losses import MicroBatchResult
from dpft.privacy.noise import SIGNAL_STEPS, SignalAndNoise, SignalMeter
from dpft.privacy.plan import ClippingPlan, Phase, PrivacyPlan
from dpft.privacy.randomness import Randomness, private_dropout


class PrivacyEngine:
    """Hands out logical batches and turns their losses into one private gradient per step.

    Use, inside ``with engine:``, once per step: ``draw``; ``accumulate`` for every micro-batch
    of the draw, each unit in exactly one; ``finish_step``; then the optimizer. The steps are
    counted and the plan's are all there are.

    Guarantees:
        The sequence of gradients that ``finish_step`` leaves is an output of ``plan.event()`` over
        the records: the sampler, the clipping norm and the noise are of the same plan that the
        accountant reads. An empty draw takes a noisy step like any other. The step is in the
        ledger before ``finish_step`` returns.
    """

    def __init__(
        self,
        model: nn.Module,
        losses_of: LossFunction,
        *,
        plan: PrivacyPlan,
        ledger: StepLog,
        randomness: Randomness,
        steps_taken: int = 0,
        last_step: int | None = None,
        stream: int = 0,
        history: Mapping[str, Tensor] | None = None,
        options: ClippingOptions | None = None,
        choices: Sequence[ClippingChoice] = (),
        moved: Collection[str] = (),
        ranks: Ranks = ALONE,
        shards: ShardedModel | None = None,
    ) -> None:
        """Binds a model to a plan.

        Args:
            model: What requires grad now trains in the phase of the next step; what does at the
                first ``draw`` of each later one trains in that.
            losses_of: Computes the losses of each micro-batch.
            plan: The mechanism that was accounted for.
            ledger: Where steps are recorded.
            randomness: Secret sources of sampling, noise and dropout.
            steps_taken: Steps of the plan that the weights have taken already.
            last_step: Step of the plan to end at; None: its last.
            stream: Steps that were in the ledger when this stream of noise began.
            history: As ``noise_history`` returned it after ``steps_taken`` steps; None: it begins.
            options: How to clip, but for norm and style, which are the plan's; None: as usual.
            choices: Results of each phase's self-check.
            moved: Frozen parameters that are changed all the same, as a function of noisy sums.
            ranks: The run's processes; each adds up its share of the first one's draw.
            shards: ``model``, where each rank has but a shard of it.

        """
        self.plan = plan
        self.steps_taken = steps_taken
        self._last_step = plan.steps if last_step is None else last_step
        self._model, self._ledger, self._randomness = model, ledger, randomness
        self._ranks, self._shards, self.views = ranks, shards, randomness.views
        self._sampler = plan.mechanism.sampler(plan.event().sample_rate, randomness)
        self._noise, self._stream = plan.mechanism.noise(randomness, history or {}), stream
        norm = plan.phases[0].max_grad_norm
        options = options or ClippingOptions(max_grad_norm=norm)
        options = replace(options, max_grad_norm=norm, clipping=plan.clipping, shards=shards)
        self._clipper = PhasedClipper(
            model, losses_of, plan, step=steps_taken, options=options, choices=choices, moved=moved
        )
        self._open_step = self._entered = False
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        self._resources.enter_context(private_dropout(self._randomness.dropout))
        self._resources.enter_context(self._clipper)
        self._entered = True
        return self

    def __exit__(self, *error: object) -> None:
        self._entered = False
        self._resources.close()

    @property
    def steps(self) -> int:
        """The step to end at."""
        return self._last_step

    def draw(self, num_units: int) -> list[int]:
        """Starts a step: returns its logical batch, indices of units; private, maybe empty.

        Every rank gets the first one's draw. No gradient of an earlier step outlives this: what
        no longer trains has none, so that no optimizer moves it.

        Raises:
            RuntimeError: The engine is not entered, the step before is unfinished, or the plan's
                steps are used up.
            RunError: What trains is no longer what the phase began with.
        """
        if not self._entered:
            raise RuntimeError("draw must be called inside `with engine:`.")
        if self._open_step or self.steps_taken >= self._last_step:
            raise RuntimeError(
                f"draw must follow a finished step and come at most {self._last_step} times, got "
                f"{'an unfinished step' if self._open_step else 'one more'}."
            )
        self._clipper.begin_step(self.steps_taken)
        for parameter in self._model.parameters():
            parameter.grad = None
        if self._shards is not None:
            self._shards.forget_sums()
        self._open_step = True
        self._randomness.dropout.begin_step(self.steps_taken)
        drawn = self._sampler.draw(num_units, step=self.steps_taken)
        return first_numbers(drawn, self._ranks)

    def accumulate(self, batch: Any, rows_per_unit: int = 1) -> MicroBatchResult:
        """Adds a micro-batch's clipped sum; see ``PhasedClipper.accumulate``."""
        if not self._open_step:
            raise RuntimeError("accumulate must come between draw and finish_step.")
        self._open_step = False  # A step with a failed micro-batch cannot be finished.
        result = self._clipper.accumulate(batch, rows_per_unit)
        self._open_step = True
        return result

    def finish_step(self) -> SignalAndNoise | None:
        """Ends a step: every trainable parameter's ``grad`` becomes the private gradient.

        ``(clipped sum + N(0, (noise_multiplier * sensitivity)^2)) / expected_batch_size``. The
        divisor is public configuration, never the size of the draw.

        Returns:
            Of the plan's first ``SIGNAL_STEPS`` steps, how long signal and noise were, which
            epsilon does not cover; None of a later one.

        Raises:
            RunError: What trains moved since ``draw``, by something else than private gradients.
        """
        if not self._open_step:
            raise RuntimeError("finish_step must follow draw.")
        with self._ranks.settled():
            self._clipper.end_step()
        sensitivity = self.plan.phase_at(self.steps_taken).sensitivity
        noise_std = self.plan.event().noise_multiplier * sensitivity
        step, ranks = self.steps_taken, self._ranks
        sums = self._shards or dict(self._model.named_parameters())
        meter = SignalMeter(self._randomness.noise.device) if step < SIGNAL_STEPS else None
        self._noise.add(sums, noise_std, step=step, meter=meter, ranks=ranks)
        gradients = [local(p.grad) for p in self._clipper.parameters if p.grad is not None]
        released = gradients if self._shards is None else self._shards.fingerprint(gradients)
        with ranks.settled():
            self._ledger.record_step(self.plan.entry_at(step, stream=self._stream), released)
        divisor = self.plan.expected_batch_size
        torch._foreach_div_(gradients, divisor)
        self.steps_taken += 1
        self._randomness.forget(self.steps_taken)
        self._open_step = False
        return None if meter is None else meter.mean(noise_std, divisor)

    def secret_keys(self) -> dict[str, Any]:
        """Returns what the next step draws from, for a private checkpoint; never to be shown."""
        return self._randomness.state(self.steps_taken)

    def noise_history(self) -> dict[str, Tensor]:
        """Returns the noise that the next step's hangs together with, this rank's share; secret."""
        return self._noise.history()

    @property
    def non_finite(self) -> int:
        """Examples left out so far because their loss or gradient was not finite; private."""
        return self._clipper.non_finite


class PhasedClipper:
    """The clipper of the phase that a run is in, on the model inside its ``with`` block.

    Guarantees:
        In a step of ``phase`` a unit's presence moves the sum that ``accumulate`` adds up by at
        most ``phase.sensitivity``, the rounding of a step's sum included, and what trains is what
        trained when the phase began. Between ``begin_step`` and ``end_step`` nothing moves it.
    """

    def __init__(
        self, model: nn.Module, losses_of: LossFunction, plan: ClippingPlan, *,
        step: int, options: ClippingOptions, choices: Sequence[ClippingChoice] = (),
        moved: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Prepares to clip from step ``step`` on, counted from 0.

        ``options`` say how to clip, except for the norm, which is each phase's own. The other
        arguments are those of ``PrivacyEngine``.

        Raises:
            ValueError: A phase's sensitivity is not the clipper's.
            InputError: As ``PerExampleClipper``.
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
        """What trains in the phase."""
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
            self._clipper = self._make(number)
            self.parameters, self._number = self._trainable(), number
            self._resources.enter_context(self._clipper)
        self.check_parameters()
        named, moved = self._model.named_parameters(), self._moved
        self._held = HeldState({n: p for n, p in named if p.requires_grad or n in moved})

    def accumulate(self, batch: Any, rows_per_unit: int = 1) -> MicroBatchResult:
        """Adds a micro-batch's clipped sum to ``grad``; as ``PerExampleClipper.accumulate``.

        ``batch`` is what ``losses_of`` takes. The rows of a privacy unit are contiguous.
        """
        norms = self._clipper.accumulate(batch, rows_per_unit)
        return MicroBatchResult(losses=self._clipper.losses, norms=norms)

    def self_check(self, *batches: Any, rows_per_unit: int = 1) -> ClippingChoice:
        """Check the clipper of this phase; as ``PerExampleClipper.self_check``."""
        return self._clipper.self_check(*batches, rows_per_unit=rows_per_unit)

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
