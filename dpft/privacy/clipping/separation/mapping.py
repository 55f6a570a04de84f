"""Runs a module once per example, so that weights without a rule get per-example gradients.

The weights are expanded to (b, …) without a copy, and the module's own forward is mapped over the
batch by ``torch.vmap``, each example as a batch of one: ordinary autograd then
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

from dpft.errors import RunError
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules.expansion import expanded
from dpft.privacy.clipping.rules.whole_batch import WholeBatchAttention
from dpft.privacy.clipping.separation.kept_state import random_state_kept_on_failure
from dpft.privacy.clipping.separation.region_arguments import (
    RegionArguments,
    output_axes,
    split_tensors,
)
from dpft.privacy.clipping.separation.regions import Region
from dpft.privacy.clipping.separation.slow_paths import NOT_ITS_OWN, reason_of, say_once

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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module; as it is where no gradient is asked for or a region is around it."""
        if not torch.is_grad_enabled() or self._recorder.in_region:
            return self._body(*args, **kwargs)
        with _keeping_activations(self._region.module):
            return self._run(RegionArguments((args, kwargs), self._region))

    def _run(self, arguments: RegionArguments) -> Any:
        region = self._region
        if not region.loops and not region.failures:
            try:
                with random_state_kept_on_failure(arguments.device):
                    outputs = self._mapped(arguments)
            except (RuntimeError, NotImplementedError) as error:
                region.failures.append(reason_of(error))
                # Not its message, which may tell the records' lengths.
                self._say(f"cannot be mapped over its examples ({type(error).__name__})")
            else:
                self._say(f"is mapped over its examples, since {region.cause.why}")
                return outputs
        reason = region.failures[0] if region.failures else NOT_ITS_OWN
        self._say(
            f"runs one example after another, which is slow, since {region.cause.why}, and "
            f"{reason}; {region.cause.remedy}",
            logging.WARNING,
        )
        return self._looped(arguments)

    def _say(self, predicate: str, level: int = logging.INFO) -> None:
        module, what = self._region.module, predicate.partition(",")[0]
        kind = (type(module), what, frozenset(self._region.inputs))
        say_once(self._region.model or module, kind, f"{type(module).__name__} {predicate}", level)

    def _mapped(self, arguments: RegionArguments) -> Any:
        weights = self._expand(self._region.expanded, arguments.count)
        rebuild: list[Callable[[Sequence[Tensor]], Any]] = []
        axes: list[int] = []

        def one(token: Tensor, own: dict[str, Tensor], rows: list[Tensor]) -> list[Tensor]:
            with self._recorder.inside(token), WholeBatchAttention(token):
                args, kwargs = arguments.with_rows([row.unsqueeze(0) for row in rows])
                outputs = functional_call(self._body, own, args, dict(kwargs), tie_weights=False)
            tensors, build = split_tensors(outputs)
            axes[:] = output_axes(tensors, self._region)
            rebuild[:] = [build]
            return [t.movedim(axis, 0) for t, axis in zip(tensors, axes, strict=True)]

        token = torch.zeros(arguments.count, device=arguments.device)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            stacked = torch.vmap(one, randomness="different")(token, weights, arguments.rows)
        joined = [self._joined(tensor) for tensor in stacked]
        return rebuild[0]([t.movedim(0, axis) for t, axis in zip(joined, axes, strict=True)])

    def _looped(self, arguments: RegionArguments) -> Any:
        """Runs example after example, with every trainable weight of the subtree expanded."""
        names = self._recorder.trainable.within(self._region.module)
        every = self._expand(names, arguments.count)
        parts: list[list[Tensor]] = []
        with self._recorder.inside(None):
            for row in range(arguments.count):
                args, kwargs = arguments.with_rows([r[row : row + 1] for r in arguments.rows])
                own = {name: values[row] for name, values in every.items()}
                outputs = functional_call(self._body, own, args, dict(kwargs), tie_weights=False)
                tensors, build = split_tensors(outputs)
                parts.append(tensors)
        axes = output_axes(parts[0], self._region)
        joined = zip(zip(*parts, strict=True), axes, strict=True)
        return build([torch.cat(rows, axis) for rows, axis in joined])

    def _expand(self, names: Mapping[str, str], count: int) -> dict[str, Tensor]:
        """Returns weights as (count, …) under their paths in the body; a tied one is one tensor.

        Args:
            names: What the weights are called in the model, by their paths in the region.
            count: The batch size.
        """
        known: dict[str, Tensor] = {}
        for path, name in names.items():
            if name not in known:
                owner, _, own = path.rpartition(".")
                # A caller's functional_call may have put a plain tensor in its place.
                weight = getattr(self._region.module.get_submodule(owner), own)
                if not isinstance(weight, nn.Parameter):
                    continue
                known[name] = expanded(weight, count, partial(self._recorder.record_as, name))
        return {f"module.{path}": known[name] for path, name in names.items() if name in known}

    def _joined(self, stacked: Tensor) -> Tensor:
        """Returns (b, …) from (b, 1, …)."""
        if stacked.dim() < 2 or stacked.shape[1] != 1:
            raise RunError(
                f"a {type(self._region.module).__name__} layer must give outputs that carry the "
                f"batch in front, got {tuple(stacked.shape[1:])} for one example; choose "
                "`engine='loop'`."
            )
        return stacked.flatten(0, 1)


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
