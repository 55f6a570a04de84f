"""Half precision by autocast: norms, factors and sums stay float32, and the bound holds."""

from operator import attrgetter

import pytest
import torch
from torch import nn

from dpft.devices import PARTS_WITH_PRECISION, float32_precisions
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.algorithms import ENGINES
from dpft.privacy.clipping.engine import STYLES
from tests.privacy.clipping.oracle import Clipped, Records, gpt2, records
from tests.slowness import slow_but

pytestmark = pytest.mark.usefixtures("self_check_once")

NORM = 0.5
FAST = [name for name in ENGINES if name != "loop"]


def clipped_sum(model, batch, dtype, *, engine, clipping="flat", norm=NORM, scale=1.0, weights=1):
    losses = batch.losses(model)

    def compute():
        if dtype is None:
            return losses() * weights
        with torch.autocast("cpu", dtype=dtype):
            return losses() * weights

    model.zero_grad()
    clipper = PerExampleClipper(model, norm, clipping=clipping, engine=engine, loss_scale=scale)
    with clipper:
        norms = clipper.accumulate(compute)
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return Clipped(norms, gradients), clipper.non_finite


def only(batch: Records, row: int | None, without: int | None = None) -> Records:
    """The batch with the labels of one example, or all but one; shapes and rounding stay."""
    labels = batch.labels.clone()
    for index in range(len(labels)):
        if index == without or row not in (None, index):
            labels[index] = -100
    return Records(batch.ids, labels)


@pytest.mark.parametrize("engine", slow_but(("book_keeping", "two_pass"), ENGINES))
def test_bfloat16_norms_are_within_a_percent_and_everything_is_float32(engine):
    model, batch = gpt2(), records()
    exact, _ = clipped_sum(model, batch, None, engine=engine)
    half, _ = clipped_sum(model, batch, torch.bfloat16, engine=engine)
    assert half.norms.dtype == torch.float32
    assert torch.allclose(half.norms, exact.norms, rtol=1e-2)
    assert all(gradient.dtype == torch.float32 for gradient in half.gradients.values())
    assert half.distance(exact) < 2e-2


@pytest.mark.parametrize("clipping", slow_but(("flat",), STYLES))
@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_in_bfloat16_one_example_moves_the_sum_by_at_most_the_sensitivity(engine, clipping):
    model, batch = gpt2(), records()
    options = {"engine": engine, "clipping": clipping}
    everyone, _ = clipped_sum(model, batch, torch.bfloat16, **options)
    for row in range(4):
        rest, _ = clipped_sum(model, only(batch, None, row), torch.bfloat16, **options)
        assert everyone.minus(rest) <= NORM * (1 + 1e-5)
        alone, _ = clipped_sum(model, only(batch, row), torch.bfloat16, **options)
        zero = Clipped(alone.norms, {n: torch.zeros_like(g) for n, g in alone.gradients.items()})
        assert alone.minus(zero) <= NORM * (1 + 1e-5)


@pytest.mark.parametrize("engine", slow_but(("book_keeping", "two_pass"), FAST))
def test_engines_agree_in_bfloat16_to_float32_rounding(engine):
    """All contract the same half-precision factors, in float32."""
    model, batch = gpt2(), records()
    expected, _ = clipped_sum(model, batch, torch.bfloat16, engine="instantiate")
    got, _ = clipped_sum(model, batch, torch.bfloat16, engine=engine)
    assert torch.allclose(got.norms, expected.norms, rtol=1e-5)
    assert got.distance(expected) <= 1e-5


@pytest.mark.parametrize("engine", slow_but(("book_keeping", "two_pass"), ENGINES))
def test_float16_with_a_loss_scale_gives_the_unscaled_sum(engine):
    model, batch = gpt2(), records()
    exact, _ = clipped_sum(model, batch, None, engine=engine)
    half, _ = clipped_sum(model, batch, torch.float16, engine=engine, scale=256.0)
    assert torch.allclose(half.norms, exact.norms, rtol=1e-2)
    assert half.distance(exact) < 1e-2


def test_a_loss_scale_saves_gradients_that_float16_would_flush_to_zero():
    model, batch = gpt2(), records()
    exact, _ = clipped_sum(model, batch, None, engine="auto", weights=1e-7)
    lost, _ = clipped_sum(model, batch, torch.float16, engine="auto", weights=1e-7)
    saved, _ = clipped_sum(model, batch, torch.float16, engine="auto", weights=1e-7, scale=2.0**20)
    assert lost.distance(exact) > 0.1 > 0.01 > saved.distance(exact)


@pytest.mark.parametrize("engine", slow_but(("book_keeping", "two_pass"), FAST))
def test_an_example_that_overflows_in_float16_contributes_zero_and_is_counted(engine):
    model, batch = gpt2(), records()
    weights = torch.tensor([1.0, 1e7, 1.0, 1.0])
    got, left_out = clipped_sum(
        model, batch, torch.float16, engine=engine, scale=64.0, weights=weights
    )
    rest, _ = clipped_sum(model, only(batch, None, 1), torch.float16, engine=engine, scale=64.0)
    assert left_out == 1 and got.norms[1] == 0
    assert got.distance(rest) <= 1e-6


def test_a_layers_own_autocast_dtypes_are_kept():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    inputs, seen = torch.randn(3, 5, 4), []
    for module in model:
        module.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(inputs)
        with PerExampleClipper(model, NORM):
            model(inputs)
    assert seen[:3] == seen[-3:]


def chosen_everywhere(precision):
    for part in PARTS_WITH_PRECISION:
        attrgetter(part)(torch).fp32_precision = precision


WAYS = {
    "by default": lambda: None,
    "for products": lambda: torch.set_float32_matmul_precision("high"),
    "for bfloat16 too": lambda: torch.set_float32_matmul_precision("medium"),
    "by CUDA's flag": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "anew": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "for all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "everywhere": lambda: chosen_everywhere("tf32"),
}


@pytest.fixture
def as_torch_begins():
    def begin():
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True
        chosen_everywhere("none")
        torch.backends.cudnn.allow_tf32 = True

    before = float32_precisions()
    begin()
    yield
    begin()
    for part, precision in before.items():
        attrgetter(part)(torch).fp32_precision = precision


@pytest.mark.parametrize("way", WAYS)
def test_trust_rule_2_norms_and_sums_keep_float32_whole_whatever_the_caller_chose(
    way, as_torch_begins
):
    """TF32 has ten bits: one record would move the sum by up to 1.001 of the clipping norm."""
    WAYS[way]()
    chosen, found = float32_precisions(), []
    assert not {*chosen.values()} <= {"ieee", "none"}
    layer = nn.Linear(3, 2)
    with PerExampleClipper(layer, 1.0) as clipper:
        engine = clipper._engine
        adds = engine.accumulate

        def accumulate(*args):
            found.append(float32_precisions())
            return adds(*args)

        engine.accumulate = accumulate
        clipper.accumulate(lambda: layer(torch.eye(3)).sum(1))
    assert [{*each.values()} for each in found] == [{"ieee"}]
    assert float32_precisions() == chosen
