"""Quantize frozen weights to 4 or 8 bits below a trained adapter (QLoRA, Dettmers et al. 2023).

``model.quantization=nf4`` holds each weight of a linear layer in four bits, sixteen levels at equal
quantiles of a normal, with a scale for each 64 of them that is itself held in eight bits
(arXiv 2305.14314, sections 3.1 and 3.2); ``int8`` holds it in eight, with a scale for each output
(Dettmers et al. 2022, arXiv 2208.07339, section 2). transformers loads them, by its own
``BitsAndBytesConfig``. Embeddings and the head stay as they are.

The layers are bitsandbytes', their arithmetic is not. A frozen layer here is one product with the
dequantized weight, formed for the forward pass and formed again for the backward pass, of which
nothing is kept. That is what an exact clip needs, and bitsandbytes does otherwise in three places:

- LLM.int8() multiplies in 16 bits the columns in which any activation *of the batch* is large, so
  that one example changes what another gets.
- Its 8-bit product rounds activations to 255 levels, so that the last bit of a sum, which follows
  the batch's shape, moves an output by a level.
- On a CPU with AVX512-BF16 its 4-bit layer repacks the weights when it is first evaluated, and
  rounds their scales: the frozen state is written to, and training goes on with another one.
"""

from functools import cache
from math import ceil
from typing import Any, cast

import torch
import torch.nn.functional as F
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn.modules import Linear4bit, Linear8bitLt
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import get_keys_to_not_convert

NF4, INT8 = "nf4", "int8"
LEVELS = 127
"""Of an int8 weight, to each side of zero."""
BLOCK, OUTER_BLOCK = 64, 256
"""Weights of an nf4 scale, and scales of the scale that they are held in eight bits by."""


def bits_config(quantization: str) -> BitsAndBytesConfig:
    """Return what ``from_pretrained`` takes as ``quantization_config``.

    Args:
        quantization: ``nf4`` or ``int8``.
    """
    if quantization == NF4:
        return BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=NF4,
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )
    return BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)


class FrozenLinear:
    """A layer of bitsandbytes that multiplies by its dequantized weight, and writes nothing.

    Guarantees:
        An output is a function of its own row and of the frozen weight, in training and in
        evaluation alike; autograd keeps nothing for the backward pass.
    """

    in_features: int
    out_features: int
    weight: nn.Parameter
    bias: nn.Parameter | None
    is_planned: bool = False
    """Whether it is there for its shapes alone; then its weight has no values."""

    def weight_in(self, dtype: torch.dtype) -> Tensor:
        """Return the weight that the layer stands for, shape (out_features, in_features).

        Args:
            dtype: What it is rounded to, from float32.
        """
        if self.is_planned:
            shape = self.out_features, self.in_features
            return torch.empty(shape, dtype=dtype, device=self.weight.device)
        held: Any = self.weight
        if isinstance(self, Linear4bit):
            weight: Tensor = dequantize_4bit(held.data, held.quant_state)
            return weight.to(dtype)
        scales = held.SCB.float() / LEVELS
        scaled: Tensor = held.data.float() * scales[:, None]
        return scaled.to(dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the product of (..., in_features), shape (..., out_features)."""
        device = inputs.device.type
        dtype = inputs.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        bias = None if self.bias is None else self.bias.to(dtype)
        product: Tensor = _FrozenProduct.apply(inputs.to(dtype), self)
        return product if bias is None else product + bias


class _FrozenProduct(torch.autograd.Function):
    """``x W^T`` of a weight that is formed when it is needed; its own gradient there is none."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, layer: FrozenLinear) -> Tensor:
        return F.linear(inputs, layer.weight_in(inputs.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, FrozenLinear], output: Tensor) -> None:
        ctx.layer = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.layer.weight_in(gradient.dtype), None


@cache
def _frozen_class(layer_class: type[nn.Linear]) -> type[nn.Linear]:
    """Return the class of the layers of one class of bitsandbytes', which peft takes for it."""
    return type(f"Frozen{layer_class.__name__}", (FrozenLinear, layer_class), {})


def freeze_arithmetic(model: nn.Module) -> int:
    """Make each quantized layer of a model a ``FrozenLinear``, and lets its checkpoint go.

    What is not quantized lies in the checkpoint's file until it is copied, which keeps in memory
    all of the file that was read.

    Args:
        model: As transformers loaded it; changed in place.

    Returns:
        How many layers there are.
    """
    count = 0
    for module in model.modules():
        if isinstance(module, Linear4bit | Linear8bitLt):
            if not isinstance(module, FrozenLinear):
                layer: Any = module
                kind: Any = type(module)
                layer.__class__ = _frozen_class(kind)
            module.requires_grad_(False)
            count += 1
    for parameter in model.parameters():
        if parameter.is_floating_point() and not parameter.is_meta:
            parameter.data = parameter.data.clone()
    return count


def plan_quantized(model: PreTrainedModel, quantization: str) -> PreTrainedModel:
    """Return a model on the meta device with layers of the size that loading would give it."""
    keep = get_keys_to_not_convert(model)
    model = replace_with_bnb_linear(model, keep, bits_config(quantization))
    freeze_arithmetic(model)
    for module in model.modules():
        if isinstance(module, FrozenLinear):
            module.is_planned = True
            module.weight = _planned_weight(module)
    flags: Any = model
    flags.is_loaded_in_4bit, flags.is_loaded_in_8bit = quantization == NF4, quantization == INT8
    return model


def _planned_weight(layer: FrozenLinear) -> nn.Parameter:
    """Return a parameter of as many bytes as the weight and its scales take, without values."""
    numbers, kind = layer.in_features * layer.out_features, cast(Any, type(layer.weight))
    fields: dict[str, Any] = {}
    if isinstance(layer, Linear4bit):
        blocks = ceil(numbers / BLOCK)
        size = ceil(numbers / 2) + blocks + 4 * ceil(blocks / OUTER_BLOCK)
        fields = {"compress_statistics": True, "quant_type": NF4, "bnb_quantized": True}
    else:
        size = numbers + 4 * layer.out_features
    data = torch.empty((size, 1), dtype=torch.uint8, device="meta")
    planned: nn.Parameter = kind(data, requires_grad=False, **fields)
    return planned


def dequantized(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model with ordinary float32 layers, of the very weights that it multiplied by.

    Args:
        model: Not in a wrapper of peft's; it is used up.
    """
    for name, module in list(model.named_modules()):
        if not isinstance(module, FrozenLinear):
            continue
        weight, held = module.weight_in(torch.float32), cast(Any, module)
        if held.source_cls is Conv1D:
            layer: Any = Conv1D(module.out_features, module.in_features)
            weight = weight.T.contiguous()
        else:
            layer = nn.Linear(module.in_features, module.out_features, module.bias is not None)
        layer.weight = nn.Parameter(weight)
        if module.bias is not None:
            layer.bias = module.bias
        model.set_submodule(name, layer)
    plain: Any = model
    plain.is_loaded_in_4bit = plain.is_loaded_in_8bit = plain.is_quantized = False
    plain.hf_quantizer = None
    del plain.config.quantization_config
    return model
