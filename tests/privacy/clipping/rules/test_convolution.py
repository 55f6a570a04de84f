import pytest
import torch
from torch import nn

from dpft.batch_mixing import StandardizedConv2d
from dpft.privacy.clipping import algorithms, choices, patch_use, rules
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules import find_rule
from dpft.privacy.clipping.trainable import TrainableParameters
from dpft.privacy.clipping.uses import GradientUse
from tests.privacy.clipping.rules.oracle import (
    assert_equals_the_loop,
    assert_forward_and_input_gradient_are_the_layers_own,
)
from tests.slowness import slow_but, slow_but_each

LAYERS = {
    "patches": (lambda: nn.Conv2d(3, 6, 4, stride=4), (4, 3, 8, 8)),
    "strided": (lambda: nn.Conv2d(3, 6, 3, stride=2, padding=1), (4, 3, 7, 9)),
    "remainder": (lambda: nn.Conv2d(3, 6, 3, stride=2), (4, 3, 8, 8)),
    "dilated": (lambda: nn.Conv2d(2, 6, (3, 2), dilation=(2, 1), padding=(0, 1)), (4, 2, 9, 7)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (4, 4, 6, 6)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1, bias=False), (4, 4, 6, 6)),
    "1d": (lambda: nn.Conv1d(3, 6, 3, stride=2, padding=2, dilation=2), (4, 3, 9)),
    "1d depthwise": (lambda: nn.Conv1d(4, 8, 4, groups=4, padding=3), (4, 4, 9)),
    "same padding": (lambda: nn.Conv2d(3, 6, 3, padding="same"), (4, 3, 6, 6)),
    "reflected": (lambda: nn.Conv1d(3, 6, 3, padding=1, padding_mode="reflect"), (4, 3, 6)),
    "same padding, uneven": (lambda: nn.Conv2d(3, 6, (4, 3), padding="same"), (4, 3, 6, 7)),
    "same padding, dilated": (
        lambda: nn.Conv2d(4, 6, 2, padding="same", dilation=3, groups=2),
        (4, 4, 6, 7),
    ),
    "valid padding": (lambda: nn.Conv2d(3, 6, 3, padding="valid", stride=2), (4, 3, 6, 7)),
    "circular": (
        lambda: nn.Conv2d(3, 6, 3, padding=(2, 1), padding_mode="circular"),
        (4, 3, 6, 7),
    ),
    "standardized": (lambda: StandardizedConv2d(3, 6, 3, stride=2, padding=1), (4, 3, 7, 9)),
    "standardized, grouped": (
        lambda: StandardizedConv2d(4, 6, 3, groups=2, padding="same", bias=False),
        (4, 4, 6, 6),
    ),
    "transposed": (lambda: nn.ConvTranspose2d(3, 6, 3, stride=2), (4, 3, 5, 5)),
    "3d": (lambda: nn.Conv3d(2, 3, 2), (4, 2, 3, 4, 4)),
}


@pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)
def test_norms_and_sums_equal_the_loop(make, shape):
    torch.manual_seed(0)
    layer, inputs = make().double(), torch.randn(shape, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(inputs))


@pytest.fixture(params=[True, False], ids=["ghost", "formed"])
def by_patches(request, monkeypatch):
    """Makes every convolution keep inputs and output gradients, and take norms in one way."""
    monkeypatch.setattr(rules, "instantiated_is_smaller", lambda shape: False)
    monkeypatch.setattr(algorithms, "keeping_is_cheaper", lambda shape, memory: False)
    monkeypatch.setattr(patch_use, "ghost_is_cheaper", lambda shape: request.param)


@pytest.mark.parametrize(
    ("name", "engine"), slow_but_each(LAYERS, ["book_keeping", "two_pass", "instantiate"])
)
@pytest.mark.usefixtures("by_patches")
def test_norms_and_sums_equal_the_loop_by_patches(name, engine):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer, inputs = make().double(), torch.randn(shape, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(inputs), engine=engine)


@pytest.mark.parametrize("engine", ["book_keeping", "two_pass", "instantiate"])
@pytest.mark.parametrize("name", ["strided", "grouped", "1d", "standardized"])
@pytest.mark.usefixtures("by_patches")
def test_units_of_several_images_by_patches(name, engine):
    make, shape = LAYERS[name]
    layer, inputs = make().double(), torch.randn(shape, dtype=torch.float64)
    units = torch.tensor([7, 3, 7, 7])
    assert_equals_the_loop(layer, lambda: layer(inputs), engine=engine, units=units)


class Twice(nn.Module):
    """A convolution of two images of each example, of different sizes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 6, 3)

    def forward(self, images):
        return self.layer(images[:, :3]).sum((2, 3)) * self.layer(images[:, 3:, 1:]).sum((2, 3))


@pytest.mark.parametrize("engine", ["book_keeping", "two_pass", "instantiate"])
@pytest.mark.usefixtures("by_patches")
def test_a_layer_called_twice_by_patches(engine):
    torch.manual_seed(0)
    layer, inputs = Twice().double(), torch.randn(4, 6, 6, 5, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(inputs), engine=engine)


DEEP = (lambda: nn.Conv2d(48, 64, 3, padding=1), (4, 48, 3, 3))
WIDE = (lambda: nn.Conv2d(3, 8, 3, padding=1), (4, 3, 40, 40))


@pytest.mark.parametrize(
    ("layer", "kept", "ghost"), [(DEEP, False, True), (WIDE, True, False)], ids=["deep", "wide"]
)
def test_shapes_choose_how_norms_are_taken(layer, kept, ghost):
    """Few positions and many weights: a ghost norm; many positions and few weights: formed."""
    make, shape = layer
    seen = []

    def take(name, use):
        seen.append(use)

    made, inputs = make(), torch.randn(shape, requires_grad=True)
    recorder = Recorder(TrainableParameters(made))
    recorder.start(len(inputs))
    recorder.receive = take
    rules.convolution_forward(made, recorder)(inputs).sum().backward()
    use = seen[0]
    assert isinstance(use, GradientUse) is kept
    assert kept or choices.ghost_is_cheaper(use.shape) is ghost


@pytest.mark.parametrize(
    "engine", slow_but(("book_keeping",), ("book_keeping", "two_pass", "instantiate"))
)
@pytest.mark.parametrize("memory_mb", [0, 256])
@pytest.mark.parametrize(("make", "shape"), [DEEP, WIDE], ids=["deep", "wide"])
def test_choices_by_shape_equal_the_loop(make, shape, memory_mb, engine):
    torch.manual_seed(0)
    layer, inputs = make().double(), torch.randn(shape, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(inputs), engine=engine, memory_mb=memory_mb)


@pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)
def test_forward_and_input_gradient_are_the_layers_own(make, shape):
    torch.manual_seed(0)
    inputs = torch.randn(shape, dtype=torch.float64)
    assert_forward_and_input_gradient_are_the_layers_own(make().double(), inputs)


def test_a_frozen_weight_with_a_trainable_bias():
    layer = nn.Conv2d(3, 6, 3).double()
    layer.weight.requires_grad = False
    inputs = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(inputs))


@pytest.mark.parametrize("name", sorted(LAYERS.keys() - {"transposed", "3d"}))
def test_a_convolution_has_a_rule_whatever_it_pads_with(name):
    make, _ = LAYERS[name]
    assert find_rule(make()) is not None
