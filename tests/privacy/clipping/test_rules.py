"""Layers with a rule: linear, embedding, convolution and normalization, against the definition."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Dinov2Config
from transformers.models.dinov2.modeling_dinov2 import Dinov2LayerScale
from transformers.models.falcon.modeling_falcon import FalconLinear
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm
from transformers.pytorch_utils import Conv1D

from dpft.independence_check import StandardizedConv2d
from tests.privacy.clipping.oracle import assert_exact
from tests.slowness import slow_but, slow_but_every


class Doubled(FalconLinear):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


class OtherPadding(nn.Embedding):
    """Doubles what it looks up, with a padding index of its own."""

    def forward(self, ids: Tensor) -> Tensor:
        return 2 * F.embedding(ids, self.weight, padding_idx=1)


LAYERS = {
    "linear": (lambda: nn.Linear(3, 6), (4, 3)),
    "linear over time": (lambda: nn.Linear(3, 6), (4, 5, 3)),
    "linear over two dimensions": (lambda: nn.Linear(3, 6, bias=False), (4, 2, 5, 3)),
    "linear of one long row": (lambda: nn.Linear(3, 6), (4, 40, 3)),
    "wide linear of short rows": (lambda: nn.Linear(90, 80), (4, 2, 90)),
    "linear of many long rows": (lambda: nn.Linear(270, 260), (4, 150, 270)),
    "Conv1D": (lambda: Conv1D(6, 3), (4, 5, 3)),
    "Falcon's linear": (lambda: FalconLinear(3, 6), (4, 5, 3)),
    "subclass of Falcon's linear": (lambda: Doubled(3, 6), (4, 5, 3)),
    "patches": (lambda: nn.Conv2d(3, 6, 4, stride=4), (4, 3, 8, 8)),
    "strided": (lambda: nn.Conv2d(3, 6, 3, stride=2, padding=1), (4, 3, 7, 9)),
    "remainder": (lambda: nn.Conv2d(3, 6, 3, stride=2), (4, 3, 8, 8)),
    "dilated": (lambda: nn.Conv2d(2, 6, (3, 2), dilation=(2, 1), padding=(0, 1)), (4, 2, 9, 7)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (4, 4, 6, 6)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1, bias=False), (4, 4, 6, 6)),
    "many channels, few places": (lambda: nn.Conv2d(48, 64, 3, padding=1), (4, 48, 3, 3)),
    "few channels, many places": (lambda: nn.Conv2d(3, 8, 3, padding=1), (4, 3, 20, 20)),
    "1d": (lambda: nn.Conv1d(3, 6, 3, stride=2, padding=2, dilation=2), (4, 3, 9)),
    "same padding": (lambda: nn.Conv2d(3, 6, (4, 3), padding="same"), (4, 3, 6, 7)),
    "same padding, dilated": (
        lambda: nn.Conv2d(4, 6, 2, padding="same", dilation=3, groups=2),
        (4, 4, 6, 7),
    ),
    "reflected": (lambda: nn.Conv1d(3, 6, 3, padding=1, padding_mode="reflect"), (4, 3, 6)),
    "circular": (
        lambda: nn.Conv2d(3, 6, 3, padding=(2, 1), padding_mode="circular"),
        (4, 3, 6, 7),
    ),
    "standardized": (lambda: StandardizedConv2d(3, 6, 3, stride=2, padding=1), (4, 3, 7, 9)),
    "standardized, grouped": (
        lambda: StandardizedConv2d(4, 6, 3, groups=2, padding="same", bias=False),
        (4, 4, 6, 6),
    ),
    "3d": (lambda: nn.Conv3d(2, 3, 2), (4, 2, 3, 4, 4)),
    "LayerNorm": (lambda: nn.LayerNorm(6), (4, 5, 6)),
    "LayerNorm of two dimensions": (lambda: nn.LayerNorm((5, 6)), (4, 3, 5, 6)),
    "LayerNorm without bias": (lambda: nn.LayerNorm(6, bias=False), (4, 5, 6)),
    "RMSNorm": (lambda: nn.RMSNorm(6), (4, 5, 6)),
    "Llama's norm": (lambda: LlamaRMSNorm(6), (4, 5, 6)),
    "Gemma's norm": (lambda: Gemma3RMSNorm(6), (4, 5, 6)),
    "T5's norm": (lambda: T5LayerNorm(6), (4, 5, 6)),
    "layer scale": (lambda: Dinov2LayerScale(Dinov2Config(hidden_size=6)), (4, 5, 6)),
    "GroupNorm of vectors": (lambda: nn.GroupNorm(2, 6), (4, 6)),
    "GroupNorm": (lambda: nn.GroupNorm(3, 6, eps=0.1), (4, 6, 5)),
    "GroupNorm of images": (lambda: nn.GroupNorm(1, 6), (4, 6, 3, 5)),
}
TABLES = {
    "one token": (lambda: nn.Embedding(3, 6), (4,)),
    "repeated tokens": (lambda: nn.Embedding(3, 6), (4, 7)),
    "two dimensions of tokens": (lambda: nn.Embedding(3, 6), (4, 2, 5)),
    "padding": (lambda: nn.Embedding(5, 6, padding_idx=2), (4, 7)),
    "large table": (lambda: nn.Embedding(3000, 6), (4, 7)),
    "subclass": (lambda: OtherPadding(5, 6), (4, 7)),
}
ENGINES = ("book_keeping", "rows")


def weighted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return a random functional of each row's output; its weights are rows of the batch."""
    inputs, seeds = batch
    outputs = model(inputs).flatten(1)
    waves = (seeds[:, None] * torch.arange(1, outputs.shape[1] + 1)).sin().to(outputs.dtype)
    return (outputs * (3 * waves + 0.1 * outputs)).sum(1)


