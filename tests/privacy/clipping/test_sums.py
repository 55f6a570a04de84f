import math

import pytest
import torch
from torch import Tensor, nn

from dpft.errors import InputError
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.algorithms import ENGINES
from dpft.privacy.clipping.engine import CompensatedSums, rounding_headroom
from tests.slowness import slow_but

pytestmark = pytest.mark.usefixtures("self_check_once")

WIDTH, OUTPUTS = 16, 8


def step_sum(records: Tensor, micro_batch: int, **options) -> Tensor:
    """The clipped sum of records (n, t, WIDTH), each output's gradient the sum over t of one."""
    layer = nn.Linear(WIDTH, OUTPUTS, bias=False)
    with PerExampleClipper(layer, **options) as clipper:
        for rows in records.split(micro_batch):
            clipper.accumulate(lambda rows=rows: layer(rows).sum((1, 2)))
    return layer.weight.grad.double()


def records_whose_additions_conspire(count: int, micro_batch: int) -> Tensor:
    """Nearly equal records, in order, for float32 sums of ``micro_batch`` after ``micro_batch``.

    In units of the total's last place, each micro-batch adds a whole number and 0.49, which
    rounding drops; with one more record in front each adds a whole number and 0.99, which
    rounding lifts to 1. So each addition moves the sum by half a unit of a total that grows.
    """
    base = 2.0**-3
    values: list[float] = []
    for number in range(count // micro_batch):
        unit = 2.0 ** (math.floor(math.log2((number + 1) * micro_batch * base)) - 23)
        first = base + 0.5 * (number % 2) * unit
        last = base + (0.49, 0.99)[number % 2] * unit
        values += [first, *[base] * (micro_batch - 2), last]
    return torch.tensor(values)[:, None, None].expand(count, 1, WIDTH).contiguous()


@pytest.mark.parametrize("count", slow_but((1024,), (1024, 8192)))
@pytest.mark.parametrize("micro_batch", [2, 16])
@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ("two_pass", "book_keeping")))
def test_trust_rule_2_one_record_moves_the_sum_by_at_most_c_however_the_others_round(
    engine, micro_batch, count
):
    """Plain float32 additions of 1024 records, two at a time, were moved by 1.0098 C."""
    records = records_whose_additions_conspire(count, micro_batch)
    headroom = rounding_headroom(count)
    norm = float(records.double().norm(dim=2).max()) * OUTPUTS**0.5 / (1 - headroom) * (1 + 1e-5)
    options = {"max_grad_norm": norm, "headroom": headroom, "engine": engine}
    without = step_sum(records, micro_batch, **options)
    with_one_more = step_sum(torch.cat([records[:1], records]), micro_batch, **options)
    moved = float((with_one_more - without).norm())
    assert 0.98 * norm < moved <= norm * (1 + 1e-7)


@pytest.mark.parametrize("micro_batch", slow_but((16, 64), (1, 2, 16, 64)))
def test_trust_rule_2_holds_for_aligned_records_of_many_positions(micro_batch):
    """Each of 512 records has norm C, spread over 50 positions that all point one way."""
    g = torch.Generator().manual_seed(0)
    records = 1 + 0.1 * torch.rand(512, 50, WIDTH, generator=g)
    options = {"max_grad_norm": 1.0, "headroom": rounding_headroom(512), "engine": "two_pass"}
    without = step_sum(records, micro_batch, **options)
    with_one_more = step_sum(torch.cat([records[:1], records]), micro_batch, **options)
    moved = float((with_one_more - without).norm())
    assert 0.99 < moved <= 1 + 1e-7


class Rows(nn.Module):
    """An embedding whose row 1 every position uses; its gradient is what is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Embedding(3, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        ids = torch.ones(values.shape[:2], dtype=torch.long)
        return (self.layer(ids) * values).sum((1, 2))


class Shift(nn.Module):
    """A bias, whose gradient is the sum over positions of what is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, WIDTH)
        self.layer.weight.requires_grad_(False)

    def forward(self, values: Tensor) -> Tensor:
        return (self.layer(torch.zeros(*values.shape[:2], 1)) * values).sum((1, 2))


