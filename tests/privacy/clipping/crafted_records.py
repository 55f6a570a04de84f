"""Records that an adversary would choose: any magnitudes, gradients that cancel, underflow, ties.

Inputs of a layer and the weights of its outputs in the loss are fields of the record, so that a
record decides both factors of its gradient.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from dpft.errors import RunError
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.oracle import clipped, gradient_of, rows_of, total_norm

WIDTH, ROWS = 24, 7
KINDS = ("linear", "bias", "wide", "conv", "layer_norm", "embedding", "tied", "looped", "frozen")
Batch = dict[str, Tensor]


class CraftedModel(nn.Module):
    """One layer of some kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        if kind == "conv":
            self.layer = nn.Conv1d(WIDTH, 4, 1)
        elif kind == "layer_norm":
            self.layer = nn.LayerNorm(WIDTH)
        elif kind in ("embedding", "tied"):
            self.layer = nn.Embedding(ROWS, WIDTH)
        else:
            self.layer = nn.Linear(WIDTH, 900 if kind == "wide" else WIDTH)
        if kind in ("bias", "frozen"):
            (self.layer.weight if kind == "bias" else self.layer.bias).requires_grad_(False)
        if kind == "tied":
            self.head = nn.Linear(WIDTH, ROWS, bias=False)
            self.head.weight = self.layer.weight

    @property
    def outputs(self) -> int:
        """Width of the output."""
        sizes = {"conv": 4, "layer_norm": WIDTH, "embedding": WIDTH, "tied": ROWS, "wide": 900}
        return sizes.get(self.kind, WIDTH)

    def forward(self, batch: Batch) -> Tensor:
        inputs, ids, weights = batch["inputs"], batch["ids"], batch["weights"]
        if self.kind == "embedding":
            return (self.layer(ids) * weights).flatten(1).sum(1)
        if self.kind == "conv":
            return (self.layer(inputs.mT).mT * weights).flatten(1).sum(1)
        if self.kind == "tied":
            looked_up = (self.layer(ids) * inputs * batch["nudge"]).flatten(1).sum(1)
            return (self.head(inputs) * weights).flatten(1).sum(1) + looked_up
        outputs = self.layer(inputs)
        if self.kind == "looped":
            outputs = outputs - self.layer(inputs * (1 + batch["nudge"]))
        return (outputs * weights).flatten(1).sum(1)


def losses_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return a loss whose gradient is what the record decides."""
    return model(batch) * batch["scale"]


@dataclass(frozen=True)
class Crafted:
    """A model, a record, and a clipping norm; magnitudes are powers of ten.

    Attributes:
        seed: Of the record's numbers.
        kind: Of the layer.
        steps: Positions t.
        inputs: Magnitude of the layer's inputs.
        weights: Magnitude of its output gradients.
        spread: Magnitudes over which positions are spread.
        cancels: None, or the share that the first half of positions leaves of the second one.
        norm: Magnitude of C relative to the gradient's length.
    """

    seed: int
    kind: str
    steps: int
    inputs: float
    weights: float
    spread: float
    cancels: float | None
    norm: float

    def record(self) -> Batch:
        """Return the record as a batch of one row."""
        torch.manual_seed(self.seed)
        shape, model = (1, self.steps), CraftedModel(self.kind)
        torch.manual_seed(self.seed)
        inputs, weights = torch.randn(*shape, WIDTH), torch.randn(*shape, model.outputs)
        sizes = 10.0 ** (self.spread * (torch.rand(*shape, 1) - 0.5))
        ids = torch.randint(0, ROWS, shape)
        nudge = torch.full((*shape, 1), 10.0 ** (self.cancels or 0.0))
        inputs = inputs * sizes * 10.0**self.inputs
        weights = weights / sizes * 10.0**self.weights
        if self.cancels is not None and self.steps > 1:
            half = self.steps // 2
            share = 10.0**self.cancels
            inputs[:, half : 2 * half] = inputs[:, :half] * (
                1 + share * torch.randn(1, half, WIDTH)
            )
            weights[:, half : 2 * half] = -weights[:, :half]
            ids[:, half : 2 * half] = ids[:, :half]
        return {
            "inputs": inputs,
            "weights": weights,
            "ids": ids,
            "nudge": nudge,
            "scale": torch.ones(1),
        }

    def max_grad_norm(self) -> float:
        """Return C, in the range that is accepted."""
        length = float(true_norm(self))
        magnitude = math.log10(length) if 0 < length < math.inf else 0.0
        return 10.0 ** min(9.0, max(-9.0, magnitude + self.norm))


def true_norm(case: Crafted) -> Tensor:
    """Return the norm of the record's gradient in float64."""
    model = CraftedModel(case.kind).double()
    record = {k: v.double() if v.is_floating_point() else v for k, v in case.record().items()}
    return total_norm(gradient_of(model, losses_of(model, record).sum()))


