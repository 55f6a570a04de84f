"""Engines for training without noise, with ordinary or clipped gradients.

Non-private training must be chosen explicitly with ``privacy=none``, and never prints an epsilon.
With a clipping norm, it differs from a private run only in the missing noise (the rows "clipped, no
noise" of the papers): Poisson draws, clipped sums and divisor are the same. A comparison with
ordinary training therefore shows the cost of clipping. A comparison with a private run shows the
cost of noise.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dpft.devices import autocast
from dpft.parallel.rank_sums import STRETCH, finish_sums
from dpft.parallel.ranks import ALONE, Ranks, broadcast_numbers
from dpft.parallel.sharding import local
from dpft.parallel.shards import ShardedModel
from dpft.privacy.cipher import AgingKey, secret_key
from dpft.privacy.clipping.batches import count_rows
from dpft.privacy.clipping.clipper import ClippingChoice, ClippingOptions
from dpft.privacy.clipping.engines import check_losses
from dpft.privacy.clipping.options import LossFunction
from dpft.privacy.engine_results import EngineState, MicroBatchResult
from dpft.privacy.phased_clipper import PhasedClipper
from dpft.privacy.plan import ClippingPlan
from dpft.privacy.randomness import ViewStream, make_randomness, private_dropout, restore_randomness
from dpft.privacy.sampling import PoissonSampler
from dpft.strict_model import StrictModel, parse


class ShuffledState(StrictModel):
    """Content of generators.json for an ordinary run: the states of its generators."""

    order: str
    """State of the generator for the order of records, in hexadecimal."""
    waiting: tuple[int, ...]
    """Units of this epoch that no step has drawn yet."""
    dropout: str
    """State of torch's default generator, in hexadecimal."""


class OrdinaryEngine:
    """Engine with shuffled batches of a fixed size and the mean gradient of their losses."""

    def __init__(
        self,
        model: nn.Module,
        losses_of: LossFunction,
        *,
        steps: int,
        batch_size: int,
        seed: int,
        autocast_dtype: torch.dtype | None = None,
        loss_scale: float = 1.0,
        state: Mapping[str, Any] | None = None,
        steps_taken: int = 0,
        ranks: Ranks = ALONE,
        shards: ShardedModel | None = None,
    ) -> None:
        """Plan ``steps`` batches of ``batch_size`` units, shuffled in each epoch from ``seed``.

        A resumed run passes its ``state`` and the number of steps that it has taken. Rank 0 draws
        for all ranks, and each rank adds its share of the gradient. ``losses_of`` runs under
        autocast to ``autocast_dtype``; None disables autocast.
        """
        self._losses_of, self._autocast_dtype = losses_of, autocast_dtype
        self._ranks, self._seed, self._shards = ranks, seed, shards
        self._loss_scale = loss_scale
        self.steps = steps
        self._model = model
        self._batch_size = batch_size
        self._generator = torch.Generator().manual_seed(seed)
        self._waiting: list[int] = []
        self._drawn = 0
        self.steps_taken = steps_taken
        self.non_finite = 0
        self.views = ViewStream(AgingKey(secret_key("views", seed)))
        self._dropout: str | None = None
        if state is not None:
            restored = parse(state, ShuffledState)
            self._generator.set_state(_read_state(restored.order))
            self._waiting, self._dropout = list(restored.waiting), restored.dropout

    def __enter__(self) -> Self:
        if self._dropout is not None:
            torch.set_rng_state(_read_state(self._dropout))
        return self

    def begin(self) -> None:
        """Do nothing, because there is no ledger."""

    def check(self) -> None:
        """Do nothing, because the model has no privacy guarantee."""

    def state(self) -> EngineState:
        """Return the states of the generators, in the format of the parameter ``state``."""
        states = {
            "order": _written_state(self._generator.get_state()),
            "waiting": list(self._waiting),
            "dropout": _written_state(torch.get_rng_state()),
        }
        return EngineState(generators=states)

    def __exit__(self, *_: object) -> None:
        return None

    def draw(self, num_units: int) -> list[int]:
        """Start a step and return the indices of its batch."""
        for parameter in self._model.parameters():
            parameter.grad = None
        if self._shards is not None:
            self._shards.forget_sums()
        size = min(self._batch_size, num_units)
        while len(self._waiting) < size:
            self._waiting += torch.randperm(num_units, generator=self._generator).tolist()
        batch, self._waiting = self._waiting[:size], self._waiting[size:]
        self._drawn = size
        if not self._ranks.is_rank_0:
            torch.manual_seed(hash((self._seed, self._ranks.rank, self.steps_taken)))
        return broadcast_numbers(batch, self._ranks)

    def accumulate(self, batch: Any, rows_per_unit: int = 1) -> MicroBatchResult:
        """Add a micro-batch's share of the mean gradient; the result has no norms."""
        device = pytree.tree_leaves(batch)[0].device
        with autocast(device, self._autocast_dtype):
            losses = self._losses_of(self._model, batch)
        check_losses(losses, count_rows(batch))
        torch.autograd.backward(losses.sum() * (self._loss_scale / self._drawn))
        if self._shards is not None:
            self._shards.take_gradients()
        return MicroBatchResult(losses=losses.detach(), norms=None)

    def finish_step(self) -> None:
        """End a step: add up the gradients of all ranks and divide them by the loss scale."""
        self.steps_taken += 1
        add_up(self._model, self._ranks, self._shards)
        if self._loss_scale != 1:
            for parameter in self._model.parameters():
                if parameter.grad is not None:
                    local(parameter.grad).div_(self._loss_scale)


