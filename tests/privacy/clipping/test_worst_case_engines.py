"""No crafted record contributes more than C to what ``accumulate`` adds, on every engine.

The model's weights are zero and its loss is linear, so that the crafted operands are exactly the
inputs and output gradients of its layers, whatever they are.
"""

import itertools
import os
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from dpft.privacy.clipping import ClippingChoice, PerExampleClipper
from dpft.privacy.clipping.engines import MicroBatch
from dpft.privacy.clipping.products import Lookup
from dpft.privacy.clipping.sums import rounding_headroom
from tests.privacy.clipping.crafted import crafted, exact_lookup, exact_outer, norm
from tests.slowness import slow_but

MICRO_BATCHES = int(os.environ.get("DPFT_FUZZ_RECORDS", "576")) // 24
"""Micro-batches of each of the eight settings; each has three records on average."""
WIDTH = 24
ENGINES = ("book_keeping", "rows")
PRECISIONS = {
    "float32": (torch.float32, None),
    "float64": (torch.float64, None),
    "bfloat16": (torch.float32, torch.bfloat16),
    "float16": (torch.float32, torch.float16),
}
MAKERS = ("normal", "aligned", "rounding")
STYLES = ("flat", "automatic", "automatic_v", "per_layer")
ROUNDING_OF_CHECK = 1 + 2.0**-48
Batch = dict[str, Tensor]


class LinearLoss(nn.Module):
    """A linear layer and an embedding, of two weights or of one."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WIDTH, WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)
        if tied:
            self.linear.weight = self.embedding.weight

    def forward(self, inputs: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and embedded ids, each of shape (b, t, width)."""
        return self.linear(inputs), self.embedding(ids)


def losses_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return losses whose gradients are the batch's ``left`` and ``values``."""
    outputs, embedded = model(batch["inputs"], batch["ids"])
    losses = (outputs * batch["left"]).sum((1, 2)) + (embedded * batch["values"]).sum((1, 2))
    return losses.to(batch["left"].dtype)


def make_batch(units: int, positions: int, dtype: torch.dtype, generator: torch.Generator) -> Batch:
    """Return crafted operands; those of the embedding may cancel the linear layer's."""
    shape = (positions, WIDTH)
    batch = {name: crafted(units, shape, dtype, generator) for name in ("inputs", "left", "values")}
    batch["ids"] = torch.randint(0, WIDTH, (units, positions), generator=generator)
    if torch.randint(0, 3, (), generator=generator) == 0:
        batch["left"] = -torch.nn.functional.one_hot(batch["ids"], WIDTH).to(dtype)
        batch["values"] = batch["inputs"].clone()
    return batch


@cache
def prepared(
    engine: str, precision: str, style: str, tied: bool
) -> tuple[nn.Module, ClippingChoice]:
    """Return a model with weights of zero, and the choice of a self-check with other weights."""
    dtype, autocast = PRECISIONS[precision]
    torch.manual_seed(3)
    model = LinearLoss(tied=tied).to(dtype)
    batch = {name: torch.randn(3, 4, WIDTH, dtype=dtype) for name in ("inputs", "left", "values")}
    batch["ids"] = torch.randint(0, WIDTH, (3, 4))
    with PerExampleClipper(
        model, losses_of, 1.0, engine=engine, clipping=style, autocast=autocast
    ) as clipper:
        choice = clipper.self_check(batch)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model, choice


def added(model: nn.Module) -> list[float]:
    """Return the entries of all gradients, and clear them."""
    entries: list[float] = []
    for parameter in model.parameters():
        if parameter.grad is not None:
            entries += parameter.grad.double().flatten().tolist()
            parameter.grad = None
    return entries


def take(batch: Batch, unit: int) -> Batch:
    return {name: values[unit : unit + 1] for name, values in batch.items()}


SETTINGS = list(itertools.product(ENGINES, PRECISIONS))


def exact_weight_norm(batch: Batch, unit: int, tied: bool, precision: str, scale: float) -> float:
    """Return the norm of one unit's gradients of the weights, computed without rounding."""
    operands = {name: values[unit] for name, values in batch.items()}
    _, autocast = PRECISIONS[precision]
    if autocast is not None:  # a linear layer receives these, scaled and rounded
        operands["inputs"] = operands["inputs"].to(autocast)
        operands["left"] = (operands["left"] * scale).to(autocast).double() / scale
    linear = exact_outer(operands["left"].to(batch["left"].dtype), operands["inputs"])
    lookup = Lookup(batch["ids"], batch["values"], WIDTH)
    embedding = exact_lookup(lookup, unit)
    if not tied:
        return norm(linear + embedding)
    return norm(a + b for a, b in zip(linear, embedding, strict=True))


