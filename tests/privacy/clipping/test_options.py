"""One value that makes any clipper of a run."""

import logging

import pytest
from torch import nn

from dpft.errors import InputError
from dpft.privacy.clipping.options import ClippingOptions

OPTIONS = ClippingOptions(
    max_grad_norm=2.0, clipping="per_layer", groups=("*",), memory_mb=1, headroom=0.25
)


def test_a_clipper_is_made_with_every_option():
    style = OPTIONS.make(nn.Linear(2, 1)).style
    assert (style.max_grad_norm, style.headroom, style.groups) == (2.0, 0.25, 1)
    with pytest.raises(InputError, match="`loss_scale` must be"):
        ClippingOptions(max_grad_norm=1.0, loss_scale=0.5).make(nn.Linear(2, 1))


def test_resolving_names_the_engine_that_auto_takes_and_logs_nothing(caplog):
    caplog.set_level(logging.INFO, logger="dpft")
    model = nn.Linear(2, 1)
    resolved = OPTIONS.resolved(model)
    assert resolved.engine == "book_keeping" and not caplog.records
    assert vars(resolved) == vars(OPTIONS) | {"engine": "book_keeping"}
    assert resolved.resolved(model) == resolved
