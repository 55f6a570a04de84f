"""An output that depends on other rows is named by its place."""

import pytest
import torch
from torch import nn

from dpft.privacy.clipping.separation.output_mixing import mixed_output

D = 3


def mixed_place(model, x):
    return mixed_output(model, model.forward, ((x,), {}))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_an_output_that_changes_with_the_rows_beside_it_is_named(rate):
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(rate)

        def forward(self, x):
            return {"own": self.drop(x), "mixed": self.drop(x - x.detach().mean(0))}

    x = torch.randn(3, D, generator=torch.Generator().manual_seed(0))
    assert mixed_place(Mean(), x) == "['mixed']"
    assert mixed_place(nn.Sequential(nn.Linear(D, D), nn.Dropout(rate)), x) is None