class ClippedEngine:
    """Engine that takes the steps of a private run, but adds no noise; the results are not private.

    Like ``PrivacyEngine``, it divides the sum of clipped gradients of a Poisson draw by the
    expected batch size. It has no noise and no ledger. Draws and dropout masks are derived from
    ``train.seed``, as in ordinary training.
    """

    def __init__(
        self,
        model: nn.Module,
        losses_of: LossFunction,
        *,
        plan: ClippingPlan,
        options: ClippingOptions,
        seed: int,
        choices: Sequence[ClippingChoice] = (),
        state: Mapping[str, Any] | None = None,
        steps_taken: int = 0,
        ranks: Ranks = ALONE,
        shards: ShardedModel | None = None,
    ) -> None:
        """Bind a model to a plan, which contains the clipping norm of each phase.

        The other arguments are as for ``OrdinaryEngine``; draws, dropout and views depend on
        ``seed``.
        """
        self.steps, self.steps_taken = plan.steps, steps_taken
        self._model, self._plan, self._ranks, self._shards = model, plan, ranks, shards
        device = next(model.parameters()).device
        state = make_randomness(device, seed).state(0) if state is None else state
        self._randomness = restore_randomness(device, state, seed, rank=ranks.rank)
        self.views = self._randomness.views
        self._sampler = PoissonSampler(plan.sample_rate, self._randomness.sampling)
        self._clipper = PhasedClipper(
            model, losses_of, plan, step=steps_taken, options=options, choices=choices
        )
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        self._resources.enter_context(private_dropout(self._randomness.dropout))
        self._resources.enter_context(self._clipper)
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def begin(self) -> None:
        """Do nothing, because there is no ledger."""

    def check(self) -> None:
        """Do nothing, because the model has no privacy guarantee."""

    def state(self) -> EngineState:
        """Return the random state of the next step, in the format of the parameter ``state``."""
        return EngineState(generators=self._randomness.state(self.steps_taken))

    def draw(self, num_units: int) -> list[int]:
        """Start a step and return the indices of its batch, which may be empty."""
        self._clipper.begin_step(self.steps_taken)
        for parameter in self._model.parameters():
            parameter.grad = None
        if self._shards is not None:
            self._shards.forget_sums()
        self._randomness.dropout.begin_step(self.steps_taken)
        return broadcast_numbers(self._sampler.draw(num_units, step=self.steps_taken), self._ranks)

    def accumulate(self, batch: Any, rows_per_unit: int = 1) -> MicroBatchResult:
        """Add the clipped sum of a micro-batch; see ``PhasedClipper.accumulate``."""
        return self._clipper.accumulate(batch, rows_per_unit)

    def finish_step(self) -> None:
        """End a step: set each trainable ``grad`` to the sum over the expected batch size."""
        with self._ranks.failing_together():
            self._clipper.end_step()
        if self._shards is None:  # An empty draw is also a step, with a gradient of zero.
            for parameter in self._clipper.parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        add_up(self._model, self._ranks, self._shards)
        for parameter in self._clipper.parameters:
            if parameter.grad is not None:
                local(parameter.grad).div_(self._plan.expected_batch_size)
        self.steps_taken += 1
        self._randomness.forget(self.steps_taken)

    @property
    def non_finite(self) -> int:
        """Number of examples skipped so far because of a non-finite loss or gradient."""
        return self._clipper.non_finite


def add_up(model: nn.Module, ranks: Ranks, shards: ShardedModel | None) -> None:
    """Replace each gradient with the sum over all ranks, if any rank has this gradient."""
    if shards is not None:
        shards.reduce_sums(STRETCH, lambda parts: None)
        return
    trainable = [p for p in model.parameters() if p.requires_grad]
    there = ranks.any(*(p.grad is not None for p in trainable))
    flat: list[Tensor] = []
    for parameter in (p for p, is_there in zip(trainable, there, strict=True) if is_there):
        gradient = parameter.grad
        parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient.contiguous()
        flat.extend(parameter.grad.view(-1).split(STRETCH))
    finish_sums(flat, lambda parts: None, ranks)


def _written_state(state: Tensor) -> str:
    """Return the state of a generator, a byte tensor, in hexadecimal."""
    return state.cpu().numpy().tobytes().hex()


def _read_state(written: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(written), dtype=torch.uint8).clone()
