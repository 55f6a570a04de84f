"""Models whose forward pass writes to state that a saved model contains: the clipper rejects them.

``tests/privacy/test_frozen_state.py`` has the kinds of writes that its checks find.
"""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.test_frozen_state import (
    COUNTED,
    VOCABULARY,
    WIDTH,
    WRITES,
    Model,
    of_an_exchange,
    of_two_signs,
)


def clip(model: nn.Module, batches: int, before: Callable[[int], None] = lambda _: None) -> None:
    """Clip some batches, and update the trainable parameters after each."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    with PerExampleClipper(model, 1.0) as clipper:
        for number in range(1, batches + 1):
            before(number)
            ids = torch.randint(0, VOCABULARY, (6, 3), generator=generator)
            clipper.accumulate(lambda ids=ids: model(ids))
            optimizer.step()
            optimizer.zero_grad()


UNDONE_BY_A_SECOND_PASS = (of_an_exchange, of_two_signs)
AT_FIRST = [write for write in WRITES if write not in UNDONE_BY_A_SECOND_PASS]


@pytest.mark.parametrize("write", AT_FIRST, ids=[write.__name__ for write in AT_FIRST])
def test_trust_rule_11_a_forward_that_writes_is_refused_by_name(write):
    with pytest.raises(RunError, match=rf"\b{WRITES[write]}\b"):
        clip(Model(write), batches=1)


@pytest.mark.parametrize("write", COUNTED, ids=[write.__name__ for write in COUNTED])
def test_a_write_in_place_is_refused_in_every_micro_batch(write):
    model = Model()

    def begin(number: int) -> None:
        if number == 4:
            model.write = write

    with pytest.raises(RunError, match=f"{COUNTED[write]} must be what it was"):
        clip(model, 4, begin)


@pytest.mark.parametrize("is_trainable", [False, True])
def test_an_embedding_with_max_norm_is_refused(is_trainable):
    model = Model()
    model.table = nn.Embedding(VOCABULARY, WIDTH, max_norm=0.5).requires_grad_(is_trainable)
    error = InputError if is_trainable else RunError
    with pytest.raises(error, match="max_norm"):
        clip(model, 1)


def test_what_is_not_released_may_change():
    """A rotary cache, a counter of calls, a plain attribute."""

    def fill(model, h):
        model.cache = h.new_zeros(3, WIDTH)
        model.register_buffer("lazy", torch.ones(3), persistent=False)
        model.last = len(h)

    clip(Model(fill), 4)


def test_a_tied_weight_trains_under_both_of_its_names():
    class Tied(Model):
        def __init__(self):
            super().__init__()
            self.table.requires_grad_(True)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids):
            return self.head(self.dense(self.table(ids))).square().sum((1, 2))

    clip(Tied(), 4)
