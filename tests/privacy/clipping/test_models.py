"""A GPT-2 in every precision and memory mode: padding, order, dropout, checkpointing, adapters."""

import gc
from itertools import product
from operator import attrgetter

import peft
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpft.devices import PARTS_WITH_PRECISION, float32_precisions
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.models import SYNTHETIC, Records, gpt2, losses_of, records
from tests.privacy.clipping.oracle import (
    ENGINES,
    TOLERANCE,
    Clipped,
    UnitGradients,
    assert_exact,
    batch_gradients,
    clipped,
    distance,
    gradients_of,
    rows_of,
    unit_gradients,
)
from tests.slowness import slow_but

NORM = 4.0
BATCH = records((7, 12, 3, 9, 5))


def sums(model: nn.Module, *batches: Records, engine: str = "auto", **options) -> Clipped:
    options = {"synthetic": SYNTHETIC} | options
    return clipped(model, losses_of, batches or [BATCH], NORM, engine=engine, **options)


def definition(model: nn.Module, batch: Records = BATCH) -> UnitGradients:
    """Execute each record separately and without padding."""
    return unit_gradients(model, losses_of, batch, alone=batch.alone())


@pytest.mark.parametrize(
    ("engine", "tied", "dtype"),
    slow_but(
        [("rows", False, torch.float64)],
        product(ENGINES, [True, False], [torch.float32, torch.float64]),
    ),
)
def test_norms_and_sum_are_those_of_records_without_padding(engine, tied, dtype):
    model = gpt2(tied=tied, dtype=dtype)
    expected = definition(model)
    assert expected.norms.min() < NORM < expected.norms.max()
    assert distance(sums(model, engine=engine), expected, NORM) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_as_many_records_as_positions_is_no_special_case(engine):
    model, batch = gpt2(), records((6, 6, 5, 6, 4, 6))
    assert distance(sums(model, batch, engine=engine), definition(model, batch), NORM) <= TOLERANCE


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_trust_rule_3_neither_padding_nor_order_nor_micro_batches_change_the_sum(engine):
    model, expected = gpt2(), definition(gpt2())
    wide = records((7, 12, 3, 9, 5), width=20)
    assert distance(sums(model, wide, engine=engine), expected, NORM) <= TOLERANCE
    parts = [BATCH.take(rows) for rows in ([3, 0], [4], [2, 1])]
    got = sums(model, *parts, engine=engine)
    order = [3, 0, 4, 2, 1]
    moved = UnitGradients([expected.gradients[k] for k in order], expected.losses)
    assert distance(got, moved, NORM) <= TOLERANCE


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_frozen_parameters_get_no_gradient_and_no_share_of_the_norm(engine):
    model = gpt2()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith("bias")
    assert distance(sums(model, engine=engine), definition(model), NORM) <= TOLERANCE
    assert model.transformer.wte.weight.grad is None


@pytest.mark.slow
def test_dropout_masks_are_those_that_the_model_draws():
    model = gpt2(dropout=0.3)
    expected = batch_gradients(model, losses_of, BATCH, seed=5)
    assert distance(sums(model, seed=5), expected, NORM) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "use_reentrant", "dropout"), list(product(ENGINES, [True, False], [0.0, 0.2]))
)
def test_gradient_checkpointing_changes_nothing(engine, use_reentrant, dropout):
    model = gpt2(dropout=dropout)
    expected = sums(model, engine=engine, seed=5)
    model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    got = sums(model, engine=engine, seed=5)
    assert torch.allclose(got.norms, expected.norms, rtol=1e-5)
    assert got.minus(expected) <= 1e-5 * NORM


FORMATS = {torch.bfloat16: 1.0, torch.float16: 256.0}


