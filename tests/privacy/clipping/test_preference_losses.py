"""Preference losses: records of two texts each, in two calls of the model or in one."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dpft.errors import InputError, RunError
from tests.privacy.clipping.oracle import Clipped, Records, clipped_sum, gpt2, records, sum_of_each
from tests.slowness import slow, slow_but

ENGINES = ("book_keeping", "two_pass", "instantiate", "loop")
CHOSEN, REJECTED = records((7, 12, 3, 9)), records((5, 6, 11, 4), width=12, seed=2)
NAMES = torch.tensor([30, 10, 40, 20])
"""What the records are called, not in order."""
NORM = 0.5
OF_RECORDS = pytest.mark.xfail(
    strict=True, raises=(InputError, RunError), reason="a tensor of records is cut as one of units"
)
OF_RECORDS_SLOWLY = (OF_RECORDS, pytest.mark.slow)


def log_likelihoods(model, texts: Records) -> Tensor:
    """The log-likelihood of each text, shape (b,)."""
    positions = torch.arange(texts.ids.shape[1]).expand(texts.ids.shape)
    ids = texts.ids.clamp(min=0)
    logits = model(input_ids=ids, attention_mask=texts.mask, position_ids=positions).logits
    labels = texts.labels[:, 1:]
    return -F.cross_entropy(logits[:, :-1].mT, labels, reduction="none").sum(1)


def preference(chosen: Tensor, rejected: Tensor) -> Tensor:
    """The loss of direct preference optimization, without its reference."""
    return -F.logsigmoid(0.1 * (chosen - rejected))


def both(rows=slice(None)) -> Records:
    """Chosen texts, then rejected ones."""
    chosen, rejected = CHOSEN.take(rows), REJECTED.take(rows)
    return Records(
        torch.cat([chosen.ids, rejected.ids]), torch.cat([chosen.labels, rejected.labels])
    )


def in_two_calls(model, rows=slice(None)) -> Tensor:
    """A loss for each record, from two calls of b rows."""
    return preference(
        log_likelihoods(model, CHOSEN.take(rows)), log_likelihoods(model, REJECTED.take(rows))
    )


def in_one_call(model) -> Tensor:
    """A loss for each record in the order of its name, from one call of 2b rows."""
    losses = preference(*log_likelihoods(model, both()).chunk(2))
    return losses[NAMES.argsort()]


def in_one_call_by_row(model) -> Tensor:
    """Half of its record's loss for each of 2b rows."""
    losses = preference(*log_likelihoods(model, both()).chunk(2))
    return losses.repeat(2) / 2


def accumulated(engine: str, compute_losses, units=None) -> Clipped:
    model = gpt2()
    return clipped_sum(model, lambda: compute_losses(model), NORM, engine=engine, units=units)


def by_definition(model) -> Clipped:
    """One record after another, each alone in two calls of one row."""
    losses = (in_two_calls(model, [row])[0] for row in range(len(NAMES)))
    return sum_of_each(model, losses, NORM)


@pytest.fixture(scope="module")
def expected() -> Clipped:
    found = by_definition(gpt2())
    assert (found.norms > NORM).any()
    return found


@pytest.mark.parametrize("engine", slow_but(("book_keeping", "loop"), ENGINES))
def test_two_calls_with_a_loss_for_each_record(engine, expected):
    got = accumulated(engine, in_two_calls)
    torch.testing.assert_close(got.norms, expected.norms, rtol=1e-4, atol=0)
    assert got.distance(expected) < 1e-4


@pytest.mark.parametrize(
    ("compute_losses", "engine"),
    [pytest.param(in_one_call, "book_keeping", marks=OF_RECORDS)]
    + [pytest.param(in_one_call, each, marks=OF_RECORDS_SLOWLY) for each in ENGINES[1:]]
    + [(in_one_call_by_row, "book_keeping")]
    + slow(*((in_one_call_by_row, each) for each in ENGINES[1:])),
)
def test_one_call_of_both_texts_with_records_as_units(compute_losses, engine, expected):
    got = accumulated(engine, compute_losses, NAMES.repeat(2))
    in_order = expected.norms[NAMES.argsort()]
    torch.testing.assert_close(got.norms, in_order, rtol=1e-4, atol=0)
    assert got.distance(expected) < 1e-4


def less_the_mean(model) -> Tensor:
    """A loss for each record that reads what the others prefer, without a gradient."""
    chosen, rejected = log_likelihoods(model, both()).chunk(2)
    margin = (chosen - rejected).detach().mean()
    return preference(chosen - margin, rejected)[NAMES.argsort()]


@pytest.mark.parametrize("engine", slow_but(("book_keeping", "loop"), ENGINES))
def test_records_that_read_each_other_are_refused(engine):
    with pytest.raises((InputError, RunError)):
        accumulated(engine, less_the_mean, NAMES.repeat(2))
