"""Runs of a model in training mode in which nothing is drawn, so that they can be held together."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

_DROPOUTS = frozenset(
    {
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
        torch.dropout,
        torch.dropout_,
    }
)
_WITH_A_RATE = {
    F.scaled_dot_product_attention: 4,
    F.multi_head_attention_forward: 10,
}
"""Functions that drop inside, and the place of their rate among the positional arguments."""
_CONSTANTS: Mapping[Callable[..., Any], Callable[[Tensor], Tensor]] = {
    torch.rand: lambda drawn: drawn.fill_(0.5),
    torch.rand_like: lambda drawn: drawn.fill_(0.5),
    torch.randn: lambda drawn: drawn.fill_(0.25),
    torch.randn_like: lambda drawn: drawn.fill_(0.25),
    torch.randperm: lambda drawn: drawn.sort(descending=True).values,
    torch.bernoulli: lambda drawn: drawn.fill_(1.0),
    Tensor.bernoulli_: lambda drawn: drawn.fill_(1.0),
    Tensor.uniform_: lambda drawn: drawn.fill_(0.5),
    Tensor.normal_: lambda drawn: drawn.fill_(0.25),
}
"""What draws, and what it gives instead, the same for every row and any number of rows."""

_DRAWN = frozenset(
    {
        *(func for func in _CONSTANTS if func is not torch.randperm),
        *(torch.randint, torch.randint_like, torch.normal, torch.multinomial, torch.poisson),
        *(Tensor.multinomial, Tensor.bernoulli, Tensor.random_, Tensor.exponential_),
        *(Tensor.geometric_, Tensor.cauchy_, Tensor.log_normal_),
    }
)
"""What draws; a permutation of rows is held still, for of fewer rows it is another."""


class Draws:
    """What a function of the caller's draws: kept in a run on all rows, given again for some."""

    def __init__(self) -> None:
        """Keeps what is drawn from now on."""
        self._kept: list[Tensor] = []
        self._next: int | None = None

    def again(self) -> None:
        """Gives from now on what was kept, from the first."""
        self._next = 0

    def draw(
        self,
        func: Callable[..., Any],
        args: Any,
        options: Mapping[str, Any],
        cut: Mapping[int, Tensor],
    ) -> Any:
        """Returns what a function gives, whose draw is kept or was kept.

        Args:
            func: Any of torch's functions.
            args: Its arguments.
            options: Its keyword arguments.
            cut: Which rows are taken of how many.

        Raises:
            ValueError: What was kept has another shape.
        """
        drawn = func(*args, **options)
        if func not in _DRAWN or options.get("generator") is not None:
            return drawn
        if self._next is None:
            self._kept.append(drawn.detach().clone())
            return drawn
        kept = self._kept[self._next] if self._next < len(self._kept) else drawn.new_empty(0)
        self._next += 1
        if kept.shape != drawn.shape and kept.dim() and len(kept) in cut:
            kept = kept[cut[len(kept)].to(kept.device)]
        if kept.shape != drawn.shape:
            raise ValueError("what is drawn for fewer rows is of another shape")
        with torch.no_grad():
            return drawn.copy_(kept)


def is_held_still() -> bool:
    """Whether what runs now is held still: a mode is not seen where ``vmap`` calls a rule."""
    return any(isinstance(mode, HeldStill) for mode in _get_current_function_mode_stack())


class HeldStill(TorchFunctionMode):
    """Lets dropout pass everything and gives constants for what is drawn; modules stay as they are.

    Not all that draws is known here: what is left shows in the state of the generators.
    """

    def __init__(self, *, noise: bool = True) -> None:
        """Prepares.

        Args:
            noise: Whether numbers that are drawn become constants; a caller may draw its whole
                batch, of which constants would say nothing.
        """
        super().__init__()
        self._noise = noise

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs a function without its randomness."""
        options = dict(kwargs or {})
        if func in _DROPOUTS:
            inputs: Tensor = args[0] if args else options["input"]
            return inputs.clone()
        if self._is_constant(func, options):
            # Drawn first, so that shape, dtype and refusals are those of the function.
            with torch.no_grad(), torch.random.fork_rng(devices=()):
                return _CONSTANTS[func](func(*args, **options))
        place = _WITH_A_RATE.get(func)
        if place is not None:
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            elif "dropout_p" in options:
                options["dropout_p"] = 0.0
        return func(*args, **options)

    def _is_constant(self, func: Any, options: Mapping[str, Any]) -> bool:
        if func not in _CONSTANTS or options.get("generator") is not None:
            return False
        return self._noise or func is torch.randperm
