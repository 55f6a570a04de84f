from dataclasses import replace

import pytest
import torch
from torch import nn

from dpft.privacy.clipping import patch_use
from dpft.privacy.clipping.patch_use import PatchUse, Window
from dpft.privacy.clipping.trainable import Units

LAYERS = {
    "plain": (lambda: nn.Conv2d(3, 6, 3), (8, 7)),
    "strided, padded": (lambda: nn.Conv2d(3, 6, 3, stride=2, padding=(1, 2)), (8, 7)),
    "dilated": (lambda: nn.Conv2d(3, 6, (3, 2), dilation=(1, 2), stride=(2, 1)), (8, 7)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (6, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, stride=2), (8, 7)),
    "1d": (lambda: nn.Conv1d(3, 6, 3, stride=2, padding=1, dilation=2), (11,)),
    "1d, grouped": (lambda: nn.Conv1d(4, 6, 3, groups=2), (11,)),
}


def use_of(make, size, *, count=5, images=1):
    """A use in float64 and its gradients by ordinary backward passes, one for each example."""
    torch.manual_seed(0)
    layer = make().double()
    inputs = torch.randn(count, images, layer.in_channels, *size, dtype=torch.float64)
    outputs = layer(inputs.flatten(0, 1)).unflatten(0, (count, images))
    backprops = torch.randn_like(outputs)
    products = (outputs * backprops).flatten(1).sum(1)
    gradients = [
        torch.autograd.grad(product, layer.weight, retain_graph=True)[0] for product in products
    ]
    window = Window(
        weight_shape=tuple(layer.weight.shape),
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups,
    )
    return PatchUse(backprops, inputs, window), torch.stack(gradients)


@pytest.fixture(params=[1, 3], ids=["one image", "three images"])
def images(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["all at once", "one by one"])
def blocks(request, monkeypatch):
    """All examples' patches at once, or those of one example at a time."""
    if not request.param:
        monkeypatch.setattr(patch_use, "BLOCK_BYTES", 1)
        monkeypatch.setattr(patch_use, "FEW_NUMBERS", 0)


@pytest.fixture(params=[True, False], ids=["ghost", "formed"])
def ghost(request, monkeypatch):
    monkeypatch.setattr(patch_use, "ghost_is_cheaper", lambda shape: request.param)


@pytest.mark.parametrize(("make", "size"), LAYERS.values(), ids=LAYERS)
@pytest.mark.usefixtures("blocks", "ghost")
def test_squares_are_those_of_the_gradients(make, size, images):
    use, gradients = use_of(make, size, images=images)
    squares = use.squares()
    expected = gradients.flatten(1).square().sum(1)
    assert torch.allclose(squares.values, expected, rtol=1e-10)
    assert (squares.terms >= 0.999 * squares.values).all()


@pytest.mark.parametrize(("make", "size"), LAYERS.values(), ids=LAYERS)
@pytest.mark.usefixtures("blocks")
def test_formed_gradients_are_those_of_backward_passes(make, size, images):
    use, gradients = use_of(make, size, images=images)
    assert torch.allclose(use.instantiate(), gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("make", "size"), LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("small", [0, 2**12])
def test_weighted_sums_are_those_of_the_gradients(make, size, images, small, monkeypatch):
    monkeypatch.setattr(patch_use, "SMALL", small)
    use, gradients = use_of(make, size, images=images)
    factors = torch.rand(5, dtype=torch.float64)
    expected = torch.einsum("b,b...->...", factors, gradients)
    assert torch.allclose(use.weighted_sum(factors), expected, rtol=1e-10, atol=1e-12)
    total = torch.ones_like(expected)
    use.add_weighted_sum(factors, total)
    assert torch.allclose(total, expected + 1, rtol=1e-10)


@pytest.mark.parametrize(("make", "size"), LAYERS.values(), ids=LAYERS)
def test_shapes_count_gradients_and_what_is_held(make, size, images):
    use, gradients = use_of(make, size, images=images)
    shape = use.shape
    assert shape.instantiated_bytes == 4 * gradients.numel()
    assert shape.factored_bytes == 4 * (use.inputs.numel() + use.backprops.numel())
    assert shape.steps == images * use.backprops[0, 0, 0].numel()


@pytest.mark.parametrize(("make", "size"), LAYERS.values(), ids=LAYERS)
def test_some_filters_alone_have_their_rows_of_the_gradient(make, size):
    use, gradients = use_of(make, size)
    part = use.of_rows(1, 5)
    assert part.parameter_shape == gradients[0, 1:5].shape
    assert torch.allclose(part.instantiate(), gradients[:, 1:5], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("make", "size"), LAYERS.values(), ids=LAYERS)
@pytest.mark.usefixtures("blocks")
def test_no_gradient_is_longer_than_its_bound(make, size, images):
    use, gradients = use_of(make, size, images=images)
    assert (gradients.flatten(1).norm(dim=1) <= use.norm_bound()).all()
    # All terms of one direction: as long as the bound.
    ones = replace(
        use, backprops=torch.ones_like(use.backprops), inputs=torch.ones_like(use.inputs)
    )
    if not any(use.window.padding) and use.window.groups == 1:
        assert torch.allclose(ones.instantiate().flatten(1).norm(dim=1), ones.norm_bound())
    assert (use.extent() > 0).all()


def test_examples_left_out_add_nothing_even_if_not_finite():
    use, gradients = use_of(*LAYERS["plain"])
    use.backprops[2], use.inputs[2] = torch.nan, torch.inf
    kept = use.keep(torch.tensor([True, True, False, True, True]))
    expected = gradients[[0, 1, 3, 4]].sum(0)
    assert torch.allclose(kept.weighted_sum(torch.ones(5, dtype=torch.float64)), expected)


@pytest.mark.parametrize("name", ["plain", "grouped", "1d"])
@pytest.mark.usefixtures("ghost")
def test_units_add_up_their_examples(name):
    use, gradients = use_of(*LAYERS[name])
    units = Units.of(torch.tensor([0, 2, 0, 0, 1]))
    summed = torch.stack([gradients[[0, 2, 3]].sum(0), gradients[4], gradients[1]])
    squares = use.by_unit(units).squares().values
    assert torch.allclose(squares, summed.flatten(1).square().sum(1), rtol=1e-10)


def test_half_precision_is_formed_in_float32():
    use, _ = use_of(*LAYERS["plain"])
    half = replace(use, backprops=use.backprops.bfloat16(), inputs=use.inputs.bfloat16())
    exact = half.double(torch.arange(5))
    assert half.dtype == half.instantiate().dtype == torch.float32
    assert torch.allclose(half.instantiate().double(), exact.instantiate(), rtol=1e-4, atol=1e-5)
    assert half.weighted_sum(torch.ones(5)).dtype == torch.float32
