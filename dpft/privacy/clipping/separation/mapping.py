"""Runs a module once per example, so that weights without a rule get per-example gradients.

The weights are expanded to (b, …) without a copy, and the module's own forward is mapped over the
batch by ``torch.vmap``, each example with a leading dimension of one: ordinary autograd then
gives (b, …) gradients, exact whatever the module computes, and weights used without the batch
dimension carry it. Layers with a rule step out of the map and record as ever. Where ``vmap``
cannot run the module (a value read from a tensor), a loop over the examples does.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from dpft.errors import RunError
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules.expansion import expanded
from dpft.privacy.clipping.rules.whole_batch import WholeBatchAttention
from dpft.privacy.clipping.separation.arguments import fresh
from dpft.privacy.clipping.separation.flow import Status
from dpft.privacy.clipping.separation.kept_state import random_state_kept_on_failure
from dpft.privacy.clipping.separation.regions import Region

logger = logging.getLogger(__name__)
_logged: set[str] = set()


class _Body(nn.Module):
    """A region's forward, without its hooks, as a module whose parameters can be swapped."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self.run = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class MappedForward:
    """The forward of a region: the module's own on each example alone, mapped over all of them."""

    def __init__(
        self, region: Region, recorder: Recorder, forward: Callable[..., Any] | None = None
    ) -> None:
        """Prepares for a region.

        Args:
            region: What to run.
            recorder: What its layers with rules, and the expanded weights, report to.
            forward: The module's recording forward where it has a rule itself; else its own.
        """
        self._region = region
        self._recorder = recorder
        own = partial(type(region.module).forward, region.module)
        self._body = _Body(region.module, forward or own)
        self._loops = region.loops

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module; as it is where no gradient is asked for or a region is around it."""
        if not torch.is_grad_enabled() or self._recorder.in_region:
            return self._body(*args, **kwargs)
        with _keeping_activations(self._region.module):
            return self._run(_Arguments((args, kwargs), self._region))

    def _run(self, arguments: "_Arguments") -> Any:
        kind = type(self._region.module).__name__
        if not self._loops:
            try:
                with random_state_kept_on_failure(arguments.device):
                    outputs = self._mapped(arguments)
                log_once(f"{kind} has no rule: it is mapped over its examples")
                return outputs
            except (RuntimeError, NotImplementedError) as error:
                self._loops = True
                # Not its message, which may tell the records' lengths.
                log_once(f"{kind} cannot be mapped over its examples ({type(error).__name__})")
        log_once(f"{kind} runs one example after another: slow", logging.WARNING)
        return self._looped(arguments)

    def _mapped(self, arguments: "_Arguments") -> Any:
        weights = self._expand(self._region.expanded, arguments.count)
        rebuild: list[Callable[[Sequence[Tensor]], Any]] = []

        def one(token: Tensor, own: dict[str, Tensor], rows: list[Tensor]) -> list[Tensor]:
            with self._recorder.inside(token), WholeBatchAttention(token):
                args, kwargs = arguments.with_rows([row.unsqueeze(0) for row in rows])
                outputs = functional_call(self._body, own, args, dict(kwargs), tie_weights=False)
            tensors, build = _split_tensors(outputs)
            rebuild[:] = [build]
            return tensors

        token = torch.zeros(arguments.count, device=arguments.device)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            stacked = torch.vmap(one, randomness="different")(token, weights, arguments.rows)
        return rebuild[0]([self._joined(tensor) for tensor in stacked])

    def _looped(self, arguments: "_Arguments") -> Any:
        """Runs example after example, with every trainable weight of the subtree expanded."""
        names = self._recorder.trainable.within(self._region.module)
        every = self._expand(names, arguments.count)
        parts: list[list[Tensor]] = []
        with self._recorder.inside(None):
            for row in range(arguments.count):
                args, kwargs = arguments.with_rows([r[row : row + 1] for r in arguments.rows])
                own = {name: values[row] for name, values in every.items()}
                outputs = functional_call(self._body, own, args, dict(kwargs), tie_weights=False)
                tensors, build = _split_tensors(outputs)
                parts.append(tensors)
        return build([torch.cat(rows) for rows in zip(*parts, strict=True)])

    def _expand(self, names: Mapping[str, str], count: int) -> dict[str, Tensor]:
        """Returns weights as (count, …) under their paths in the body; a tied one is one tensor.

        Args:
            names: What the weights are called in the model, by their paths in the region.
            count: The batch size.
        """
        known: dict[str, Tensor] = {}
        for path, name in names.items():
            if name not in known:
                weight = self._region.module.get_parameter(path)
                known[name] = expanded(weight, count, partial(self._recorder.record_as, name))
        return {f"module.{path}": known[name] for path, name in names.items()}

    def _joined(self, stacked: Tensor) -> Tensor:
        """Returns (b, …) from (b, 1, …)."""
        if stacked.dim() < 2 or stacked.shape[1] != 1:
            raise RunError(
                f"a {type(self._region.module).__name__} layer must give outputs that carry the "
                f"batch in front, got {tuple(stacked.shape[1:])} for one example; choose "
                "privacy.engine=loop."
            )
        return stacked.flatten(0, 1)


class _Arguments:
    """The arguments of a region's call, with the tensors that carry the batch set apart."""

    def __init__(self, tree: Any, region: Region) -> None:
        """Finds the tensors that carry the batch.

        Args:
            tree: The call's positional and keyword arguments.
            region: What is called.

        Raises:
            RunError: No argument carries the batch.
        """
        places, self._spec = pytree.tree_flatten_with_path(tree)
        self._leaves = [leaf for _, leaf in places]
        status = [region.inputs.get(pytree.keystr(place)) for place, _ in places]
        known = [i for i, s in enumerate(status) if s is Status.BATCH]
        tensors = [i for i, leaf in enumerate(self._leaves) if _has_rows(leaf)]
        first = next(iter(known or tensors), None)
        if first is None:
            raise RunError(
                f"a {type(region.module).__name__} layer, whose {', '.join(region.expanded)} is "
                "trainable, must take an input that carries the batch, got none; freeze it or "
                "choose privacy.engine=loop."
            )
        self.count = len(self._leaves[first])
        self.device = self._leaves[first].device
        # What had one row to be broadcast may have b of them behind another region.
        everyones = {Status.SHARED} if region.widened else {Status.SHARED, Status.ONE}
        self._mapped = [
            i for i in tensors if status[i] not in everyones and len(self._leaves[i]) == self.count
        ]
        self.rows: list[Tensor] = [self._leaves[i] for i in self._mapped]

    def with_rows(self, rows: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with other tensors in the places that carry the batch."""
        leaves = [fresh(leaf) for leaf in self._leaves]
        for place, row in zip(self._mapped, rows, strict=True):
            leaves[place] = row
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(
            leaves, self._spec
        )
        return arguments


def _split_tensors(outputs: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """Returns the tensors of nested outputs, and what puts others in their places."""
    leaves, spec = pytree.tree_flatten(outputs)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def build(tensors: Sequence[Tensor]) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        return pytree.tree_unflatten(filled, spec)

    return [leaves[i] for i in places], build


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0


@contextmanager
def _keeping_activations(module: nn.Module) -> Iterator[None]:
    """Turns off gradient checkpointing inside a region: recomputing would happen outside of it."""
    switched = [m for m in module.modules() if vars(m).get("gradient_checkpointing") is True]
    for layer in switched:
        vars(layer)["gradient_checkpointing"] = False
    try:
        yield
    finally:
        for layer in switched:
            vars(layer)["gradient_checkpointing"] = True


def log_once(message: str, level: int = logging.INFO) -> None:
    """Logs a message of the clipper, the first time that it is given."""
    if message not in _logged:
        _logged.add(message)
        logger.log(level, "clipping: %s", message)
