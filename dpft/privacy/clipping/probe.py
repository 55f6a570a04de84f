"""Probe that finds the tensors with a batch dimension by running the model on 2 and on 3 units."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from dpft.errors import DpftError, InputError
from dpft.privacy.clipping.batches import count_rows, take_rows
from dpft.privacy.clipping.options import LossFunction

Place = str
"""Position of a tensor in the arguments or outputs of a module."""
Shapes = dict[Place, torch.Size]


@dataclass
class Calls:
    """The batch dimensions in the calls of a module.

    Attributes:
        inputs: Batch dimension of each tensor argument; None if there is no batch dimension.
        outputs: Batch dimension of each output.
        axis: Batch dimension of the first tensor argument.
        shape: Shape of the first tensor argument, in the run on 3 units.
        batch_multiple: Size of the arguments' batch dimension divided by the number of rows, such
            as 2 if a model joins two texts per row; 0 if no argument has a batch dimension.
        is_uniform: Whether the batch dimensions were the same in all calls.
    """

    inputs: dict[Place, int | None] = field(default_factory=dict)
    outputs: dict[Place, int | None] = field(default_factory=dict)
    axis: int | None = None
    shape: torch.Size = torch.Size()
    batch_multiple: int = 0
    is_uniform: bool = True

    @property
    def can_be_mapped(self) -> bool:
        """Whether an argument has a batch dimension, which is its first or second dimension."""
        return self.is_uniform and any(axis in (0, 1) for axis in self.inputs.values())


def observe_calls(
    model: nn.Module,
    losses_of: LossFunction,
    batch: Any,
    paths: Iterable[str],
    rows_per_unit: int = 1,
) -> dict[str, Calls]:
    """Return how the modules at ``paths`` are called, by path.

    The function runs the model on 2 and on 3 units of the batch, and compares the shapes of all
    arguments and outputs. Modules that did not run are missing.
    """
    paths, rows = list(paths), count_rows(batch)
    two, three = (
        _shapes(
            model,
            losses_of,
            take_rows(batch, [row % rows for row in range(units * rows_per_unit)]),
            paths,
        )
        for units in (2, 3)
    )
    return {
        path: _calls(two[path], three[path], 3 * rows_per_unit)
        for path in paths
        if two[path] and three[path]
    }


def _calls(
    two: list[tuple[Shapes, Shapes]], three: list[tuple[Shapes, Shapes]], batch_size: int
) -> Calls:
    calls = list(zip(two, three, strict=False))
    inputs = [_axes(a[0], b[0]) for a, b in calls]
    outputs = [_axes(a[1], b[1]) for a, b in calls]
    place, shape = next(iter(three[0][0].items()), ("", torch.Size()))
    rows = [three[0][0][p][axis] // batch_size for p, axis in inputs[0].items() if axis is not None]
    first_axes = {next(iter(axes.values()), None) for axes in inputs}
    return Calls(
        inputs=inputs[0],
        outputs=outputs[0],
        axis=inputs[0].get(place),
        shape=shape,
        batch_multiple=rows[0] if rows else 0,
        is_uniform=all(axes == inputs[0] for axes in inputs) or first_axes == {0},
    )


def _axes(two: Shapes, three: Shapes) -> dict[Place, int | None]:
    """Return each tensor's first dimension that grew from 2 to 3 units by a factor of 3 / 2."""
    return {
        place: next(
            (
                k
                for k, (a, b) in enumerate(zip(shape, three[place], strict=False))
                if a * 3 == b * 2 != 0
            ),
            None,
        )
        for place, shape in two.items()
        if place in three
    }


def _shapes(
    model: nn.Module, losses_of: LossFunction, batch: Any, paths: list[str]
) -> dict[str, list[tuple[Shapes, Shapes]]]:
    """Return the shapes of inputs and outputs of each call of the modules at ``paths``."""
    seen: dict[str, list[tuple[Shapes, Shapes]]] = defaultdict(list)

    def note(path: str, module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        seen[path].append((_shapes_in((args, kwargs)), _shapes_in(outputs)))

    hooks = [
        model.get_submodule(path).register_forward_hook(partial(note, path), with_kwargs=True)
        for path in paths
    ]
    try:
        with random_state_kept(), subsets_must_run():
            plain_losses(lambda: losses_of(model, batch))
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _shapes_in(tree: Any) -> Shapes:
    leaves = tree_flatten_with_path(tree)[0]
    return {keystr(path): leaf.shape for path, leaf in leaves if isinstance(leaf, Tensor)}


def plain_losses(call: Callable[[], Tensor]) -> Tensor:
    """Return losses without a graph, or with a graph if ``losses_of`` itself computes gradients."""
    try:
        with torch.no_grad():
            return call()
    except RuntimeError as error:
        if "does not require grad" not in str(error):
            raise
        return call().detach()


@contextmanager
def subsets_must_run() -> Iterator[None]:
    """Turn errors of ``losses_of`` on a subset of a batch's rows into one readable error.

    Raises:
        InputError: An error was raised inside the block.
    """
    try:
        yield
    except DpftError:
        raise
    except (RuntimeError, IndexError, KeyError, TypeError, ValueError, AssertionError) as error:
        if is_out_of_memory(error):
            raise
        raise InputError(
            "the model and its loss must run on any subset of a batch's rows, but raised"
            f" {type(error).__name__} on one. Make both independent of the number of rows.",
            key="model",
        ) from error


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that a device or the CPU allocator has too little memory."""
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore torch's random generators after the block."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        yield
