"""Frozen weights in 4 or 8 bits below a trained adapter (QLoRA, Dettmers et al. 2023).

``model.quantization=nf4`` stores each weight of a linear layer in four bits: sixteen levels at
equal quantiles of a normal distribution, with one scale per 64 weights. The scale itself is stored
in eight bits (arXiv 2305.14314, sections 3.1 and 3.2). ``int8`` stores a weight in eight bits, with
one scale per output (Dettmers et al. 2022, arXiv 2208.07339, section 2). transformers loads the
weights by its own ``BitsAndBytesConfig``. Embeddings and the head are not quantized.

The layers are those of bitsandbytes, but their arithmetic is not. In this module, a frozen layer
multiplies once by its dequantized weight. The weight is dequantized for the forward pass, is not
kept, and is dequantized again for the backward pass. Exact clipping needs this arithmetic, and
bitsandbytes differs in three places:

- LLM.int8() multiplies in 16 bits the columns in which any activation *of the batch* is large, so
  one example changes the output of another.
- Its 8-bit product rounds activations to 255 levels. The last bit of a sum, which depends on the
  shape of the batch, therefore moves an output by a level.
- On a CPU with AVX512-BF16, its 4-bit layer repacks the weights at the first evaluation and rounds
  their scales. This overwrites the frozen state, and training continues with a different one.
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
"""Number of levels of an int8 weight on each side of zero."""
BLOCK, OUTER_BLOCK = 64, 256
"""Number of weights per nf4 scale, and number of scales per outer scale, which stores them in eight
bits."""


def bits_config(quantization: str) -> BitsAndBytesConfig:
    """Return the ``quantization_config`` for ``from_pretrained``.

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
    """A bitsandbytes layer that multiplies by its dequantized weight and writes to no state.

    Guarantees:
        An output depends only on its own row and on the frozen weight, in training and in
        evaluation. autograd keeps nothing for the backward pass.
    """

    in_features: int
    out_features: int
    weight: nn.Parameter
    bias: nn.Parameter | None
    is_planned: bool = False
    """Whether the layer exists only for its shapes, so that its weight has no values."""

    def weight_in(self, dtype: torch.dtype) -> Tensor:
        """Return the dequantized weight of the layer, shape (out_features, in_features).

        Args:
            dtype: Type to which the weight is rounded, from float32.
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
        """Return the product for inputs (..., in_features), shape (..., out_features)."""
        device = inputs.device.type
        dtype = inputs.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        bias = None if self.bias is None else self.bias.to(dtype)
        product: Tensor = _FrozenProduct.apply(inputs.to(dtype), self)
        return product if bias is None else product + bias


class _FrozenProduct(torch.autograd.Function):
    """Product ``x W^T`` with a weight that is dequantized when needed and gets no gradient."""

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
    """Return the frozen subclass of a bitsandbytes class, which peft treats as that class."""
    return type(f"Frozen{layer_class.__name__}", (FrozenLinear, layer_class), {})


def freeze_arithmetic(model: nn.Module) -> int:
    """Make each quantized layer of a model a ``FrozenLinear``, and release its checkpoint.

    Parameters that are not quantized share memory with the checkpoint's file, which keeps the whole
    file in memory. They are copied, so that the file can be released.

    Args:
        model: Model as loaded by transformers; changed in place.

    Returns:
        Number of quantized layers.
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
    """Return a model on the meta device whose layers have the size of quantized layers."""
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
    """Return a parameter with the bytes of the weight and its scales, without values."""
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
    """Return the model with ordinary float32 layers, which have exactly the dequantized weights.

    Args:
        model: Model that peft has not wrapped; do not use it afterwards.
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
