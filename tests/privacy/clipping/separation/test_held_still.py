"""Nothing is drawn where a model is held still, and all else is as it trains."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpft.privacy.clipping.rules.whole_batch import WholeBatchAttention
from dpft.privacy.clipping.separation.held_still import HeldStill

X = torch.randn(4, 2, 3, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "drop",
    [
        nn.Dropout(0.5),
        nn.AlphaDropout(0.5),
        lambda x: F.dropout(x, p=0.9),
        lambda x: F.dropout2d(x, 0.9, True),
        lambda x: torch.dropout(x, 0.9, True),
    ],
)
def test_dropout_passes_everything_whoever_asks_for_it(drop):
    with HeldStill():
        assert torch.equal(drop(X), X)
    assert not torch.equal(drop(X), X)


def test_attention_drops_nothing():
    expected = F.scaled_dot_product_attention(X, X, X)
    with HeldStill():
        by_name = F.scaled_dot_product_attention(X, X, X, dropout_p=0.9)
        by_place = F.scaled_dot_product_attention(X, X, X, None, 0.9)
    assert torch.allclose(by_name, expected) and torch.allclose(by_place, expected)


def test_attention_on_the_whole_batch_of_a_map_drops_nothing_either():
    def attend(token, x):
        with WholeBatchAttention(token):
            return F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.9)[0]

    with HeldStill():
        got = torch.vmap(attend, randomness="different")(torch.zeros(4), X)
    assert torch.allclose(got, F.scaled_dot_product_attention(X, X, X), atol=1e-6)


def test_what_is_drawn_is_the_same_for_every_row_and_moves_no_generator():
    state = torch.get_rng_state()
    with HeldStill():
        drawn = [
            torch.rand(3),
            torch.randn_like(X),
            X.clone().uniform_(),
            torch.bernoulli(X.sigmoid()),
        ]
        order = torch.randperm(4)
    assert all(len(each.unique()) == 1 for each in drawn) and order.tolist() == [3, 2, 1, 0]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_callers_own_draws_are_left_where_only_dropout_is_held():
    with HeldStill(noise=False):
        assert len(torch.rand(9).unique()) > 1
        assert torch.equal(F.dropout(X, 0.5), X)
    with HeldStill():
        seeded = torch.rand(9, generator=torch.Generator().manual_seed(1))
    assert len(seeded.unique()) > 1