def batch_for(shape: tuple[int, ...], vocabulary: int = 0, dtype=torch.float32):
    torch.manual_seed(1)
    inputs = torch.randint(0, vocabulary, shape) if vocabulary else torch.randn(shape, dtype=dtype)
    return inputs, torch.rand(shape[0]) + 0.5


def made(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    if name in TABLES:
        make, shape = TABLES[name]
        layer = make()
        return layer, batch_for(shape, layer.num_embeddings)
    make, shape = LAYERS[name]
    return make(), batch_for(shape)


EVERY = [*LAYERS, *TABLES]


@pytest.mark.parametrize(
    ("name", "engine"),
    slow_but([(name, "book_keeping") for name in EVERY[::2]], product(EVERY, ENGINES)),
)
def test_norms_and_sums_are_those_of_single_example_execution(name, engine):
    layer, batch = made(name)
    assert_exact(layer, weighted, batch, engine=engine)


@pytest.mark.parametrize("name", slow_but_every(12, EVERY))
def test_rows_of_a_unit_are_added_up_before_the_norm(name):
    layer, (inputs, seeds) = made(name)
    batch = torch.cat([inputs, inputs[:2].flip(0)]), torch.cat([seeds, seeds[:2] + 1])
    assert_exact(layer, weighted, batch, rows_per_unit=2, engine="book_keeping")


@pytest.mark.parametrize("name", slow_but_every(12, [n for n in EVERY if n != "layer scale"]))
def test_a_frozen_part_of_a_layer_contributes_nothing(name):
    layer, batch = made(name)
    if getattr(layer, "bias", None) is None:
        pytest.skip("the layer has one parameter")
    layer.weight.requires_grad_(False)
    assert_exact(layer, weighted, batch, engine="book_keeping")
    assert layer.weight.grad is None


class Twice(nn.Module):
    """A layer that two parts of an example, of different sizes, pass through."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images[:, :3]).sum((2, 3)) * self.layer(images[:, 3:, 1:]).sum((2, 3))


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_a_layer_that_is_used_twice_has_one_gradient(engine):
    torch.manual_seed(0)
    assert_exact(Twice(nn.Conv2d(3, 6, 3)), weighted, batch_for((4, 6, 6, 5)), engine=engine)
    loop = nn.Sequential(*[nn.Linear(3, 3)] * 2)
    assert_exact(loop, weighted, batch_for((4, 5, 3)), engine=engine)
    mixed = nn.Sequential(nn.GroupNorm(2, 6), nn.Conv2d(6, 6, 1))
    assert_exact(nn.Sequential(mixed, mixed), weighted, batch_for((4, 6, 3, 3)), engine=engine)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_float64_is_exact_too(name):
    layer, (inputs, seeds) = made(name)
    assert_exact(layer.double(), weighted, (inputs.double(), seeds), engine="book_keeping")


@pytest.mark.parametrize("name", ["Llama's norm", "T5's norm", "LayerNorm", "linear", "Conv1D"])
def test_ordinary_layers_need_no_map_and_no_row_by_row_execution(name):
    layer, batch = made(name)
    choice = assert_exact(layer, weighted, batch).choice
    assert choice.engine == "book_keeping"
    assert not any("map" in kind for kind in choice.kinds.values())
