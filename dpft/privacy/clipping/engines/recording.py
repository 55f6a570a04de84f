"""What book-keeping, two-pass and instantiate share: a backward pass that reports uses."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping.choices import Tuning
from dpft.privacy.clipping.engines.base import Engine, LossFunction
from dpft.privacy.clipping.engines.patches import Patches, watch_for_unrecorded_gradients
from dpft.privacy.clipping.factors import ClippingStyle
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.separation.fingerprints import Disproved
from dpft.privacy.clipping.separation.graph import describe_graph
from dpft.privacy.clipping.separation.kept_state import RandomState, evaluating, state_kept
from dpft.privacy.clipping.separation.mapping import log_once
from dpft.privacy.clipping.separation.proof import Verdict, bare_run, check_against
from dpft.privacy.clipping.uses import Use

ERRORS_OF_A_PLAN = (
    InputError,
    RunError,
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
)
"""What a model may raise where it is run example by example and is not made for it."""
ROUNDS = 3
NOT_REPEATABLE = (
    "compute_losses must return the same losses when it is called again with the same random state "
    "of torch, got others: draw its batch before accumulate, not inside."
)

Receiver = Callable[[str, Use], None]
"""Takes a parameter's name and one use of it, in the middle of a backward pass."""


class RecordingEngine(Engine):
    """An engine whose layers report each use of their weights as the backward pass meets it."""

    def __init__(
        self,
        model: nn.Module,
        style: ClippingStyle,
        *,
        groups: Mapping[str, int] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Finds a rule for every layer that owns a trainable parameter.

        Raises:
            InputError: A trainable parameter belongs to a layer without a rule.
        """
        super().__init__(model, style, groups=groups, tuning=tuning)
        self.recorder = Recorder(self.trainable)
        self._patches = Patches(model, self.recorder)
        self.shared = self.trainable.shared
        """Names of the parameters of several layers, whose uses add up before the norm."""

    def install(self) -> None:
        """Gives each layer its recording forward.

        Raises:
            InputError: A layer's forward is already replaced, by a second clipper or by hand.
        """
        self._patches.install()

    def remove(self) -> None:
        """Takes the recording forwards away; the layers' own reappear."""
        self._patches.remove()

    def compute(self, compute_losses: LossFunction) -> Tensor:
        """Returns the losses, once it is proved that their gradients can be told apart.

        Raises:
            RunError: They cannot.
        """
        plans = self._patches.plans
        state = RandomState.now(self.trainable.device)
        # Only a first batch is sure to be computed twice; copies for each batch would cost.
        keeping = nullcontext() if plans.were_ever_proved else state_kept(self.model)
        for number in range(ROUNDS):
            plans.start()
            try:
                with nullcontext() if number else keeping:
                    losses = compute_losses()
            except ERRORS_OF_A_PLAN:
                if not plans.saw_a_call:
                    raise
            else:
                if not _can_be_proved(losses):
                    return losses
                if plans.are_proved(describe_graph(losses, self.trainable.now())):
                    return losses
                del losses
            self._prove(compute_losses, state)
            state.restore()
            if not plans.saw_a_call:
                return compute_losses()
        raise RunError(NOT_REPEATABLE)

    def _prove(self, compute_losses: LossFunction, state: RandomState) -> None:
        """Proves the plans of the calls just made, widening them as long as they are disproved.

        Raises:
            InputError: A parameter is used where the batch cannot be followed.
            RunError: No plan is exact.
        """
        plans = self._patches.plans
        if not plans.saw_a_call:
            log_once("the model itself was not called, so that each batch is proved anew: slow")
        with state_kept(self.model):
            random = self._is_random(compute_losses, state)
            while True:
                try:
                    plans.remember_proof(self._verdict(compute_losses, state, random=random))
                    return
                except (Disproved, *ERRORS_OF_A_PLAN) as error:
                    if plans.widen():
                        continue
                    if plans.refusal is not None:
                        raise plans.refusal from error
                    raise RunError(
                        f"the clipper cannot be exact for {type(self.model).__name__}: {error}"
                    ) from error

    def _is_random(self, compute_losses: LossFunction, state: RandomState) -> bool:
        """Returns whether the bare model's losses are drawn.

        Raises:
            RunError: They differ though the random state does not.
        """
        with self._patches.without():
            state.restore()
            losses = compute_losses().detach()
            other = compute_losses().detach()
            state.restore()
            again = compute_losses().detach()
        same = losses.shape == again.shape
        if not (same and torch.allclose(losses, again, rtol=1e-3, equal_nan=True)):
            raise RunError(NOT_REPEATABLE)
        return not torch.equal(losses.nan_to_num(), other.nan_to_num())

    def _verdict(
        self, compute_losses: LossFunction, state: RandomState, *, random: bool
    ) -> Verdict:
        """Returns what is proved: as the model trains, or, where masks differ, as it evaluates.

        Raises:
            Disproved: The recorded gradients are not the examples' own.
        """
        try:
            return self._verdict_as_is(compute_losses, state)
        except Disproved:
            # Where modules run example by example, dropout draws its masks in another order.
            if not random:
                raise
            with evaluating(self.model):
                return self._verdict_as_is(compute_losses, state)

    def _verdict_as_is(self, compute_losses: LossFunction, state: RandomState) -> Verdict:
        state.restore()
        with self._patches.without():
            bare = bare_run(compute_losses, self.trainable, self.tuning.loss_scale)

        def run(weights: Tensor, receive: Receiver) -> Tensor:
            state.restore()
            with self._patches.plans.replaying():
                losses = compute_losses()
            if losses.shape != weights.shape:
                raise Disproved(f"its losses have shape {tuple(losses.shape)} under the clipper")
            with torch.autocast(losses.device.type, enabled=False):
                self.backward(losses * weights, receive)
            return losses.detach()

        precision = self._patches.plans.precision
        return check_against(bare, run, precision=precision)

    def backward(self, losses: Tensor, receive: Receiver, *, retain_graph: bool = False) -> None:
        """Runs a backward pass of the scaled losses, handing every use to ``receive``.

        Raises:
            RunError: A use does not carry the batch, or a parameter got an ordinary gradient.
        """
        self.recorder.start(len(losses))
        self.recorder.receive = receive
        total = losses.sum() * self.tuning.loss_scale
        try:
            with watch_for_unrecorded_gradients(self.trainable.now()):
                torch.autograd.backward(total, retain_graph=retain_graph)
        finally:
            self.recorder.receive = self.recorder.keep
            self.recorder.stop()


def _can_be_proved(losses: object) -> bool:
    """Whether these are losses at all; what is not is refused elsewhere."""
    if not isinstance(losses, Tensor) or losses.dim() != 1:
        return False
    return len(losses) > 0 and losses.requires_grad
