"""Small models, ragged batches, and gradients taken one example at a time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.privacy.clipping import PerExampleClipper

Losses = Callable[[], Tensor]


def gpt2(*, tied: bool = True, dropout: float = 0.0, dtype=torch.float32) -> nn.Module:
    """A two-layer GPT-2 with every parameter trainable and weights far from symmetric."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=61,
        n_positions=32,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        tie_word_embeddings=tied,
    )
    model = GPT2LMHeadModel(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@dataclass
class Records:
    """Right-padded token ids, of ragged lengths, and what to ignore in the loss."""

    ids: Tensor
    labels: Tensor
    mask: Tensor = field(init=False)

    def __post_init__(self):
        self.mask = (self.ids >= 0).long()

    def take(self, rows) -> "Records":
        return Records(self.ids[rows], self.labels[rows])

    def losses(self, model: nn.Module) -> Losses:
        """Per-example mean cross-entropy over labeled positions; 0 where there are none."""

        def compute() -> Tensor:
            count, length = self.ids.shape
            positions = torch.arange(length).expand(count, length)
            logits = model(
                input_ids=self.ids.clamp(min=0), attention_mask=self.mask, position_ids=positions
            ).logits[:, :-1]
            labels = self.labels[:, 1:]
            loss = F.cross_entropy(
                logits.reshape(-1, logits.shape[-1]),
                labels.reshape(-1),
                ignore_index=-100,
                reduction="none",
            ).view(count, -1)
            return loss.sum(1) / (labels != -100).sum(1).clamp(min=1)

        return compute


def records(lengths=(7, 12, 3, 9), *, width: int | None = None, seed: int = 1) -> Records:
    """Random records; the first third of each has no loss."""
    generator = torch.Generator().manual_seed(seed)
    width = width or max(lengths)
    ids = torch.full((len(lengths), width), -1)
    labels = torch.full((len(lengths), width), -100)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(0, 61, (length,), generator=generator)
        start = length // 3
        labels[row, start:length] = ids[row, start:length]
    return Records(ids, labels)


@dataclass
class Clipped:
    """A clipped sum and the norms before clipping."""

    norms: Tensor
    gradients: dict[str, Tensor]

    def distance(self, other: "Clipped") -> float:
        """L2 distance of the sums over that of the other, all parameters together."""
        apart = self.minus(other)
        return float(apart / total_norm(other.gradients))

    def minus(self, other: "Clipped") -> Tensor:
        return total_norm({name: g - other.gradients[name] for name, g in self.gradients.items()})


def total_norm(gradients: dict[str, Tensor]) -> Tensor:
    return torch.stack([g.double().square().sum() for g in gradients.values()]).sum().sqrt()


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of gradients: of what trains, zeros where it has none, and of what else has one."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
        if p.requires_grad or p.grad is not None
    }


def clipped_sum(
    model: nn.Module,
    losses: Losses,
    max_grad_norm: float = 0.5,
    *,
    units: Tensor | None = None,
    **options,
) -> Clipped:
    """What the clipper makes of a batch; its options are those of ``PerExampleClipper``."""
    model.zero_grad()
    with PerExampleClipper(model, max_grad_norm, **options) as clipper:
        norms = clipper.accumulate(losses, units)
    return Clipped(norms, gradients_of(model))


def sum_of_each(model: nn.Module, losses: Iterable[Tensor], max_grad_norm: float) -> Clipped:
    """The definition: each loss has a gradient of its own, scaled to at most the norm."""
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    totals, norms = {n: torch.zeros_like(p) for n, p in named.items()}, []
    for loss in losses:
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        gradients = {n: g for n, g in zip(named, found, strict=True) if g is not None}
        norm = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
        factor = min(1.0, max_grad_norm / float(norm)) if norm > 0 else 1.0
        for name, gradient in gradients.items():
            totals[name] += factor * gradient
        norms.append(norm)
    return Clipped(torch.stack(norms), totals)


def one_at_a_time(model: nn.Module, batch: Records, max_grad_norm: float) -> Clipped:
    """A forward and a backward pass per example, alone in its batch, unpadded."""
    lengths = [int(each.sum()) for each in batch.mask]
    alone = (
        Records(batch.ids[row : row + 1, :length], batch.labels[row : row + 1, :length])
        for row, length in enumerate(lengths)
    )
    return sum_of_each(model, (each.losses(model)()[0] for each in alone), max_grad_norm)
