import pytest
import torch

from dpft.errors import InputError
from dpft.privacy.clipping.factors import clipping_style


def test_flat_clipping_is_min_of_one_and_c_over_norm():
    factors = clipping_style("flat", max_grad_norm=2.0).factors(torch.tensor([0.0, 1.0, 4.0, 8.0]))
    assert torch.allclose(factors, torch.tensor([1.0, 1.0, 0.5, 0.25]), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_clipped_norm_never_exceeds_the_sensitivity(dtype):
    style = clipping_style("flat", max_grad_norm=0.1)
    norms = torch.logspace(-8, 8, 10_001, dtype=dtype)
    assert (norms * style.factors(norms) <= style.sensitivity).all()


def test_the_sensitivity_of_flat_clipping_is_the_clipping_norm():
    assert clipping_style("flat", max_grad_norm=0.3).sensitivity == 0.3


def test_an_unknown_style_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"privacy\.clipping must be one of flat, got 'foo'"):
        clipping_style("foo", max_grad_norm=1.0)