@pytest.mark.parametrize(("engine", "precision"), slow_but([("book_keeping", "float32")], SETTINGS))
def test_no_record_adds_more_than_the_clipping_norm(engine: str, precision: str) -> None:
    dtype, autocast = PRECISIONS[precision]
    generator = torch.Generator().manual_seed(10 * len(engine) + len(precision))
    for number in range(MICRO_BATCHES):
        style, tied = STYLES[number % 4], number % 3 == 0
        model, choice = prepared(engine, precision, style, tied)
        units = 2 + int(torch.randint(0, 3, (), generator=generator))
        positions = 1 + int(torch.randint(0, 10, (), generator=generator))
        batch = make_batch(units, positions, dtype, generator)
        max_grad_norm = 10.0 ** (6 * float(torch.rand((), generator=generator)) - 6)
        scale = 2.0**10 if precision == "float16" else 1.0
        with PerExampleClipper(
            model, losses_of, max_grad_norm, clipping=style, autocast=autocast, loss_scale=scale,
            choice=choice,
        ) as clipper:  # fmt: skip
            for unit in range(units):
                clipper.accumulate(take(batch, unit))
                assert norm(added(model)) <= max_grad_norm * ROUNDING_OF_CHECK
            # Crafted records do not end a run, and others do not gain from a full micro-batch.
            clipper.accumulate(batch)
            assert norm(added(model)) <= units * max_grad_norm * (1 + 1e-6)
            if engine == "rows" or style == "per_layer":
                continue  # the gradient that is added has the rounding of autograd's own sums
            clipped = clipper._engine.run(MicroBatch(batch, units, units), clipper.style)
            factors = clipped.factors[0]
            for unit in factors.nonzero().flatten().tolist():
                exact = exact_weight_norm(batch, unit, tied, precision, scale)
                assert exact * float(factors[unit]) <= max_grad_norm * ROUNDING_OF_CHECK


@pytest.mark.parametrize(
    ("engine", "maker"),
    slow_but([("book_keeping", "rounding")], itertools.product(ENGINES, MAKERS)),
)
def test_a_step_changes_by_at_most_the_sensitivity_if_a_record_is_removed(
    engine: str, maker: str
) -> None:
    """All later records move to other micro-batches, whose sums are rounded differently."""
    records, micro_batch, positions = 90, 8, 3
    model, choice = prepared(engine, "float32", "flat", False)
    generator = torch.Generator().manual_seed(5)
    batch = make_batch(records, positions, torch.float32, generator)
    for name in ("inputs", "left", "values"):
        batch[name] = torch.randn(records, positions, WIDTH, generator=generator)
        if maker != "normal":
            batch[name][:] = batch[name][:1]
        if maker == "rounding":
            batch[name] *= 1 + 2.0**-12 * torch.rand(records, 1, 1, generator=generator)
    sums = []
    for removed in (0, 1):
        headroom = rounding_headroom(records)
        with PerExampleClipper(model, losses_of, 0.5, headroom=headroom, choice=choice) as clipper:
            for start in range(removed, records, micro_batch):
                clipper.accumulate({k: v[start : start + micro_batch] for k, v in batch.items()})
        sums.append(added(model))
    change = norm(a - b for a, b in zip(*sums, strict=True))
    assert 0.45 < change <= clipper.sensitivity


@pytest.mark.slow
def test_additions_of_later_units_do_not_lengthen_a_contribution() -> None:
    """Each addition of the engine ``rows`` rounds up all that was added before it."""
    model, choice = prepared("rows", "float32", "flat", False)
    units = 400
    batch = {name: torch.zeros(units, 1, WIDTH) for name in ("inputs", "left", "values")}
    batch["ids"] = torch.zeros(units, 1, dtype=torch.int64)
    batch["inputs"][:, 0, 0] = 2.0**10  # so that the bias has a share of 2^-20
    batch["left"][:, 0, 0] = 1.01 * 2.0**-10
    batch["left"][0, 0, 0] = 2.0**14
    with PerExampleClipper(model, losses_of, 1e9, choice=choice) as clipper:
        clipped = clipper._engine.run(MicroBatch(batch, units, units), clipper.style)
        sums = dict(clipper._engine.sums(clipped))
    total = norm(sums["linear.weight"].double().flatten().tolist())
    longest = float((clipped.factors * clipped.bounds).sum())
    assert longest * (1 - 4e-5) <= total <= longest


def test_sums_of_many_alike_layers_keep_what_each_addition_loses() -> None:
    """Their sums come from one product, and are added in several blocks."""
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(torch.nn.Linear(364, 364, bias=False) for _ in range(2))

    def losses_of(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return sum((layer(batch["x"]) * batch["y"]).sum(1) for layer in model)

    x, y = torch.zeros(1, 364), torch.zeros(1, 364)
    x[:, 0] = y[:, 0] = 1
    with PerExampleClipper(layers, losses_of, 4.0) as clipper:
        clipper.self_check({"x": torch.randn(3, 364), "y": torch.randn(3, 364)})
        clipper.accumulate({"x": x, "y": y})
        first = [float(p.grad[0, 0]) for p in layers.parameters() if p.grad is not None]
        for _ in range(8):
            clipper.accumulate({"x": x, "y": y * 2.0**-26})
    last = [float(p.grad[0, 0]) for p in layers.parameters() if p.grad is not None]
    assert len(last) == 2
    assert all(b - a > 6 * 2.0**-26 for a, b in zip(first, last, strict=True))
