"""A rule records every parameter of its layer, so that nothing has to run example by example."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.recorder import Recorder

NUMBERS = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0))
LAYERS = {
    "linear": (nn.Linear(5, 3), NUMBERS),
    "transposed linear": (Conv1D(3, 5), NUMBERS),
    "embedding": (nn.Embedding(9, 3), torch.arange(24).view(4, 6) % 9),
    "layer norm": (nn.LayerNorm(5), NUMBERS),
    "RMS norm": (nn.RMSNorm(5), NUMBERS),
    "group norm": (nn.GroupNorm(2, 6), NUMBERS),
    "convolution": (nn.Conv1d(6, 2, 3), NUMBERS),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_exactness_check_finds_every_parameter_recorded(name, monkeypatch):
    """What a rule left out would still be exact, by a module that runs example by example."""
    layer, inputs = LAYERS[name]
    record_as, recorded = Recorder.record_as, set()

    def noted(self, name, use):
        recorded.add(name)
        record_as(self, name, use)

    monkeypatch.setattr(Recorder, "record_as", noted)
    with PerExampleClipper(layer, 0.5, engine="book_keeping") as clipper:
        clipper.accumulate(lambda: layer(inputs).sin().flatten(1).sum(1))
        assert not clipper._engine._patches._regions
        assert recorded == {name for name, _ in layer.named_parameters()}
    layer.zero_grad()
