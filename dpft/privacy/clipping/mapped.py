"""Execution of a module on each row with ``torch.vmap``, for parameters without a layer rule.

Each parameter is expanded to (rows, ...) without a copy, and the module's own forward is mapped
over its rows, each a batch of one. Ordinary autograd then computes one gradient per row, for any
module. Layers with a rule inside the module leave the map: they run on all rows at once and record
as usual, because a map would form one gradient of their large weights per row.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from dpft.privacy.clipping.probe import Place
from dpft.privacy.clipping.recorder import Recorder, UseError
from dpft.privacy.clipping.rules import Forward, Site, expanded


class _LeaveMap(torch.autograd.Function):
    """Function that calls another function on the tensors of all rows, from inside a map."""

    @staticmethod
    def forward(inputs: Tensor, call: Callable[[Tensor], Tensor]) -> Tensor:
        """Raise an error, because only a tensor that the map does not cover gets here."""
        raise RuntimeError("a layer inside a mapped module was used on a tensor without rows")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save nothing, because ``call`` builds the graph for the backward pass."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, inputs: Tensor, call: Callable[[Tensor], Tensor]) -> Any:
        """Run ``call`` on the tensors of all rows."""
        return call(inputs.movedim(in_dims[0], 0)), 0


def leaving_map(forward: Forward, recorder: Recorder) -> Forward:
    """Return a rule's forward that can be called both inside and outside of a map."""

    def run(input: Tensor) -> Tensor:
        if not recorder.inside_map:
            outputs: Tensor = forward(input)
            return outputs
        rows: Tensor = _LeaveMap.apply(input, forward)
        return rows

    return run


class _Body(nn.Module):
    """Wrapper of a module's forward, in which ``functional_call`` can replace parameters."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.module).forward(self.module, *args, **kwargs)


class MappedForward:
    """Forward of a module that is mapped over its rows."""

    def __init__(
        self,
        module: nn.Module,
        weights: Mapping[str, tuple[Site, str]],
        inputs: Mapping[Place, int | None],
        outputs: Mapping[Place, int | None],
        recorder: Recorder,
    ) -> None:
        """Prepare to map a module.

        Args:
            module: The module.
            weights: Site and attribute of each parameter to expand, by path inside the module.
            inputs: Batch dimension of each argument of the module; None if the argument has no
                batch dimension.
            outputs: Batch dimension of each output.
            recorder: The recorder.
        """
        self._body, self._weights, self._recorder = _Body(module), weights, recorder
        self._inputs, self._outputs = inputs, outputs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module, mapped over its rows if gradients are needed."""
        if self._recorder.inside_map or not torch.is_grad_enabled():
            return self._body(*args, **kwargs)
        leaves, spec = tree_flatten_with_path((args, kwargs))
        flat = [leaf for _, leaf in leaves]
        axes = self._batch_axes(leaves)
        rows = max((flat[k].shape[axis] for k, axis in axes.items()), default=0)
        if not rows or rows % self._recorder.rows:
            raise self._error(f"was used on {rows} rows instead of {self._recorder.rows}")
        last_structure: list[Any] = []

        def run_row(weights: dict[str, Tensor], *parts: Tensor) -> list[Tensor]:
            row_leaves = list(flat)
            for (k, axis), part in zip(axes.items(), parts, strict=True):
                row_leaves[k] = part.unsqueeze(axis)
            row_args, row_kwargs = tree_unflatten(row_leaves, spec)
            replaced = {
                f"module.{path}": weights[site.names[attribute]]
                for path, (site, attribute) in self._weights.items()
            }
            with self._recorder.mapping(), sdpa_kernel(SDPBackend.MATH):
                # The other attention kernels cannot compute a gradient of their mask inside a map.
                outputs = functional_call(
                    self._body, replaced, row_args, dict(row_kwargs), tie_weights=False
                )
            output_leaves, out_spec = tree_flatten_with_path(outputs)
            tensors = {
                k: leaf for k, (_, leaf) in enumerate(output_leaves) if isinstance(leaf, Tensor)
            }
            last_structure[:] = [out_spec, output_leaves, list(tensors)]
            return list(tensors.values())

        stacked = self._mapped(
            run_row, rows, [flat[k].movedim(axis, 0) for k, axis in axes.items()]
        )
        out_spec, output_leaves, places = last_structure
        joined = [leaf for _, leaf in output_leaves]
        for k, value in zip(places, stacked, strict=True):
            axis = self._outputs.get(keystr(output_leaves[k][0])) or 0
            if value.dim() < axis + 2 or value.shape[axis + 1] != 1:
                raise self._error(f"returned shape {tuple(value.shape[1:])} for one row")
            joined[k] = value.squeeze(axis + 1).movedim(0, axis)
        return tree_unflatten(joined, out_spec)

    def _batch_axes(self, leaves: list[tuple[Any, Any]]) -> dict[int, int]:
        """Return the batch dimension of each argument that has one, by the argument's number."""
        places = {
            k: keystr(path) for k, (path, leaf) in enumerate(leaves) if isinstance(leaf, Tensor)
        }
        axes: dict[int, int] = {}
        for k, place in places.items():
            axis = self._inputs.get(place)
            if axis is not None:
                axes[k] = axis
        rows = max((leaves[k][1].shape[axis] for k, axis in axes.items()), default=0)
        for k, place in places.items():
            leaf = leaves[k][1]
            # An argument that had a single row in the probe may have one row per example now, if a
            # mapped module computed it. An attention mask may be missing in the probe.
            may_have = leaf.requires_grad or place not in self._inputs
            if k not in axes and may_have and rows > 1 and leaf.shape[:1] == (rows,):
                axes[k] = 0
        return axes

    def _mapped(self, run_row: Callable[..., Any], rows: int, parts: list[Tensor]) -> Any:
        with warnings.catch_warnings(), _without_checkpointing(self._body.module):
            warnings.filterwarnings("ignore", "There is a performance drop")
            try:
                return torch.vmap(run_row, randomness="different")(self._expanded(rows), *parts)
            except UseError:
                raise
            except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
                raise self._error(
                    f"cannot be vectorized over examples ({type(error).__name__})"
                ) from error

    def _expanded(self, rows: int) -> dict[str, Tensor]:
        """Return each parameter, by name, expanded to one copy per row."""
        weights: dict[str, Tensor] = {}
        for path, (site, attribute) in self._weights.items():
            name = site.names[attribute]
            if name not in weights:
                owner, _, last = path.rpartition(".")
                weight = self._body.module.get_submodule(owner)._parameters[last]
                assert weight is not None
                weights[name] = expanded(weight, rows, attribute, site)
        return weights

    def _error(self, what: str) -> UseError:
        names = [site.names[attribute] for site, attribute in self._weights.values()]
        return UseError(f"a {type(self._body.module).__name__} module {what}", names)


@contextmanager
def _without_checkpointing(module: nn.Module) -> Iterator[None]:
    """Turn off gradient checkpointing inside a map, which would rerun layers outside the map."""
    layers = [m for m in module.modules() if vars(m).get("gradient_checkpointing") is True]
    for layer in layers:
        vars(layer)["gradient_checkpointing"] = False
    try:
        yield
    finally:
        for layer in layers:
            vars(layer)["gradient_checkpointing"] = True
