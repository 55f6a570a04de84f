"""What every engine refuses, and how norms become factors."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.algorithms import ENGINES
from dpft.privacy.clipping.choices import LOSS_SCALES, Tuning
from dpft.privacy.clipping.engine import (
    STYLES,
    CompensatedSums,
    Engine,
    check_is_tensor,
    check_losses,
    check_units,
    clipping_style,
    in_range,
    rounding_headroom,
)
from tests.slowness import slow_but

pytestmark = pytest.mark.usefixtures("self_check_once")


class NoEngine(Engine):
    """The parts that all engines share."""

    def install(self):
        raise AssertionError("nothing is installed here")

    remove = accumulate = compute = install


def engine_of(model, *, clipping="flat", groups=1, numbers=None, **tuning) -> NoEngine:
    style = clipping_style(clipping, max_grad_norm=1.0, groups=groups)
    return NoEngine(model, style, groups=numbers, tuning=Tuning(**tuning))


def test_a_model_without_a_trainable_parameter_is_refused():
    with pytest.raises(InputError, match="must have a trainable parameter, got none"):
        engine_of(nn.Linear(2, 2).requires_grad_(False))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_trainable_parameter_in_half_precision_is_refused_by_name_and_a_frozen_one_is_not(dtype):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=dtype))
    with pytest.raises(InputError, match=rf"1\.weight must be float32 or float64, got {dtype}"):
        engine_of(model)
    model[1].requires_grad_(False)
    assert engine_of(model).trainable.names == ("0.weight", "0.bias")


def freeze(model):
    model[0].bias.requires_grad_(False)


def unfreeze(model):
    model[1].bias.requires_grad_(True)


def replace(model):
    model[0].bias = nn.Parameter(torch.zeros(3))


@pytest.mark.parametrize("change", [freeze, unfreeze, replace])
def test_what_trains_must_stay_what_it_was(change):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].requires_grad_(False)
    engine = engine_of(model)
    engine.check_unchanged()
    change(model)
    with pytest.raises(RunError, match=r"\d\.bias was frozen, unfrozen or replaced"):
        engine.check_unchanged()


def test_norms_of_unscaled_losses_decide_factors_for_scaled_gradients():
    engine = engine_of(nn.Linear(2, 2), loss_scale=8.0)
    # Norms 4 and 0.5 of the losses themselves, 32 and 4 of the scaled ones.
    squares = torch.tensor([[32.0**2, 4.0**2]], dtype=torch.float64)
    decision = engine.decide_clipping(squares, torch.tensor([True, True]))
    assert decision.everyone_is_finite and decision.finite.tolist() == [True, True]
    assert torch.equal(decision.norms, torch.tensor([4.0, 0.5]))
    # min(1, 1 / norm), and the scale divided out.
    assert torch.allclose(decision.factors, torch.tensor([[0.25 / 8, 1 / 8]]), rtol=1e-5)


def test_each_group_has_a_factor_and_all_have_one_norm():
    model = nn.Linear(2, 2)
    engine = engine_of(model, clipping="per_layer", groups=2, numbers={"weight": 0, "bias": 1})
    squares = engine.new_squares(1) + torch.tensor([[9.0], [16.0]])
    decision = engine.decide_clipping(squares, torch.tensor([True]))
    # Each of two groups is clipped at 1 / sqrt(2).
    assert torch.allclose(decision.factors, torch.tensor([[1 / 3], [1 / 4]]) / 2**0.5, rtol=1e-5)
    assert torch.equal(decision.norms, torch.tensor([5.0]))


def test_what_is_not_finite_takes_no_part_and_spoils_no_other():
    engine = engine_of(nn.Linear(2, 2))
    squares = torch.tensor([[4.0, float("nan"), float("inf"), 4.0, -1e-30]], dtype=torch.float64)
    finite = torch.tensor([True, True, True, False, True])
    decision = engine.decide_clipping(squares, finite)
    assert decision.finite.tolist() == [True, False, False, False, True]
    assert not decision.everyone_is_finite and bool(decision.factors.isfinite().all())
    assert decision.norms.tolist() == [2.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("scale", [0.0, 0.5, 2 * LOSS_SCALES[1], float("nan"), float("inf")])
def test_a_loss_scale_out_of_range_is_refused(scale):
    with pytest.raises(InputError, match="`loss_scale` must be from 1 to"):
        Tuning(loss_scale=scale)


def test_a_negative_memory_is_refused():
    with pytest.raises(InputError, match="`memory_mb` must not be negative, got -1"):
        Tuning(memory_mb=-1)


def test_losses_must_be_one_per_example_with_a_graph():
    with pytest.raises(InputError, match=r"tensor of shape \(b,\), one per example, got float"):
        check_is_tensor(0.5)
    with pytest.raises(InputError, match="do not reduce over the batch"):
        check_losses(torch.ones((), requires_grad=True))
    with pytest.raises(InputError, match="got losses without a graph"):
        check_losses(torch.ones(3))
    check_losses(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize(
    "units", [torch.ones(3), [0, 1, 2], torch.arange(2), torch.ones(3, 1).int()]
)
def test_units_must_be_one_whole_number_a_row(units):
    with pytest.raises(InputError, match="one unit per row"):
        check_units(units, 3)
    check_units(torch.arange(3), 3)
    check_units(torch.tensor([4, 2, 2, 4]), 2)


NORMS = torch.tensor([0.0, 1.0, 4.0, 8.0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flat", [1.0, 1.0, 0.5, 0.25]),
        ("automatic", [2 / 0.01, 2 / 1.01, 2 / 4.01, 2 / 8.01]),
        ("automatic_v", [0.0, 2.0, 0.5, 0.25]),
    ],
)
def test_factors_are_the_styles_closed_form(name, expected):
    factors = clipping_style(name, max_grad_norm=2.0).factors(NORMS)
    assert torch.allclose(factors, torch.tensor(expected), rtol=1e-5)


def test_per_layer_clips_each_of_k_groups_at_c_over_root_k():
    style = clipping_style("per_layer", max_grad_norm=2.0, groups=4)
    factors = style.factors(torch.stack([NORMS, 2 * NORMS, NORMS, NORMS]))
    assert torch.allclose(factors[0], torch.tensor([1.0, 1.0, 0.25, 0.125]), rtol=1e-5)
    assert torch.allclose(factors[1], torch.tensor([1.0, 0.5, 0.125, 0.0625]), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", STYLES)
def test_a_clipped_norm_never_exceeds_the_sensitivity(name, dtype):
    style = clipping_style(name, max_grad_norm=0.1)
    norms = torch.logspace(-37, 18, 100_001, dtype=dtype)
    scaled = norms * style.factors(norms)
    assert (scaled <= style.sensitivity).all() and scaled.isfinite().all()


@given(
    groups=st.integers(1, 40),
    max_grad_norm=st.floats(1e-3, 1e3),
    norms=st.lists(st.floats(0, 1e15), min_size=40, max_size=40),
)
def test_all_groups_together_never_exceed_the_sensitivity(groups, max_grad_norm, norms):
    style = clipping_style("per_layer", max_grad_norm=max_grad_norm, groups=groups)
    column = torch.tensor(norms[:groups], dtype=torch.float64)[:, None]
    scaled = (column * style.factors(column)).square().sum().sqrt()
    assert scaled <= style.sensitivity * (1 + 1e-12)


@pytest.mark.parametrize("name", STYLES)
def test_every_style_states_its_sensitivity(name):
    assert clipping_style(name, max_grad_norm=0.3, groups=7).sensitivity == 0.3


def test_automatic_v_takes_a_norm_in_which_squares_were_lost_for_zero():
    """A million entries of 2.6e-23, whose float32 squares are 0, hold a norm of 2.6e-20."""
    entries = torch.full((1_000_001,), 2.6e-23)
    entries[0] = 4e-23
    norm = entries.square().sum().sqrt()[None]
    assert 0 < norm < 1e-22
    assert clipping_style("automatic_v", max_grad_norm=1.0).factors(norm) == 0


def test_only_per_layer_has_groups():
    assert [clipping_style(n, max_grad_norm=1.0, groups=5).groups for n in STYLES] == [1, 1, 1, 5]


def test_an_unknown_style_is_refused_with_the_known_ones():
    known = "flat, automatic, automatic_v, per_layer"
    with pytest.raises(InputError, match=rf"`clipping` must be one of {known}, got 'foo'"):
        clipping_style("foo", max_grad_norm=1.0)


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("groups", [1, 5])
def test_every_style_leaves_the_headroom_for_rounding_and_no_more(name, groups):
    style = clipping_style(name, max_grad_norm=2.0, groups=groups, headroom=0.25)
    norms = torch.full((style.groups, 1), 1e9, dtype=torch.float64)
    moved = float((norms * style.factors(norms)).norm())
    assert 1.5 * (1 - 1e-9) < moved <= 1.5


def test_a_factor_that_lost_digits_becomes_0_and_one_that_is_too_large_is_lowered():
    """2^-149, the least number, stands for all from half of it to one and a half times it."""
    tiny = torch.finfo(torch.float32).tiny
    factors = torch.tensor([2.0**-149, tiny / 2, tiny, 1.0, 1e30])
    *lost, least, whole, largest = in_range(factors).tolist()
    assert lost == [0, 0] and (least, whole) == (tiny, 1)
    assert largest == pytest.approx(1e12, rel=2e-2)


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
