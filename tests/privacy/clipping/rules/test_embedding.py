import pytest
import torch
from torch import nn

from dpft.errors import InputError
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.rules.oracle import assert_equals_the_loop


@pytest.mark.parametrize("shape", [(4,), (4, 7), (4, 2, 5)])
def test_norms_and_sums_equal_the_loop_with_repeated_ids(shape):
    torch.manual_seed(0)
    layer = nn.Embedding(3, 6).double()
    ids = torch.randint(0, 3, shape)
    assert_equals_the_loop(layer, lambda: layer(ids))


def test_the_padding_row_gets_no_gradient():
    torch.manual_seed(0)
    layer = nn.Embedding(5, 6, padding_idx=2).double()
    ids = torch.tensor([[0, 2, 2], [2, 2, 2], [1, 1, 4]])
    assert_equals_the_loop(layer, lambda: layer(ids))


@pytest.mark.parametrize("setting", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_settings_that_mix_examples_are_refused(setting):
    with pytest.raises(InputError, match="depend on the others"):
        PerExampleClipper(nn.Embedding(5, 6, **setting), 0.5).__enter__()