def without(row: int | None, only: int | None = None) -> Records:
    """Return the batch with labels of some records removed, so that shapes and rounding stay."""
    batch = rows_of(BATCH, slice(None))
    for index in range(len(batch.ids)):
        if index == row or only not in (None, index):
            batch.labels[index] = -100
    return batch


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "dtype"), list(product(ENGINES, FORMATS)))
def test_in_half_precision_everything_is_float32_and_norms_are_within_a_percent(engine, dtype):
    model, options = gpt2(), {"autocast": dtype, "loss_scale": FORMATS[dtype]}
    exact, half = sums(model, engine=engine), sums(model, engine=engine, **options)
    assert half.norms.dtype == torch.float32
    assert torch.allclose(half.norms, exact.norms, rtol=2e-2)
    assert all(gradient.dtype == torch.float32 for gradient in half.gradients.values())
    assert half.minus(exact) < 2e-2 * float(exact.norms.clamp(max=NORM).sum())


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "dtype"), list(product(ENGINES, FORMATS)))
def test_in_half_precision_one_record_moves_the_sum_by_at_most_the_sensitivity(engine, dtype):
    model, options = gpt2(), {"autocast": dtype, "loss_scale": FORMATS[dtype], "engine": engine}
    everyone = sums(model, **options)
    for row in (1, 2):
        rest = sums(model, without(row), **options)
        assert everyone.minus(rest) <= NORM * (1 + 1e-6)
        alone = sums(model, without(None, only=row), **options)
        nothing = {n: torch.zeros_like(g) for n, g in alone.gradients.items()}
        assert alone.minus(Clipped(alone.norms, nothing)) <= NORM


def scaled_losses(model: nn.Module, batch: Records) -> Tensor:
    return losses_of(model, batch) * 1e-7


@pytest.mark.slow
def test_a_loss_scale_saves_gradients_that_float16_would_flush_to_zero():
    model = gpt2()

    def small(**options) -> Clipped:
        return clipped(model, scaled_losses, [BATCH], NORM, synthetic=SYNTHETIC, **options)

    exact, saved = small(), small(autocast=torch.float16, loss_scale=2.0**20)
    assert saved.minus(exact) < 1e-2 * float(exact.norms.sum())


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_that_overflows_in_float16_contributes_zero_and_is_counted(engine):
    model, options = gpt2(), {"autocast": torch.float16, "loss_scale": 64.0, "engine": engine}
    batch = rows_of(BATCH, slice(None))
    batch.weights[1] = 1e7
    got, rest = sums(model, batch, **options), sums(model, without(1), **options)
    assert got.non_finite == 1 and got.norms[1] == 0
    assert got.minus(rest) <= 1e-5 * NORM


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_scale_may_be_a_function_and_changes_no_digit_that_matters(engine):
    model, scales = gpt2(), iter([1.0, 4096.0, 2.0] * 40)
    got = sums(model, engine=engine, loss_scale=lambda: next(scales))
    assert distance(got, definition(model), NORM) <= TOLERANCE


def test_autocast_reaches_the_losses_and_is_off_in_the_float32_self_check():
    layer, seen = nn.Linear(3, 2), []

    def losses(model: nn.Module, batch: Tensor) -> Tensor:
        outputs = model(batch)
        seen.append(outputs.dtype)
        return outputs.float().square().sum(1)

    inputs = torch.randn(4, 3)
    with PerExampleClipper(layer, losses, NORM, autocast=torch.bfloat16) as clipper:
        clipper.self_check(inputs, inputs[:3])
        assert set(seen) == {torch.float32, torch.bfloat16}
        seen.clear()
        clipper.accumulate(inputs)
        assert set(seen) == {torch.bfloat16}


WAYS = {
    "for products": lambda: torch.set_float32_matmul_precision("high"),
    "by CUDA's flag": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "for all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "everywhere": lambda: [
        setattr(attrgetter(part)(torch), "fp32_precision", "tf32") for part in PARTS_WITH_PRECISION
    ],
}


@pytest.fixture
def _default_precision():
    """Restore torch's precisions of float32 products."""
    before = float32_precisions()
    torch.set_float32_matmul_precision("highest")
    for part in PARTS_WITH_PRECISION:
        attrgetter(part)(torch).fp32_precision = "none"
    yield
    torch.set_float32_matmul_precision("highest")
    for part, precision in before.items():
        attrgetter(part)(torch).fp32_precision = precision


@pytest.mark.usefixtures("_default_precision")
@pytest.mark.parametrize("way", WAYS)
def test_trust_rule_2_float32_products_are_whole_whatever_the_caller_chose(way):
    """TF32 has ten bits: one record would move the sum by up to 1.001 of the clipping norm."""
    WAYS[way]()
    chosen, inside = float32_precisions(), []
    assert not {*chosen.values()} <= {"ieee", "none"}

    def losses(model: nn.Module, batch: Tensor) -> Tensor:
        inside.append({*float32_precisions().values()})
        return model(batch).sum(1)

    with PerExampleClipper(nn.Linear(3, 2), losses, 1.0) as clipper:
        clipper.self_check(torch.randn(4, 3))
        clipper.accumulate(torch.eye(3))
    assert all(precisions == {"ieee"} for precisions in inside)
    assert float32_precisions() == chosen


