"""Ordinary, non-private gradients behind the interface of the private engine.

Non-private training is a choice of its own, ``privacy=none``, and never prints an epsilon.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from dpft.head_losses import losses_added_up
from dpft.parallel.local import local
from dpft.parallel.ranks import ALONE, Ranks, first_numbers
from dpft.parallel.reductions import STRETCH, finish_sums
from dpft.parallel.shards import ShardedModel
from dpft.privacy.clipping.engines.base import LossFunction, check_losses
from dpft.privacy.keys import AgingKey, secret_key
from dpft.privacy.views import ViewStream


class OrdinaryEngine:
    """Shuffled batches of a fixed size and the mean of their losses' gradients."""

    def __init__(
        self,
        model: nn.Module,
        *,
        steps: int,
        batch_size: int,
        seed: int,
        loss_scale: float = 1.0,
        state: Mapping[str, Any] | None = None,
        steps_taken: int = 0,
        ranks: Ranks = ALONE,
        shards: ShardedModel | None = None,
    ) -> None:
        """Plans ``steps`` batches of ``batch_size``, shuffled anew each epoch from ``seed``.

        Args:
            model: What requires grad trains.
            steps: The step to end at.
            batch_size: Units of a batch.
            seed: Of the order.
            loss_scale: What losses are multiplied by before the backward pass.
            state: Of a run that broke off, to go on with.
            steps_taken: Steps it had taken then.
            ranks: The run's processes: the first draws for all, each adds up its share.
            shards: ``model``, where each rank has but a shard of it.
        """
        self._ranks, self._seed, self._shards = ranks, seed, shards
        self._loss_scale = loss_scale
        self.steps = steps
        self._model = model
        self._batch_size = batch_size
        self._generator = torch.Generator().manual_seed(seed)
        self._waiting: list[int] = []
        self._drawn = 0
        self.steps_taken = steps_taken
        self.views = ViewStream(AgingKey(secret_key("views", seed)))
        self._dropout: str | None = None
        if state is not None:
            self._generator.set_state(_read_state(state["order"]))
            self._waiting = list(state["waiting"])
            self._dropout = state["dropout"]

    def __enter__(self) -> Self:
        if self._dropout is not None:
            torch.set_rng_state(_read_state(self._dropout))
        return self

    def generator_states(self) -> dict[str, Any]:
        """Returns the generators' states, ready for JSON, as the parameter ``state`` takes them."""
        return {
            "order": _written_state(self._generator.get_state()),
            "waiting": list(self._waiting),
            "dropout": _written_state(torch.get_rng_state()),
        }

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def draw(self, num_units: int) -> list[int]:
        """Starts a step: returns the indices of its batch."""
        for parameter in self._model.parameters():
            parameter.grad = None
        if self._shards is not None:
            self._shards.forget_sums()
        size = min(self._batch_size, num_units)
        while len(self._waiting) < size:
            self._waiting += torch.randperm(num_units, generator=self._generator).tolist()
        batch, self._waiting = self._waiting[:size], self._waiting[size:]
        self._drawn = size
        if not self._ranks.is_first:
            torch.manual_seed(hash((self._seed, self._ranks.rank, self.steps_taken)))
        return first_numbers(batch, self._ranks)

    def accumulate(
        self, compute_losses: LossFunction, units: Tensor | None = None
    ) -> Tensor | None:
        """Adds a micro-batch's share of the mean gradient; there are no norms to return."""
        with losses_added_up():
            losses = compute_losses()
        check_losses(losses)
        torch.autograd.backward(losses.sum() * (self._loss_scale / self._drawn))
        if self._shards is not None:
            self._shards.take_gradients()
        return None

    def finish_step(self) -> None:
        """Ends a step: adds up the ranks' gradients, and takes the loss scale out."""
        self.steps_taken += 1
        self._add_up()
        if self._loss_scale != 1:
            for parameter in self._model.parameters():
                if parameter.grad is not None:
                    local(parameter.grad).div_(self._loss_scale)

    def _add_up(self) -> None:
        """Makes each gradient the sum of all ranks', where one of them has any."""
        if self._shards is not None:
            self._shards.finish(STRETCH, lambda piece, total: None)
            return
        trainable = [p for p in self._model.parameters() if p.requires_grad]
        there = self._ranks.any(*(p.grad is not None for p in trainable))
        flat: list[Tensor] = []
        for parameter in (p for p, is_there in zip(trainable, there, strict=True) if is_there):
            own = parameter.grad
            parameter.grad = torch.zeros_like(parameter) if own is None else own.contiguous()
            flat.extend(parameter.grad.view(-1).split(STRETCH))
        finish_sums(flat, lambda place, total: None, self._ranks)


def _written_state(state: Tensor) -> str:
    """Returns a generator's state, a byte tensor, in hexadecimal."""
    return state.cpu().numpy().tobytes().hex()


def _read_state(written: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(written), dtype=torch.uint8).clone()
