"""What holds for any batch of any model, on random batches."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.engine import STYLES
from tests.privacy.clipping.architectures.batches import Examples, examples
from tests.privacy.clipping.architectures.comparison import NORM, clipped, difference
from tests.privacy.clipping.architectures.zoo import LISTED, UNLIKE
from tests.privacy.clipping.oracle import Clipped, clipped_sum, gradients_of, total_norm
from tests.slowness import slow_but

KINDS = ("gpt2-tied",)
"""That on which make test draws batches; make test-slow does on all."""
LENGTHS = st.lists(st.integers(2, 9), min_size=2, max_size=5)
SEEDS = st.integers(0, 2**20)
DTYPES = st.sampled_from([torch.float32, torch.float64])
few = settings(max_examples=2, deadline=None, derandomize=True)
on_each_kind = pytest.mark.parametrize("name", slow_but(KINDS, LISTED))


@cache
def built(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    return LISTED[name].build(dtype=dtype)


def allowed(name: str, dtype: torch.dtype) -> float:
    if dtype == torch.float32:
        return 1e-5
    return 1e-7 if LISTED[name].float32_inside else 1e-10


def sum_of_parts(name: str, dtype, parts: list[Examples]) -> Clipped:
    """Micro-batches into one sum."""
    model, kind = built(name, dtype), LISTED[name].kind
    model.zero_grad()
    with PerExampleClipper(model, NORM) as clipper:
        norms = [clipper.accumulate(lambda part=part: kind(model, part)) for part in parts]
    return Clipped(torch.cat(norms), gradients_of(model))


@on_each_kind
@few
@given(LENGTHS, SEEDS, DTYPES, st.randoms(use_true_random=False))
def test_neither_other_examples_nor_micro_batches_nor_order_change_a_gradient(
    name, lengths, seed, dtype, random
):
    batch = examples(lengths, seed=seed)
    whole = sum_of_parts(name, dtype, [batch])
    order = random.sample(range(len(batch)), len(batch))
    cut = random.randint(1, len(batch) - 1)
    got = sum_of_parts(name, dtype, [batch.take(order[:cut]), batch.take(order[cut:])])
    expected = Clipped(whole.norms[order], whole.gradients)
    assert difference(got, expected) <= allowed(name, dtype)


@pytest.mark.parametrize("name", slow_but(("t5",), LISTED))
@few
@given(LENGTHS, SEEDS, DTYPES, st.integers(1, 5))
def test_the_length_of_the_padding_changes_nothing(name, lengths, seed, dtype, more):
    if LISTED[name].float32_inside:
        # Where an attention window holds padding alone, float64's smallest number, minus infinity
        # in their float32 softmax, makes the model's own loss NaN.
        dtype = torch.float32
    batch = examples(lengths, seed=seed)
    narrow = sum_of_parts(name, dtype, [batch])
    assert difference(sum_of_parts(name, dtype, [batch.padded(more)]), narrow) <= allowed(
        name, dtype
    )


@pytest.mark.parametrize("style", slow_but(("flat",), STYLES))
@pytest.mark.parametrize("name", slow_but(("gemma3", "t5"), LISTED))
@few
@given(LENGTHS, SEEDS, st.integers(0, 4))
def test_trust_rule_2_one_example_moves_the_sum_by_at_most_the_sensitivity(
    name, style, lengths, seed, twin
):
    model, kind = built(name, torch.float32), LISTED[name].kind
    batch = examples(lengths, seed=seed)
    everyone = list(range(len(batch)))
    rest = [row for row in everyone if row != twin % len(batch)]
    sums = [
        clipped(model, kind, batch.take(rows), clipping=style, engine="auto").gradients
        for rows in (everyone, rest)
    ]
    moved = total_norm({n: sums[0][n].double() - sums[1][n].double() for n in sums[0]})
    assert 0 < moved <= NORM * (1 + 1e-5)


@on_each_kind
@few
@given(LENGTHS, SEEDS, st.sampled_from([float("nan"), float("inf")]), st.data())
def test_a_non_finite_example_contributes_exactly_zero(name, lengths, seed, value, data):
    model, kind, batch = built(name), LISTED[name].kind, examples(lengths, seed=seed)
    bad = data.draw(st.integers(0, len(batch) - 1))
    rest = batch.take([row for row in range(len(batch)) if row != bad])
    expected = clipped(model, kind, rest)
    spoil = torch.ones(len(batch), dtype=torch.float64)
    spoil[bad] = value
    got = clipped(model, lambda m, b: kind(m, b) * spoil, batch)
    assert got.norms[bad] == 0
    kept = Clipped(got.norms[torch.arange(len(batch)) != bad], got.gradients)
    assert difference(kept, expected) <= allowed(name, torch.float64)


@on_each_kind
@few
@given(LENGTHS, SEEDS)
def test_an_example_without_labels_contributes_zero_and_not_nan(name, lengths, seed):
    model, kind, batch = built(name), LISTED[name].kind, examples(lengths, seed=seed)
    batch.labeled[0] = False
    got = clipped(model, kind, batch)
    assert got.norms[0] == 0
    expected = clipped(model, kind, batch.take(slice(1, None)))
    kept = Clipped(got.norms[1:], got.gradients)
    assert difference(kept, expected) <= allowed(name, torch.float64)


@on_each_kind
@few
@given(st.integers(2, 9), SEEDS)
def test_a_batch_of_one_equals_the_loop(name, length, seed):
    model, kind, batch = built(name), LISTED[name].kind, examples((length,), seed=seed)
    expected = clipped(model, kind, batch, engine="loop")
    assert difference(clipped(model, kind, batch), expected) <= allowed(name, torch.float64)


@pytest.mark.parametrize("name", slow_but(UNLIKE, LISTED))
def test_an_empty_batch_adds_nothing(name):
    model = built(name)
    model.zero_grad()
    with PerExampleClipper(model, NORM) as clipper:
        assert clipper.accumulate(lambda: torch.zeros(0)).shape == (0,)
    assert all(p.grad is None for p in model.parameters())


@on_each_kind
@few
@given(st.lists(st.integers(0, 2), min_size=2, max_size=5), SEEDS)
def test_a_unit_is_clipped_as_the_sum_of_its_rows(name, units, seed):
    model, kind = built(name), LISTED[name].kind
    batch, units = examples([5] * len(units), seed=seed), torch.tensor(units)
    got, expected = (
        clipped_sum(model, lambda: kind(model, batch), NORM, units=units, engine=engine)
        for engine in ("auto", "loop")
    )
    assert difference(got, expected) <= allowed(name, torch.float64)