def ordinary(kind: str, rows: int, steps: int = 3, seed: int = 0) -> Batch:
    """Return rows of ordinary magnitudes."""
    cases = [Crafted(seed + k, kind, steps, 0.0, 0.0, 0.0, None, 0.0) for k in range(rows)]
    return joined(*[case.record() for case in cases])


def joined(*batches: Batch) -> Batch:
    """Return the rows of several batches."""
    return {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}


def cases(count: int, seed: int = 0) -> Iterator[Crafted]:
    """Draw crafted records."""
    draw = Random(seed)
    for number in range(count):
        total = draw.uniform(-18, 18)
        yield Crafted(
            seed=draw.randrange(2**30),
            kind=KINDS[number % len(KINDS)],
            steps=draw.choice((1, 2, 4, 6, 40)),
            inputs=(inputs := draw.uniform(-18, 18)),
            weights=total - inputs,
            spread=draw.choice((0.0, 0.0, 6.0, 16.0)),
            cancels=draw.choice((None, None, -1.0, -3.0, -5.0, -7.0)),
            norm=draw.choice((-3.0, -1e-3, 0.0, 1e-3, 1.0, 6.0)),
        )


def contribution(case: Crafted, engine: str, company: str = "none", **options: Any) -> float:
    """Return the norm of what the record adds to the sum, over C.

    Args:
        case: The record.
        engine: The engine.
        company: What shares the record's micro-batch: "none"; "weightless" rows whose loss is
            multiplied by 0; rows that are "not finite"; "copies" of the record, whose equal
            contributions are divided by their number; a "unit" of several rows.
        options: Other arguments of the clipper.
    """
    model, record, norm = CraftedModel(case.kind), case.record(), case.max_grad_norm()
    alike, rows_per_unit = 1, 1
    if company == "copies":
        alike, record = 3, joined(record, record, record)
    elif company == "unit":
        rest = rows_of(record, slice(None))
        rest["weights"] = -rest["weights"] * (1 + 10.0 ** (case.cancels or -3.0))
        rows_per_unit, record = 2, joined(record, rest)
    elif company != "none":
        others = ordinary(case.kind, 3, case.steps)
        others["scale"][:] = 0.0 if company == "weightless" else math.nan
        record = joined(record, others)
    synthetic = [ordinary(case.kind, rows * rows_per_unit, case.steps) for rows in (4, 3)]
    options |= {"engine": engine, "synthetic": synthetic, "rows_per_unit": rows_per_unit}
    try:
        got = clipped(model, losses_of, [record], norm, **options)
    except RunError:
        # Every copy is crafted, and two rows that differ may end a run.
        if company != "copies":
            raise
        return 0.0
    return float(total_norm(got.gradients)) / norm / alike


def accumulated_among_others(case: Crafted, engine: str) -> Tensor:
    """Return norms of the record among five ordinary rows, in the first two micro-batches."""
    model, norm = CraftedModel(case.kind), case.max_grad_norm()
    with PerExampleClipper(model, losses_of, norm, engine=engine) as clipper:
        clipper.self_check(*[ordinary(case.kind, rows, case.steps) for rows in (4, 3)])
        norms = []
        for number in range(2):
            others = ordinary(case.kind, 5, case.steps, seed=10 * number)
            norms.append(clipper.accumulate(joined(case.record(), others)))
    return torch.cat(norms)
