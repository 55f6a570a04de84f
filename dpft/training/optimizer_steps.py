"""Steps of optimizers that torch and transformers lack: DP-AdamBC, Muon with AdamW.

Their configurations are in ``optimizers``, which is read before torch is imported. DP-AdamBC is
Algorithm 1 of Tang et al. 2023, arXiv 2312.14334.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import PreTrainedModel

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
