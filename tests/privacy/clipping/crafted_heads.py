"""Crafted language models, and how far one record of theirs moves the clipped sum.

What an attacker would choose: any magnitudes, logits that tie, a weight that is tied, masked
positions, rows beside it that are left out, several rows of one unit. Everything is public code; no
number of a model is out of reach of somebody who makes a base checkpoint.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpft.privacy.clipping import PerExampleClipper
from dpft.training.training_config import autocast

OTHERS = ("none", "masked", "not finite", "copies", "one unit")
"""What stands beside the record: nothing; rows without a label; rows whose loss is no number; the
record itself again; more rows of its unit."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, a batch and a clipping norm; magnitudes are powers of ten."""

    seed: int
    engine: str
    tied: bool
    clipping: str
    others: str
    vocabulary: int
    width: int
    length: int
    rows: int
    hidden: float
    """Of hidden states."""
    logits: float
    """Of hidden states times the head's weight."""
    loss: float
    """What losses are multiplied by."""
    norm: float
    """The clipping norm, beside the size of a gradient."""
    tie: float | None
    """How far the two largest logits are apart, beside their size; None: as it comes."""
    masked: float
    """Share of positions without a label."""
    trained_below: bool
    """Whether a layer between embedding and head trains too."""
    lookups: int
    """How many times the embedding is looked up; 3: once more after the losses were computed."""
    precision: str
    """``fp32`` or ``bf16``, by autocast."""

    @property
    def max_grad_norm(self) -> float:
        """The clipping norm, within what is accepted."""
        return 10.0 ** min(10.0, max(-10.0, self.hidden + self.loss + self.norm))


class CraftedModel(nn.Module):
    """Tokens to hidden states: a look-up, scaled, and a dense layer."""

    def __init__(self, case: Case, generator: torch.Generator) -> None:
        super().__init__()
        size = (case.vocabulary, case.width)
        weight = torch.randn(size, generator=generator) * 10.0 ** (case.logits - case.hidden)
        self.lookups = case.lookups
        self.embedding = nn.Embedding(*size)
        self.lm_head = nn.Linear(case.width, case.vocabulary, bias=False)
        with torch.no_grad():
            if case.tie is not None:
                weight[1] = weight[0] * (1 + case.tie)
            self.lm_head.weight.copy_(weight)
            rows = torch.randn(size, generator=generator)
            if case.tie is not None:
                # All hidden states point where the two tied tokens are the likeliest.
                rows = rows * 0.1 + nn.functional.normalize(weight[:1], dim=1) * case.width**0.5
            self.embedding.weight.copy_(rows)
        self.scale = 10.0**case.hidden
        if case.tied:
            self.embedding.weight = self.lm_head.weight
            self.scale = 10.0 ** (2 * case.hidden - case.logits)
        self.layer = nn.Linear(case.width, case.width, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(case.width))
        self.layer.weight.requires_grad_(case.trained_below)

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.embedding(ids)
        if self.lookups > 1:
            rows = rows + self.embedding((ids + 1) % len(self.embedding.weight))
        # In two steps, neither of which leaves float32's range on its own.
        looked_up = rows * self.scale**0.5 * self.scale**0.5
        logits: Tensor = self.lm_head(self.layer(looked_up))
        return logits

    def losses(self, ids: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
        """Returns each row's sum of cross-entropies times its share, (b,)."""
        logits = self(ids).float().flatten(0, 1)
        each = nn.functional.cross_entropy(logits, labels.flatten(), reduction="none")
        return each.view_as(labels).sum(1) * shares


def most_moved(case: Case) -> tuple[float, Tensor]:
    """Returns how far the record moves the clipped sum, over the clipping norm, and the norms.

    Raises:
        RunError: The clipper refuses the model.
    """
    generator = torch.Generator().manual_seed(case.seed)
    model = CraftedModel(case, generator)
    count = 1 if case.others == "none" else case.rows
    size = (count, case.length)
    ids = torch.randint(case.vocabulary, size, generator=generator)
    labels = torch.randint(case.vocabulary, size, generator=generator)
    if case.tie is not None:
        labels = labels % 2
    labels[torch.rand(size, generator=generator) < case.masked] = -100
    weights = torch.full((count,), 10.0**case.loss)
    units = None
    if case.others == "masked":
        labels[1:] = -100
    elif case.others == "not finite":
        weights[1:] = math.nan
    elif case.others == "copies":
        ids[1:], labels[1:] = ids[:1], labels[:1]
    elif case.others == "one unit":
        units = torch.zeros(count, dtype=torch.long)
    shares = (labels != -100).sum(1).clamp(min=1).float().reciprocal()

    def losses() -> Tensor:
        with autocast(case.precision, torch.device("cpu")):
            found = model.losses(ids, labels, shares)
        if case.lookups > 2:
            late = model.embedding(ids[:, :1]).sum((1, 2)) * 1e-3
            found = found + late * (labels != -100).any(1)
        return found * weights

    bound = case.max_grad_norm
    with PerExampleClipper(model, bound, clipping=case.clipping, engine=case.engine) as clipper:
        norms = clipper.accumulate(losses, units)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    moved = torch.stack([grad.double().square().sum() for grad in gradients]).sum().sqrt()
    alike = count if case.others == "copies" else 1
    return float(moved) / bound / alike, norms
