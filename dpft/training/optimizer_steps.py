"""Steps of optimizers that torch and transformers lack: DP-AdamBC, Muon with AdamW, T5's Adafactor.

Their configurations are in ``optimizers``, which is read before torch is imported.

- DP-AdamBC: Tang et al. 2023, arXiv 2312.14334, Algorithm 1.
- Adafactor that factors second moments where T5X does (Shazeer and Stern 2018, Algorithm 4).
  transformers' takes rows and columns of every matrix. T5X (``t5x/adafactor.py``) keeps a small
  matrix's second moments whole, as it does a vector's: there is little memory to save.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import PreTrainedModel
from transformers.optimization import Adafactor as TransformersAdafactor

from dpft.methods.base import input_embeddings

NOISE_STD, NOISE_MOMENT = "noise_std", "noise_moment"


class BiasCorrectedAdam(Optimizer):
    """Adam on a noisy gradient, less the noise's part of the second moment.

    With g the private gradient, of whose numbers each has noise of variance (sigma C / B)^2, step t
    is (Algorithm 1)::

        m <- beta1 m + (1 - beta1) g                m^ = m / (1 - beta1^t)
        v <- beta2 v + (1 - beta2) g^2              v^ = v / (1 - beta2^t)
        w <- w - lr m^ / sqrt(max(v^ - (sigma C / B)^2, gamma'))

    Where the variance differs between steps, as where a phase has another clipping norm, what v has
    of it is its mean with the weights that v gives to squares; so that is what is kept, one number
    for each parameter, and taken away. Of a constant variance it is that variance.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float],
        floor: float,
        weight_decay: float,
    ) -> None:
        """Makes the optimizer.

        Args:
            parameters: What it moves.
            lr: Learning rate.
            betas: Decay of the mean of gradients, and of that of squares.
            floor: gamma' as a share of the noise's variance.
            weight_decay: Apart from the gradient, as in AdamW.
        """
        defaults = {"lr": lr, "betas": betas, "floor": floor, "weight_decay": weight_decay}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Moves every parameter that has a gradient.

        Raises:
            RuntimeError: Nobody has told it the noise of this step.
        """
        assert closure is None
        for group in self.param_groups:
            noise_std = group.pop(NOISE_STD, None)
            if noise_std is None:
                raise RuntimeError("step must follow tell_noise.")
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group, noise_std)

    def _move(self, parameter: nn.Parameter, group: dict[str, Any], noise_std: float) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state[NOISE_MOMENT] = torch.zeros((), dtype=torch.float64)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        (beta1, beta2), rate = group["betas"], group["lr"]
        state["step"] += 1
        step = int(state["step"])
        state[NOISE_MOMENT].mul_(beta2).add_((1 - beta2) * noise_std**2)
        mean, squares = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(gradient, 1 - beta1)
        squares.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        seen = 1 - beta2**step
        noise = float(state[NOISE_MOMENT]) / seen
        signal = (squares / seen).sub_(noise).clamp_(min=group["floor"] * noise)
        parameter.mul_(1 - rate * group["weight_decay"])
        parameter.addcdiv_(mean, signal.sqrt_(), value=-rate / (1 - beta1**step))


def tell_noise(optimizer: Optimizer, noise_std: float) -> None:
    """Tells an optimizer the noise of the step that it takes next.

    Args:
        optimizer: One whose configuration ``needs_noise_std``.
        noise_std: Standard deviation in each number of the gradient, public.
    """
    if not noise_std > 0:
        raise ValueError(f"noise_std must be positive, got {noise_std}.")
    for group in optimizer.param_groups:
        group[NOISE_STD] = noise_std


class MuonAndAdamW(Optimizer):
    """Moves some matrices by Muon and everything else by AdamW.

    Both have this one's state and groups, so a schedule and a checkpoint see one optimizer.
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        others: Sequence[nn.Parameter],
        *,
        lr: float,
        weight_decay: float,
        matrix_settings: Mapping[str, Any],
        other_settings: Mapping[str, Any],
    ) -> None:
        """Makes the optimizer.

        Args:
            matrices: Moved by Muon; at least one.
            others: Moved by AdamW; may be none.
            lr: Of both.
            weight_decay: Of both.
            matrix_settings: Of torch's Muon.
            other_settings: Of torch's AdamW.
        """
        common: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        parts: list[Optimizer] = [
            Muon(matrices, **common, **matrix_settings, adjust_lr_fn="match_rms_adamw")
        ]
        if others:
            parts.append(AdamW(others, **common, **other_settings))
        super().__init__([group for part in parts for group in part.param_groups], common)
        for part in parts:
            part.state = self.state
        self._parts = parts

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Moves every parameter that has a gradient."""
        assert closure is None
        for part in self._parts:
            part.step()


def tables_and_heads(model: nn.Module) -> set[nn.Parameter]:
    """Returns what is no hidden layer: tables of embeddings, and all that stands behind the body.

    Args:
        model: A Hugging Face model, or one that peft has wrapped.
    """
    named: Any = model
    whole = named.get_base_model() if hasattr(model, "peft_config") else named
    apart = input_embeddings(model)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            apart.update(module.parameters(recurse=False))
    head = whole.get_output_embeddings() if isinstance(whole, PreTrainedModel) else None
    if head is not None:
        apart.update(head.parameters())
    body = getattr(whole, "base_model", whole)
    if body is not whole:
        inside = set(body.parameters())
        apart.update(p for p in whole.parameters() if p not in inside)
    return apart


def is_factored(shape: Sequence[int], min_dim_size_to_factor: int) -> bool:
    """Returns whether second moments are kept by rows and columns instead of whole.

    >>> is_factored((128, 512), 128), is_factored((32, 512), 128), is_factored((512,), 1)
    (True, False, False)

    Args:
        shape: The parameter's; its last two dimensions are rows and columns.
        min_dim_size_to_factor: The least size of both; 1: every matrix is factored.
    """
    return len(shape) >= 2 and min(shape[-2:]) >= min_dim_size_to_factor


class Adafactor(TransformersAdafactor):
    """transformers' Adafactor, with T5X's rule of which matrices are factored."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, min_dim_size_to_factor: int, **settings: Any
    ) -> None:
        """Makes the optimizer.

        Args:
            parameters: What it moves.
            min_dim_size_to_factor: As for ``is_factored``.
            settings: Those of transformers' Adafactor.
        """
        super().__init__(parameters, **settings)
        for group in self.param_groups:
            group["min_dim_size_to_factor"] = min_dim_size_to_factor

    @staticmethod
    def _get_options(param_group: dict[str, Any], param_shape: Sequence[int]) -> tuple[bool, bool]:
        """Returns whether to factor, and whether there is momentum, of a parameter."""
        factored = is_factored(param_shape, param_group["min_dim_size_to_factor"])
        return factored, param_group["beta1"] is not None