class Dense(nn.Module):
    """A linear layer, each output's gradient the sum over positions of what is given."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, outputs, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        return self.layer(values).sum((1, 2)) / self.layer.out_features**0.5


def records_that_conspire_inside_a_micro_batch(
    count: int, micro_batch: int, positions: int
) -> Tensor:
    """Records whose own additions conspire, where positions are added one after the other.

    Half of a micro-batch adds up to just below a power of two; the rest adds 1.02 units in the
    last place at a time, each rounded to 1. With one more record in front the last large one comes
    before them, the unit doubles, and each is rounded up to 2.
    """
    half = micro_batch // 2
    unit = 2.0 ** (math.log2(half) - 1 - 23)
    large = torch.zeros(positions)
    large[0] = 1 - 2.0**-10
    small = torch.full((positions,), 1.02 * unit)
    one = [large] * half + [small] * (micro_batch - half - 1) + [large]
    values = torch.stack(one * (count // micro_batch))
    return values[:, :, None].expand(-1, -1, WIDTH).contiguous()


CRAFTED = {
    "embedding": (Rows, 32, 100),
    "embedding, one position": (Rows, 64, 1),
    "bias": (Shift, 256, 1),
    "thin dense": (lambda: Dense(1), 256, 1),
    "small dense": (lambda: Dense(4), 64, 100),
    "dense": (lambda: Dense(300), 128, 1),
    "dense, positions": (lambda: Dense(300), 32, 4),
}


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ("two_pass", "book_keeping")))
@pytest.mark.parametrize("kind", CRAFTED)
def test_trust_rule_2_holds_for_records_whose_sums_conspire_inside_a_micro_batch(kind, engine):
    """Sums in float32 of an embedding's rows were moved by 1.045 C with these 1024 records."""
    make, micro_batch, positions = CRAFTED[kind]
    records = records_that_conspire_inside_a_micro_batch(512, micro_batch, positions)
    headroom = rounding_headroom(512)
    norm = float(records.double().sum(1).norm(dim=1).max()) / (1 - headroom) * (1 + 1e-5)

    def total(rows_of_all: Tensor) -> Tensor:
        model = make()
        options = {"max_grad_norm": norm, "headroom": headroom, "engine": engine}
        with PerExampleClipper(model, **options) as clipper:
            for rows in rows_of_all.split(micro_batch):
                clipper.accumulate(lambda rows=rows: model(rows))
        trained = [p.grad.double().flatten() for p in model.parameters() if p.requires_grad]
        return torch.cat(trained)

    moved = float((total(torch.cat([records[-1:], records])) - total(records)).norm())
    assert 0.98 * norm < moved <= norm * (1 + 1e-7)


@pytest.mark.parametrize("engine", slow_but(("book_keeping", "two_pass"), ENGINES))
def test_micro_batches_add_up_to_the_exact_sum_rounded_once(engine):
    g = torch.Generator().manual_seed(0)
    records = 1 + torch.rand(300, 1, WIDTH, generator=g)
    exact = records.double().sum((0, 1)).expand(OUTPUTS, -1)
    got = step_sum(records, 1, max_grad_norm=1e3, engine=engine)
    assert ((got - exact).abs() <= 0.5001 * torch.finfo(torch.float32).eps * 512).all()


def test_what_was_lost_is_forgotten_where_the_gradient_was_changed_or_cleared():
    kept = CompensatedSums()

    def add(total, value):
        total = kept.add("weight", total, torch.full((3,), value))
        kept.flush()
        return total

    total = add(add(None, 1.0), 2.0**-25)
    assert add(total.zero_(), 0.0).tolist() == [0, 0, 0]
    assert add(add(add(None, 1.0), 2.0**-25).clone(), 2.0**-25).tolist() == [1, 1, 1]
    assert add(add(None, 1.0), 2.0**-25).tolist() == [1, 1, 1]


def test_a_sum_of_another_layout_is_compensated_too():
    kept, total = CompensatedSums(), torch.ones(3, 4)
    for _ in range(4):
        total = kept.add("weight", total, torch.full((4, 3), 2.0**-25).t())
        kept.flush()
    assert (total == 1 + 2.0**-23).all()


def test_the_headroom_is_small_grows_with_the_batch_and_shrinks_with_precision():
    assert 0 < rounding_headroom(16) < 2e-4 < rounding_headroom(1024) < 2.6e-3
    assert rounding_headroom(8192) < 1.8e-2
    assert rounding_headroom(8192, torch.float64) < 1e-10


def test_a_batch_whose_rounding_would_take_half_of_the_bound_is_refused():
    with pytest.raises(InputError, match="`headroom` must be from 0 to 0.5"):
        PerExampleClipper(nn.Linear(2, 2), 1.0, headroom=rounding_headroom(4e6))


def test_the_headroom_is_of_the_28_roundings_that_crafted_records_need_and_of_4_more():
    """``rounding_headroom`` says what the 32 are; n is 1024 and the margin of a Poisson draw."""
    most = 1024 + 8 * 32 + 32
    assert rounding_headroom(1024) == pytest.approx(32 * 2.0**-24 * most, rel=1e-12)
