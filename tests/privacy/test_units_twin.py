"""Twin data sets on units: one has a unit with all its records, the other lacks it."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch

from dpft.data.batches import collated_units
from dpft.data.training_records import bounded_units
from dpft.methods.base import METHODS
from dpft.models.losses import per_example_losses
from dpft.privacy.clipping.options import ENGINE_NAMES
from tests.clipped_batches import clipped_batches
from tests.privacy.clipping.oracle import TOLERANCE, distance, total_norm, unit_gradients
from tests.privacy.test_methods_twin import SHAPES, prepared, row
from tests.slowness import slow_but
from tests.training.toy import tiny_model, training_set

NORM = 0.01
VALUES = ["ann", "bob", "ann", "cas", "dee", "ann", "bob", "ann", "eve", "eve", "dee", "ann"]
"""Whose each of the twelve records is; Ann has five, of which three are kept."""


def data(values, micro_batch_size=4):
    """The records of those units alone, as training holds them."""
    chosen = [at for at, value in enumerate(VALUES) if value in values]
    whole = training_set(12, micro_batch_size)
    own = [VALUES[at] for at in chosen]
    units = bounded_units(own, usable=[True] * len(own), records_per_unit=3, key=bytes(32))
    return replace(whole, examples=[whole.examples[at] for at in chosen], units=units)


def model_of(method):
    model = METHODS.named(method)(name=method).prepare(tiny_model(), frozenset()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@cache
def sum_of_all(method, engine, micro_batch_size):
    """The sum with every unit, computed once for all that leave one out; not to be changed."""
    return clipped_sum(model_of(method), data(set(VALUES), micro_batch_size), engine)


def clipped_sum(model, data, engine):
    """The pre-noise sum of a draw of every unit."""
    batches = data.micro_batches(range(data.num_units))
    sums = clipped_batches(model, batches, NORM, has_units=True, engine=engine).gradients
    return {name: gradient.double() for name, gradient in sums.items()}


@pytest.mark.parametrize(
    ("trained", "gone", "micro_batch_size"),
    slow_but(
        [(("full", "book_keeping"), "ann", 3)],
        product(
            [("full", "book_keeping"), ("full", "rows"), ("bitfit", "auto"), ("lora", "auto")],
            ["ann", "bob", "cas"],
            [3, 12],
        ),
    ),
)
def test_trust_rule_2_a_unit_with_all_its_records_moves_the_sum_by_at_most_the_sensitivity(
    trained, gone, micro_batch_size
):
    method, engine = trained
    everyone = sum_of_all(method, engine, micro_batch_size)
    rest = clipped_sum(model_of(method), data(set(VALUES) - {gone}, micro_batch_size), engine)
    moved = total_norm({name: everyone[name] - rest[name] for name in everyone})
    assert NORM * 0.999 < moved <= NORM * (1 + 1e-5)


@pytest.mark.slow
def test_without_units_the_same_records_would_move_it_further():
    """What the bound is worth: clipped one by one, Ann's three records weigh up to three norms."""
    model = model_of("full")
    whole, rest = data(set(VALUES)), data(set(VALUES) - {"ann"})
    apart = [replace(each, units=None, examples=kept(each)) for each in (whole, rest)]
    everyone, others = (clipped_sum(model, each, "book_keeping") for each in apart)
    assert total_norm({name: everyone[name] - others[name] for name in everyone}) > 1.5 * NORM


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_as_many_units_as_label_words_are_no_special_case(engine):
    layout = SHAPES["bert-words"].layout
    _, model = prepared("full", "bert-words")
    generator = torch.Generator().manual_seed(5)
    lengths = (18, 12, 11, 13, 12, 7)
    rows = [row(layout, number, length, generator) for number, length in enumerate(lengths)]
    units = [rows[:3], rows[3:5], rows[5:]]
    assert len(units) == len(layout.words)
    batch = collated_units(units, layout)
    alone = [collated_units([unit], layout) for unit in units]
    expected = unit_gradients(model, per_example_losses, batch, batch.rows_per_unit, alone)
    got = clipped_batches(model, [batch], NORM, layout=layout, has_units=True, engine=engine)
    assert distance(got, expected, NORM) <= TOLERANCE


def kept(data):
    return [data.examples[at] for unit in data.units for at in unit]


def test_the_sum_is_that_of_each_units_own_clipped_gradient():
    """The loop over units: ordinary gradients of each unit's summed loss, clipped by hand."""
    model, whole = model_of("full"), data(set(VALUES))
    expected = None
    for unit in whole.units:
        model.zero_grad()
        batch = whole.layout.collate([whole.examples[at] for at in unit])
        per_example_losses(model, batch).sum().backward()
        gradient = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
        factor = min(1.0, NORM / float(total_norm(gradient)))
        added = {name: factor * value for name, value in gradient.items()}
        expected = (
            added if expected is None else {name: expected[name] + added[name] for name in added}
        )
    got = clipped_sum(model, whole, "book_keeping")
    assert total_norm({name: got[name] - expected[name] for name in got}) < 1e-5 * NORM
