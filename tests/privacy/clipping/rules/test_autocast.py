"""Casts by hand are those that autocast makes of torch's own functions."""

import pytest
import torch
import torch.nn.functional as F

from dpft.privacy.clipping.rules.autocast import for_normalization, for_product, sum_dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("enabled", [True, False])
def test_inputs_of_a_product_are_cast_as_a_dense_layers_are(dtype, enabled):
    inputs, weight = torch.ones(2, 3, dtype=dtype), torch.ones(4, 3, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        assert for_product(inputs).dtype == F.linear(inputs, weight).dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_of_a_normalization_stay_as_they_are_on_a_cpu(dtype):
    inputs = torch.ones(2, 3, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert for_normalization(inputs) is inputs
        assert F.layer_norm(inputs, (3,)).dtype == dtype


def test_gradients_are_added_up_in_float32_or_better():
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    found = [sum_dtype(torch.ones(1, dtype=dtype)) for dtype in dtypes]
    assert found == [torch.float32, torch.float32, torch.float32, torch.float64]
