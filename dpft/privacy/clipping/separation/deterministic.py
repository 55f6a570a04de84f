"""Deterministic re-execution: snapshots of a model's state, and runs in which nothing is drawn.

Checks run a model several times on the same rows and compare what it gives. So that nobody sees
these runs, the random state, buffers and training modes are snapshots that are put back; and so
that they can be compared, dropout passes everything and random numbers become constants, while the
modules stay in the mode they are in.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from dpft.devices import (
    add_in_one_order,
    order_of_addition_kept,
    random_state,
    random_states_kept,
    set_random_state,
)


@dataclass(frozen=True)
class RandomState:
    """The state of torch's generators, of the CPU and of one device."""

    device: torch.device
    cpu: Tensor
    own: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> Self:
        """Returns the state that the generators are in now."""
        return cls(device, torch.get_rng_state(), random_state(device))

    def restore(self) -> None:
        """Puts the state back, so that what was drawn after ``now`` is drawn again."""
        torch.set_rng_state(self.cpu)
        if self.own is not None:
            set_random_state(self.device, self.own)

    @property
    def was_left(self) -> bool:
        """Whether anything was drawn since."""
        now = type(self).now(self.device)
        same = torch.equal(now.cpu, self.cpu)
        if self.own is not None and now.own is not None:
            same = same and torch.equal(now.own, self.own)
        return not same


class BufferSnapshot:
    """A model's buffers as they are now: which they are, what they hold, and what changed."""

    def __init__(self, root: nn.Module) -> None:
        self._kept = [
            (module, name, buffer, buffer.clone())
            for module in root.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]

    def restore(self) -> None:
        """Puts back the buffers that were replaced, and what they held."""
        with torch.no_grad():
            for module, name, buffer, before in self._kept:
                module._buffers[name] = buffer
                buffer.copy_(before)

    def changed(self) -> dict[tuple[nn.Module, str], Tensor]:
        """Returns copies of the buffers that hold something else since."""
        return {
            (module, name): now.clone()
            for module, name, _, before in self._kept
            if (now := module._buffers.get(name)) is not None and not torch.equal(now, before)
        }


class ModelSnapshot:
    """Buffers and training modes of a model, to be put back after a run that nobody is to see."""

    def __init__(self, root: nn.Module) -> None:
        self._buffers = BufferSnapshot(root)
        self._modes = [(module, module.training) for module in root.modules()]

    def restore(self) -> None:
        """Puts them back."""
        self._buffers.restore()
        for module, mode in self._modes:
            module.training = mode


@contextmanager
def random_state_restored_on_failure(device: torch.device) -> Iterator[None]:
    """Puts the random state back if the body raises: a second attempt draws the same numbers."""
    state = RandomState.now(device)
    try:
        yield
    except BaseException:
        state.restore()
        raise


@contextmanager
def state_preserved(root: nn.Module) -> Iterator[None]:
    """Puts random state and the model's buffers back at the end: nobody is to see the runs."""
    devices = {parameter.device for parameter in root.parameters()}
    buffers = BufferSnapshot(root)
    with random_states_kept(devices):
        try:
            yield
        finally:
            buffers.restore()


@contextmanager
def one_order_of_addition(device: torch.device) -> Iterator[None]:
    """Makes an accelerator's kernels add in one order, so that two runs give the same bits.

    Attention's backward kernels add in any order as they come, and half precision shows it: a
    gradient then differs from itself by more than another example's share that is looked for. On
    a CPU nothing changes. A layer whose kernel knows no one order raises an error that
    ``knows_no_order`` tells from others.
    """
    with order_of_addition_kept():
        add_in_one_order(device, strictly=True)
        yield


def knows_no_order(error: BaseException) -> bool:
    """Whether an error says that a kernel adds in any order alone."""
    return isinstance(error, RuntimeError) and "deterministic" in str(error)


@contextmanager
def evaluating(root: nn.Module) -> Iterator[None]:
    """Puts every module into evaluation mode for a while.

    Recurrent layers only drop nothing: cuDNN runs them back in training mode alone.
    """
    modes = [(module, module.training) for module in root.modules()]
    recurrent = [(m, m.dropout) for m in root.modules() if isinstance(m, nn.RNNBase)]
    root.eval()
    for layer, _ in recurrent:
        layer.training, layer.dropout = True, 0.0
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for layer, rate in recurrent:
            layer.dropout = rate


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
"""What draws; a permutation of rows becomes a constant, for of fewer rows it is another."""


class Draws:
    """What a function of the caller's draws: kept in a run on all rows, given again for some."""

    def __init__(self) -> None:
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


def in_deterministic_mode() -> bool:
    """Whether nothing is drawn now: ``vmap`` calls a rule outside of what a mode sees."""
    return any(isinstance(mode, DeterministicMode) for mode in _get_current_function_mode_stack())


class DeterministicMode(TorchFunctionMode):
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
        known = func in _CONSTANTS and options.get("generator") is None
        if known and (self._noise or func is torch.randperm):
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
