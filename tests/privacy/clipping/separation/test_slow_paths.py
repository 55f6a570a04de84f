"""Why a module runs one example after another, in words that tell nothing of a record."""

import pytest
import torch

from dpft.privacy.clipping.separation.slow_paths import reason_of


def reads(x):
    return x if x.sum() > 0 else -x


def gathers(x):
    return x[x > 0]


def writes(x):
    rows = torch.zeros(3)
    rows[0] = x[0]
    return rows


def reaches_in(x):
    return x.data


def refuses(x):
    raise RuntimeError("a text of 137 tokens")


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (reads, "it reads a value from a tensor"),
        (lambda x: x * x.sum().item(), "it reads a value from a tensor"),
        (gathers, "the shape of one of its tensors depends on values"),
        (writes, "it writes in place into a tensor without the batch"),
        (reaches_in, "it changes a weight as it runs"),
        (refuses, "it does what cannot be mapped over examples"),
    ],
)
def test_the_reason_is_told_in_words_of_our_own(run, expected):
    with pytest.raises(RuntimeError) as caught:
        torch.vmap(run)(torch.randn(4, 3))
    assert reason_of(caught.value) == expected
