"""The private engine: sampling, clipping, noise and ledger of each DP-SGD step.

Read this file to audit a run. In each step, a batch is drawn by Poisson sampling at the plan's
sample rate. The per-example gradients are clipped to the sensitivity of the phase and added up.
Gaussian noise with a standard deviation of noise_multiplier times this sensitivity is added once. A
ledger line is written to disk, and the noisy sum is divided by the public expected batch size. Only
then may the caller change a weight. Everything after this is post-processing (Abadi et al. 2016,
Algorithm 1). The mechanism (``mechanisms``) decides how the draws and the noise of different steps
depend on each other. ``phased_clipper`` provides one clipper per phase of the plan.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from dpft.parallel.ranks import ALONE, Ranks, broadcast_numbers
from dpft.parallel.sharding import local
from dpft.parallel.shards import ShardedModel
from dpft.privacy.clipping.clipper import ClippingChoice, ClippingOptions
from dpft.privacy.clipping.options import LossFunction
from dpft.privacy.engine_results import EngineState, MicroBatchResult
from dpft.privacy.ledger import StepLog
from dpft.privacy.noise import SIGNAL_STEPS, SignalAndNoise, SignalMeter
from dpft.privacy.phased_clipper import PhasedClipper
from dpft.privacy.plan import PrivacyPlan
from dpft.privacy.randomness import Randomness, private_dropout
from dpft.privacy.release_guard import FrozenState


class PrivacyEngine:
    """Engine that draws logical batches and computes one private gradient per step.

    Use the engine inside ``with engine:``. In each step, call ``draw``, then ``accumulate`` for
    every micro-batch of the draw, with each unit in exactly one micro-batch. Then call
    ``finish_step`` and the optimizer. The engine counts the steps and allows no more than the plan.

    Guarantees:
        The sequence of gradients that ``finish_step`` leaves is an output of ``plan.event()`` over
        the records. The sampler, the clipping norm and the noise come from the same plan that the
        accountant reads. An empty draw takes a noisy step like any other draw. The step is in the
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
        frozen: FrozenState | None = None,
        ranks: Ranks = ALONE,
        shards: ShardedModel | None = None,
    ) -> None:
        """Bind a model to a plan.

        Args:
            model: The model. In the phase of the next step, the parameters that require grad now
                are trained. In a later phase, those that require grad at its first ``draw``.
            losses_of: Computes the losses of each micro-batch.
            plan: Plan with the mechanism that was accounted for.
            ledger: Log in which steps are recorded.
            randomness: Secret sources of sampling, noise and dropout.
            steps_taken: Number of steps of the plan that the weights have already taken.
            last_step: Step of the plan at which to end; None: the last step of the plan.
            stream: Number of steps in the ledger when this stream of noise began.
            history: ``noise_history`` of ``state`` after ``steps_taken`` steps; None: a new stream.
            options: Options of the clipper, except norm and style, which come from the plan.
                None: the defaults.
            choices: Results of the self-check of each phase.
            moved: Names of parameters that are frozen but still updated, as a function of noisy
                sums only.
            frozen: Released state that no step changes; None on all ranks except the first.
            ranks: Processes of the run; each adds up its share of the first rank's draw.
            shards: ``model`` with its shards, if each rank has only one shard of it.
        """
        self.plan = plan
        self.steps_taken = steps_taken
        self._last_step = plan.steps if last_step is None else last_step
        self._model, self._ledger, self._randomness = model, ledger, randomness
        self._ranks, self._shards, self.views = ranks, shards, randomness.views
        self._frozen = frozen
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
        """The step at which to end."""
        return self._last_step

    def draw(self, num_units: int) -> list[int]:
        """Start a step and return its logical batch as indices of units; private, possibly empty.

        Every rank gets the draw of the first rank. All earlier gradients are removed, so that no
        optimizer changes a parameter that is no longer trained.

        Raises:
            RuntimeError: The engine is not entered, the previous step is unfinished, or all steps
                of the plan were taken.
            RunError: The trainable parameters are no longer those with which the phase began.
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
        return broadcast_numbers(drawn, self._ranks)

    def accumulate(self, batch: Any, rows_per_unit: int = 1) -> MicroBatchResult:
        """Add the clipped sum of a micro-batch; see ``PhasedClipper.accumulate``."""
        if not self._open_step:
            raise RuntimeError("accumulate must come between draw and finish_step.")
        self._open_step = False  # A step with a failed micro-batch cannot be finished.
        result = self._clipper.accumulate(batch, rows_per_unit)
        self._open_step = True
        return result

    def finish_step(self) -> SignalAndNoise | None:
        """End a step by turning every trainable ``grad`` into the private gradient.

        The private gradient is
        ``(clipped sum + N(0, (noise_multiplier * sensitivity)^2)) / expected_batch_size``. The
        divisor is public configuration, never the size of the draw.

        Returns:
            Norms of signal and noise in the first ``SIGNAL_STEPS`` steps of the plan, which epsilon
            does not cover; None in later steps.

        Raises:
            RunError: The trainable parameters changed since ``draw`` other than by private
                gradients.
        """
        if not self._open_step:
            raise RuntimeError("finish_step must follow draw.")
        with self._ranks.failing_together():
            self._clipper.end_step()
        sensitivity = self.plan.phase_at(self.steps_taken).sensitivity
        noise_std = self.plan.event().noise_multiplier * sensitivity
        step, ranks = self.steps_taken, self._ranks
        sums = self._shards or dict(self._model.named_parameters())
        meter = SignalMeter(self._randomness.noise.device) if step < SIGNAL_STEPS else None
        self._noise.add(sums, noise_std, step=step, meter=meter, ranks=ranks)
        gradients = [local(p.grad) for p in self._clipper.parameters if p.grad is not None]
        released = gradients if self._shards is None else self._shards.fingerprint(gradients)
        with ranks.failing_together():
            self._ledger.record_step(self.plan.entry_at(step, stream=self._stream), released)
        divisor = self.plan.expected_batch_size
        torch._foreach_div_(gradients, divisor)
        self.steps_taken += 1
        self._randomness.forget(self.steps_taken)
        self._open_step = False
        return None if meter is None else meter.mean(noise_std, divisor)

    def begin(self) -> None:
        """Write the plan into the ledger if it is missing; call this after the first checkpoint."""
        self._ledger.begin()

    def check(self) -> None:
        """Raise a RunError if a released value has changed that no step may change."""
        if self._frozen is not None:
            self._frozen.check()

    def state(self) -> EngineState:
        """Return the secret state of the next step's draws, for a checkpoint in ``private/``."""
        return EngineState(
            generators=self._randomness.state(self.steps_taken),
            noise_history=self._noise.history() if self.plan.mechanism.has_streams else None,
        )

    @property
    def non_finite(self) -> int:
        """Number of examples skipped so far because of a non-finite loss or gradient; private."""
        return self._clipper.non_finite
