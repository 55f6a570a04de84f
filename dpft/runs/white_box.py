"""``audit.white_box=true``: each step's noisy gradient held against every canary's own gradient.

A canary's words have embeddings of their own, whose gradient no other canary's words have a part
in. What the canary added to a step lies there along its own gradient, so that their inner product
is larger where it was trained on (the white-box attack of Steinke, Nasr and Jagielski 2023, on the
rows where a canary is alone). All canaries are asked at every step, whatever their coins
and whatever was drawn, along their gradient at the step's weights, and along the one before
training: that direction stays, so that noise which two steps share is gone from the difference.
The noisy gradients are what epsilon covers; the scores stay in private/ all the same, since they
tell of the coins.
"""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpft.data.batch import Batch
from dpft.data.canaries import COIN
from dpft.files import write_text
from dpft.generation.inference import evaluation_mode
from dpft.models.losses import per_example_losses
from dpft.run_folder import WHITE_BOX, private_path
from dpft.runs.canary_gradients import (
    apart,
    common_directions,
    embeddings,
    own_lengths,
    owners_of,
    summed_gradients,
    tables,
)
from dpft.runs.white_box_scores import step_lines
from dpft.training.listeners import PublicStep

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from dpft.runs.prepared_run import Prepared

REACH = 5e-3
"""How far embeddings are moved along a noisy gradient, of their own norm, to see what a loss makes
of it: far enough for float32, near enough for the loss to be straight."""
SHORTEST = 1e-30
TOGETHER = 64
"""Canaries that are read at once."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WhiteBoxListener:
    """Writes down, after each step, the inner products of its noisy gradient."""

    model: "PreTrainedModel"
    batches: Sequence[Batch]
    """The canaries, on the model's device."""
    tokens: Tensor
    """Those that one canary has alone."""
    owners: Tensor
    """Of each such token the number of its canary, shape (n,)."""
    directions: Sequence[Tensor]
    """Of each table the canaries' gradients in the embeddings of such tokens, before training and
    without what they have in common, shape (n, d) each."""
    lengths: Tensor
    """Of each canary the norm of that, shape (m,), float64."""
    common: Sequence[Tensor]
    """Of each table the directions that canaries' gradients have in common, shape (k, d) each."""
    path: Path

    def begin(self, step: int) -> None:
        """Forgets the scores of steps that will be taken again."""
        kept = [line for taken, line in step_lines(self.path) if taken <= step]
        write_text(self.path, "".join(f"{line}\n" for line in kept), mode=0o600)

    def after_step(self, public: PublicStep) -> None:
        """Adds the scores of a step; where that fails the run goes on, and an audit will say so."""
        try:
            noisy = self.noisy_rows()
            scores = {"now": _written(self.scores(noisy)), "before": _written(self.before(noisy))}
        except RuntimeError as error:
            logger.warning("audit.white_box: no scores of step %d: %s", public.step, error)
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": public.step, **scores}) + "\n")

    @torch.no_grad()
    def noisy_rows(self) -> list[Tensor]:
        """Returns the noisy gradient of the canaries' own words, shape (n, d) of each table.

        What all their rows have in common is taken away, since that says nothing of one canary.
        """
        rows = [
            torch.zeros_like(table[self.tokens]) if table.grad is None else table.grad[self.tokens]
            for table in tables(self.model)
        ]
        return [apart(each, some) for each, some in zip(rows, self.common, strict=True)]

    @torch.no_grad()
    def scores(self, noisy: Sequence[Tensor]) -> Tensor:
        """Returns the inner product of the noisy gradient with each canary's own, over its norm.

        Both are of the embeddings of the canary's own words. It is what the canary's loss makes of
        these embeddings moved along the noisy gradient, there and back, so that nothing runs
        backward while the clipper is at work. Other canaries' words are moved as well, which is
        nothing to a canary but where it might have said them.

        Args:
            noisy: What ``noisy_rows`` returned.

        Returns:
            Shape (m,), float64; 0 where there is no gradient.
        """
        moved = tables(self.model)
        rows = [table[self.tokens].clone() for table in moved]
        steep = _norm(noisy)
        if steep == 0:
            return torch.zeros(len(self.lengths), dtype=torch.float64)
        reach = REACH * _norm(rows) / steep

        def losses(way: float) -> Tensor:
            for table, own, gradient in zip(moved, rows, noisy, strict=True):
                table[self.tokens] = own + way * reach * gradient
            return losses_of(self.model, self.batches)

        try:
            risen = losses(1.0) - losses(-1.0)
        finally:
            for table, own in zip(moved, rows, strict=True):
                table[self.tokens] = own
        return risen / (2 * reach) / self.lengths.clamp(min=SHORTEST)

    @torch.no_grad()
    def before(self, noisy: Sequence[Tensor]) -> Tensor:
        """Returns the inner product with the gradient that a canary had before training.

        As ``scores``, along the same direction at every step: noise that two steps have in common
        is the same number in both.
        """
        products = torch.zeros_like(self.lengths)
        for each, direction in zip(noisy, self.directions, strict=True):
            along = (each.double() * direction.double()).sum(dim=1)
            products.index_add_(0, self.owners.cpu(), along.cpu())
        return products / self.lengths.clamp(min=SHORTEST)


def losses_of(model: "PreTrainedModel", batches: Sequence[Batch]) -> Tensor:
    """Returns each canary's loss, shape (m,), float64, on the CPU."""
    with evaluation_mode(model):
        return torch.cat([per_example_losses(model, batch).double().cpu() for batch in batches])


def white_box(prepared: "Prepared", folder: Path) -> tuple[WhiteBoxListener, ...]:
    """Returns who holds a run's steps against its canaries; nobody where it was not asked for."""
    if not prepared.config.audit.white_box:
        return ()
    canaries = [canary for canary in prepared.canaries if canary.kind == COIN]
    encoded = prepared.encoding.rows([canary.record(prepared.config.task) for canary in canaries])
    pieces = [encoded[at : at + TOGETHER] for at in range(0, len(encoded), TOGETHER)]
    device = prepared.training_set.device
    batches = [prepared.encoding.layout.collate(piece).to(device) for piece in pieces]
    return (listener_of(prepared.model, batches, private_path(folder, WHITE_BOX)),)


def listener_of(model: "PreTrainedModel", batches: Sequence[Batch], path: Path) -> WhiteBoxListener:
    """Returns who holds steps against the canaries of some batches, on the model's device.

    Args:
        model: As it is before training; what it trains is known.
        batches: The canaries.
        path: Where the scores are written.
    """
    table = embeddings(model).weight
    owners = owners_of(batches, len(table)).to(table.device)
    tokens = (owners >= 0).nonzero().flatten()
    rows = [total[tokens] for total in summed_gradients(model, batches)]
    common = [common_directions(each) for each in rows]
    directions = [apart(each, some) for each, some in zip(rows, common, strict=True)]
    return WhiteBoxListener(
        model=model,
        batches=batches,
        tokens=tokens,
        owners=owners[tokens],
        directions=directions,
        lengths=own_lengths(directions, owners[tokens], sum(map(len, batches))),
        common=common,
        path=path,
    )


def _written(scores: Tensor) -> list[float]:
    return [float(f"{score:.6e}") for score in scores.tolist()]


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