ADAPTERS = {
    "lora": lambda: peft.LoraConfig(r=2, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True),
    "lora and positions": lambda: peft.LoraConfig(
        r=2, target_modules=["c_attn"], modules_to_save=["wpe"], fan_in_fan_out=True
    ),
    "ia3": lambda: peft.IA3Config(
        target_modules=["c_attn", "c_fc"], feedforward_modules=["c_fc"], fan_in_fan_out=True
    ),
    "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "p-tuning": lambda: peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "dora": lambda: peft.LoraConfig(
        r=2, target_modules=["c_attn"], use_dora=True, fan_in_fan_out=True
    ),
}


def adapted(name: str) -> nn.Module:
    model = peft.get_peft_model(gpt2(), ADAPTERS[name]())
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def prompted_losses(model: nn.Module, batch: Records) -> Tensor:
    """Return losses of a model that may put virtual tokens in front."""
    logits = model(input_ids=batch.ids.clamp(min=0), attention_mask=batch.mask).logits
    logits = logits[:, -batch.ids.shape[1] :]
    losses = F.cross_entropy(logits[:, :-1].mT, batch.labels[:, 1:], reduction="none")
    return losses.sum(1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize(("name", "engine"), list(product(ADAPTERS, ENGINES)))
def test_adapters_are_exact(name, engine):
    model = adapted(name)
    if engine == "book_keeping" and name in ("prompt", "p-tuning"):
        pytest.skip("peft looks a prompt up once and repeats it for all rows")
    assert_exact(
        model, prompted_losses, BATCH, engine=engine, synthetic=SYNTHETIC
    )  # fmt: skip
    assert not any(
        g.abs().sum() for n, g in gradients_of(model).items() if n.endswith("wte.weight")
    )


CHOSEN, REJECTED = records((7, 12, 3, 9, 5)), records((5, 6, 11, 4, 8), width=12, seed=2)


def log_likelihoods(model: nn.Module, texts: Records) -> Tensor:
    lengths = (texts.labels[:, 1:] != -100).sum(1).clamp(min=1)
    return -losses_of(model, texts) * lengths


def two_calls(model: nn.Module, batch: tuple[Records, Records]) -> Tensor:
    chosen, rejected = (log_likelihoods(model, texts) for texts in batch)
    return -F.logsigmoid(0.1 * (chosen - rejected))


def one_call_by_row(model: nn.Module, texts: Records) -> Tensor:
    """Return half of its record's loss for each of two texts, side by side."""
    chosen, rejected = log_likelihoods(model, texts).view(-1, 2).unbind(1)
    return (-F.logsigmoid(0.1 * (chosen - rejected)) / 2).repeat_interleave(2)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_preference_losses_by_two_calls_and_by_one_call_of_units_are_the_same(engine):
    model, pairs = gpt2(), (CHOSEN, REJECTED)
    expected = unit_gradients(model, two_calls, pairs)
    norm = expected.median_norm()
    got = clipped(model, two_calls, [pairs], norm, engine=engine)
    assert distance(got, expected, norm) <= TOLERANCE
    both = [torch.stack([a, b], 1).flatten(0, 1) for a, b in zip(
        (CHOSEN.ids, CHOSEN.labels, CHOSEN.weights),
        (REJECTED.ids, REJECTED.labels, REJECTED.weights), strict=True)]  # fmt: skip
    got = clipped(model, one_call_by_row, [Records(*both)], norm, rows_per_unit=2, engine=engine)
    assert distance(got, expected, norm) <= TOLERANCE


@pytest.mark.slow
def test_a_micro_batch_leaves_no_tensor_to_the_collector_of_cycles():
    model = gpt2()
    with PerExampleClipper(model, losses_of, NORM, engine="book_keeping") as clipper:
        clipper.self_check(*SYNTHETIC)
        for _ in range(3):
            clipper.accumulate(BATCH)
        gc.collect()
        before = {id(each) for each in gc.get_objects() if isinstance(each, Tensor)}
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(2):
                clipper.accumulate(BATCH)
            gc.collect()
            left = [each for each in gc.garbage if isinstance(each, Tensor)]
            assert not [each.shape for each in left if id(each) not in before]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
