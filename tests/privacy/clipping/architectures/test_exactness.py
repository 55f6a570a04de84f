"""Every architecture, every parameter trainable, against the loop and against the definition."""

import itertools
import zlib

import pytest
import torch

from tests.privacy.clipping.architectures.batches import examples
from tests.privacy.clipping.architectures.comparison import clipped, difference, one_at_a_time
from tests.privacy.clipping.architectures.zoo import EVERY, LISTED, UNLIKE, Case
from tests.privacy.clipping.oracle import Clipped
from tests.slowness import slow_but

LENGTHS = (5, 9, 3)
AS_MANY_AS_STEPS = (5, 4, 5, 3, 5)
ENGINES = ("book_keeping", "two_pass", "instantiate")


def tolerance(case: Case, dtype: torch.dtype) -> float:
    if dtype == torch.float32:
        return 1e-5
    return 1e-7 if case.float32_inside else 1e-10


def assert_close(got: Clipped, expected: Clipped, allowed: float) -> None:
    assert expected.norms.max() > 0.5, "the test must clip something"
    assert difference(got, expected) <= allowed


@pytest.mark.parametrize("name", slow_but({*UNLIKE, *tuple(EVERY)[::12]}, EVERY))
def test_norms_and_sum_equal_the_loop_and_one_example_at_a_time(name):
    """For those listed, the next test asks the loop."""
    case, batch = EVERY[name], examples(LENGTHS)
    model, allowed = case.build(), tolerance(case, torch.float64)
    got = clipped(model, case.kind, batch)
    if name not in LISTED or not case.alone:
        assert_close(got, clipped(model, case.kind, batch, engine="loop"), allowed)
    if case.alone:
        assert_close(got, one_at_a_time(model, case.kind, batch), allowed)


@pytest.mark.parametrize("name", slow_but(("gpt2-tied",), LISTED))
def test_as_many_examples_as_positions_is_no_special_case(name):
    case, batch = LISTED[name], examples(AS_MANY_AS_STEPS)
    model = case.build()
    expected = clipped(model, case.kind, batch, engine="loop")
    got = clipped(model, case.kind, batch)
    assert_close(got, expected, tolerance(case, torch.float64))


GRID = [
    pytest.param(name, dtype, attention, dropout, engine, id=f"{name}-{place}")
    for name, case in EVERY.items()
    for place, (dtype, attention, dropout, engine) in enumerate(
        itertools.product((torch.float32, torch.float64), case.attention, (0.0, 0.2), ENGINES)
    )
    if not dropout or case.dropout and case.same_masks
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "attention", "dropout", "engine"), GRID)
def test_the_whole_grid_equals_the_loop(name, dtype, attention, dropout, engine):
    case = EVERY[name]
    batch = examples(LENGTHS, seed=zlib.crc32(name.encode()))
    model = case.build(dtype=dtype, attention=attention, dropout=dropout)
    expected = clipped(model, case.kind, batch, engine="loop")
    got = clipped(model, case.kind, batch, engine=engine)
    assert_close(got, expected, tolerance(case, dtype))


CHECKPOINTED = ("llama-tied", "opt", "bert-masked-lm", "t5", "beit", "vit")
FEW = [("llama-tied", "two_pass"), ("bert-masked-lm", "book_keeping")]


@pytest.mark.parametrize(
    ("name", "engine"),
    slow_but(FEW, itertools.product(CHECKPOINTED, ("book_keeping", "two_pass"))),
)
def test_gradient_checkpointing_changes_nothing_dropout_included(name, engine):
    case, batch = EVERY[name], examples(LENGTHS)
    model = case.build(dropout=0.2).train()
    expected = clipped(model, case.kind, batch, engine="loop")
    model.activation_checkpointing_enable({"use_reentrant": False})
    got = clipped(model, case.kind, batch, engine=engine)
    assert_close(got, expected, tolerance(case, torch.float64))


@pytest.mark.parametrize(
    "name", slow_but(("llama-tied",), ("llama-tied", "bert-masked-lm", "t5", "beit", "gemma3"))
)
def test_bfloat16_norms_are_within_a_percent(name):
    case, batch = EVERY[name], examples(LENGTHS)
    model = case.build(dtype=torch.float32)
    expected = clipped(model, case.kind, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = clipped(model, case.kind, batch)
    assert torch.allclose(got.norms, expected.norms, rtol=1e-2)
