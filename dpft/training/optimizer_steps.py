"""Steps of optimizers that torch and transformers lack: DP-AdamBC, Muon with AdamW.

Their configurations are in ``optimizers``, which is read before torch is imported. DP-AdamBC is
Algorithm 1 of Tang et al. 2023, arXiv 2312.14334.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import PreTrainedModel

from dpft.methods.base import input_embeddings

NOISE_STD, NOISE_MOMENT = "noise_std", "noise_moment"
MOVED_AT_A_TIME = 2**22
"""Numbers of parameters that DP-AdamBC moves together (16 MB of what is kept meanwhile)."""


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
        """Makes the optimizer; ``floor`` is gamma' as a share of the noise's variance.

        Weight decay is apart from the gradient, as in AdamW.
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
            alike: dict[tuple[Any, ...], list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike[self._count(parameter, group, noise_std)].append(parameter)
            for (step, moment, *_), parameters in alike.items():
                for bucket in _buckets(parameters):
                    self._move(bucket, group, step, moment)

    def _count(
        self, parameter: nn.Parameter, group: dict[str, Any], noise_std: float
    ) -> tuple[Any, ...]:
        """Counts a step and its noise; returns what parameters that move together have alike."""
        state, beta2 = self.state[parameter], group["betas"][1]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state[NOISE_MOMENT] = torch.zeros((), dtype=torch.float64)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        state[NOISE_MOMENT].mul_(beta2).add_((1 - beta2) * noise_std**2)
        moment = float(state[NOISE_MOMENT])
        return int(state["step"]), moment, parameter.device, parameter.dtype

    def _move(
        self, parameters: Sequence[nn.Parameter], group: dict[str, Any], step: int, moment: float
    ) -> None:
        weights: list[Tensor] = list(parameters)
        gradients: list[Any] = [parameter.grad for parameter in parameters]
        means, squares = (
            [self.state[parameter][key] for parameter in parameters]
            for key in ("exp_avg", "exp_avg_sq")
        )
        (beta1, beta2), rate = group["betas"], group["lr"]
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        seen = 1 - beta2**step
        noise = moment / seen
        signal = torch._foreach_div(squares, seen)
        torch._foreach_sub_(signal, noise)
        torch._foreach_clamp_min_(signal, group["floor"] * noise)
        torch._foreach_sqrt_(signal)
        torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
        torch._foreach_addcdiv_(weights, means, signal, value=-rate / (1 - beta1**step))


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yields parameters in groups of few numbers, or of one parameter."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if bucket and size + parameter.numel() > MOVED_AT_A_TIME:
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket


def tell_noise(optimizer: Optimizer, noise_std: float) -> None:
    """Tells an optimizer that needs it the noise of the step that it takes next.

    It is the standard deviation in each number of the gradient, and public.
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
        """Makes the optimizer of at least one matrix; settings are torch's of each."""
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

    The model is Hugging Face's, or one that peft has wrapped.
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
