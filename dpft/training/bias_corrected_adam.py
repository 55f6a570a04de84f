"""DP-AdamBC's steps (Tang et al. 2023, arXiv 2312.14334, Algorithm 1).

A file of its own, so that the configuration of an optimizer can be read without importing torch.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

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
