"""Choice of how each trainable parameter is recorded, and installation of recording forwards.

At level 0, a parameter's module has one of these kinds of recording forward:

    rule: The layer has a rule (``RULES``).
    scale: The module has only vectors of its input's last dimension, such as an RMSNorm. The
    module's own forward runs with each vector expanded to (b, 1, ..., d).
    position: An embedding that looks up one row of ids for the whole batch, such as positions. The
    row is repeated for each example.

Above level 0, the kind is ``mapped``: a module runs separately on each row (``mapped``). At level 1
this is the smallest module around the parameter that takes the batch, usually the module that holds
the parameter. At level 2 it is the next larger module, and so on. The self-check raises the level
of each parameter whose gradient differs from single-example execution.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from transformers.pytorch_utils import Conv1D

from dpft.privacy.clipping.convolution import CONVOLUTION_RULES
from dpft.privacy.clipping.mapped import MappedForward, leaving_map
from dpft.privacy.clipping.options import LossFunction
from dpft.privacy.clipping.parameters import Owner, Parameters
from dpft.privacy.clipping.probe import Calls, observe_calls
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules import (
    Forward,
    Rule,
    Site,
    bias_only,
    dense,
    embedding,
    group_norm,
    is_scale,
    layer_norm,
    rms_norm,
    scale,
)

RULES: Mapping[type[nn.Module], Rule] = MappingProxyType(
    {
        nn.Linear: dense,
        Conv1D: dense,
        nn.Embedding: embedding,
        nn.LayerNorm: layer_norm,
        nn.RMSNorm: rms_norm,
        nn.GroupNorm: group_norm,
        **CONVOLUTION_RULES,
    }
)


class NoModuleError(Exception):
    """Error for a parameter without any module around it that can be mapped over rows."""


def find_rule(module: nn.Module, trainable: Collection[str]) -> Rule | None:
    """Return the rule for a layer whose attributes ``trainable`` are trained, or None.

    A subclass gets the rule of its parent only if it runs the parent's forward. For a subclass of
    Embedding, the rule instead replaces the look-up inside the subclass's own forward.
    """
    if not set(trainable) <= {"weight", "bias"} or is_parametrized(module):
        return None
    if any(attribute in vars(module) for attribute in ("weight", "bias")):
        return None  # Hooks of old weight_norm and spectral_norm assign weights in each forward.
    for kind, rule in RULES.items():
        if not isinstance(module, kind):
            continue
        if type(module).forward is kind.forward:
            has_own_convolution = kind in CONVOLUTION_RULES and (
                type(module)._conv_forward is not kind._conv_forward  # type: ignore[attr-defined]
            )
            return None if has_own_convolution else rule
        if kind is nn.Embedding:
            return rule
        if kind is nn.Linear:
            falcon = sys.modules.get("transformers.models.falcon.modeling_falcon")
            if falcon is not None and type(module).forward is falcon.FalconLinear.forward:
                return dense  # FalconLinear computes x @ W.T + bias.
            return bias_only if set(trainable) == {"bias"} else None
    return None


class Assignment:
    """Recording forwards of all modules that need one.

    Attributes:
        kinds: Kind of recording forward by module path: rule, scale, position or mapped.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Parameters,
        recorder: Recorder,
        calls: Mapping[str, Calls],
        *,
        levels: Mapping[str, int],
        outside: Collection[str],
    ) -> None:
        """Assign a forward to each module that holds trainable parameters.

        Args:
            model: The model.
            parameters: Trainable parameters of the model.
            recorder: The recorder.
            calls: How each module is called, by path (``calls_around``).
            levels: Levels above 0, by parameter name.
            outside: Names of parameters that other modules read, outside the forward of the modules
                that hold them. The smallest module that may be mapped for them is the parent.

        Raises:
            NoModuleError: No module around a parameter can be mapped.
        """
        self._modules, self._recorder = dict(model.named_modules()), recorder
        self._forwards: dict[str, Forward] = {}
        self.kinds: dict[str, str] = {}
        self._owners: dict[str, list[Owner]] = defaultdict(list)
        for owner in parameters.owners:
            self._owners[owner.path].append(owner)
        self._calls = calls
        mapped: dict[str, list[Owner]] = defaultdict(list)
        for path, owners in self._owners.items():
            if not levels and self._is_passive(path):
                continue
            level = max(levels.get(owner.name, 0) for owner in owners)
            if level or not self._assign_rule(path, owners):
                chain = _chain(path)[any(owner.name in outside for owner in owners) :]
                mapped[self._module_around(chain, max(level, 1))].extend(owners)
        self._assign_maps(mapped)

    def _is_passive(self, path: str) -> bool:
        """Return whether a module has no rule and only parameters that layers with a rule use.

        BERT's prediction head, for example, holds a reference to the bias of its decoder.
        """
        if self._rule(path) is not None:
            return False
        with_rule = {
            owner.name
            for other, owners in self._owners.items()
            if self._rule(other) is not None
            for owner in owners
        }
        return all(owner.name in with_rule for owner in self._owners[path])

    def _rule(self, path: str) -> Rule | None:
        owners = self._owners[path]
        return find_rule(owners[0].module, {owner.attribute for owner in owners})

    def _assign_rule(self, path: str, owners: Sequence[Owner]) -> bool:
        """Assign a rule at level 0, and return whether there is a rule."""
        module, calls = owners[0].module, self._calls.get(path)
        rule = self._rule(path)
        site = Site(self._recorder, {owner.attribute: owner.name for owner in owners})
        if calls is None:
            # The self-check did not run this module's forward, so it could not verify a rule. If
            # records do run this forward, its parameters get ordinary gradients, and the engine
            # `rows` runs the micro-batch.
            return type(module).forward is not nn.Module.forward
        if not calls.is_uniform:
            return False
        if rule is not None and calls.axis in (0, 1):
            forward = rule(module, site)
            self._assign(path, forward if calls.axis == 0 else _batch_second(forward), "rule")
            return True
        ids = calls.shape
        if rule is embedding and calls.axis is None and (len(ids) < 2 or ids[0] == 1):
            around = (self._calls[p].batch_multiple for p in _chain(path) if p in self._calls)
            rows = next(filter(None, around), 1)
            self._assign(path, embedding(module, replace(site, batch_multiple=rows)), "position")
            return True
        if rule is None and calls.axis == 0 and is_scale(module, ids[-1]):
            self._assign(path, scale(module, site), "scale")
            return True
        return False

    def _assign(self, path: str, forward: Forward, kind: str) -> None:
        self._forwards[path], self.kinds[path] = forward, kind

    def _module_around(self, chain: Sequence[str], level: int) -> str:
        """Return the path of the ``level``-th module in ``chain`` that can be mapped."""
        candidates = [p for p in chain if p in self._calls and self._calls[p].can_be_mapped]
        if len(candidates) < level:
            where = chain[0] if chain and chain[0] else "the model itself"
            raise NoModuleError(
                f"the parameters of {where} have no exact rule, and no module around them can be"
                " vectorized over examples"
            )
        return candidates[level - 1]

    def _assign_maps(self, mapped: Mapping[str, Collection[Owner]]) -> None:
        """Map the modules that must be mapped; inside a mapped module, map no further module."""
        outermost = [path for path in mapped if not any(p in mapped for p in _chain(path)[1:])]
        for around in outermost:
            weights: dict[str, tuple[Site, str]] = {}
            for path, owners in self._owners.items():
                if around not in _chain(path):
                    continue
                has_rule = self.kinds.get(path) == "rule" and self._calls[path].axis == 0
                if path != around and has_rule:
                    self._forwards[path] = leaving_map(self._forwards[path], self._recorder)
                    continue
                self._forwards.pop(path, None)
                self.kinds.pop(path, None)
                site = Site(self._recorder, {owner.attribute: owner.name for owner in owners})
                inner = path[len(around) :].lstrip(".")
                for owner in owners:
                    weights[f"{inner}.{owner.attribute}".lstrip(".")] = site, owner.attribute
            calls = self._calls[around]
            forward = MappedForward(
                self._modules[around], weights, calls.inputs, calls.outputs, self._recorder
            )
            self._assign(around, forward, "mapped")

    @property
    def assumed(self) -> list[str]:
        """Names of parameters of kind scale or position, which rely on assumptions on modules."""
        return [
            owner.name
            for path, kind in self.kinds.items()
            if kind in ("scale", "position")
            for owner in self._owners[path]
        ]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the forwards of the modules by recording forwards inside the block."""
        held: list[tuple[dict[str, Any], Any]] = []
        try:
            for path, recording in self._forwards.items():
                state: dict[str, Any] = self._modules[path].__dict__
                held.append((state, state.get("forward")))
                state["forward"] = recording
            yield
        finally:
            for state, before in held:
                if before is None:
                    state.pop("forward", None)
                else:
                    state["forward"] = before


def calls_around(
    model: nn.Module,
    parameters: Parameters,
    losses_of: LossFunction,
    batch: Any,
    rows_per_unit: int,
) -> dict[str, Calls]:
    """Return the calls of the modules with trainable parameters, and of the modules around them."""
    paths = {around for owner in parameters.owners for around in _chain(owner.path)}
    return observe_calls(model, losses_of, batch, sorted(paths), rows_per_unit)


def _batch_second(forward: Callable[[Tensor], Tensor]) -> Forward:
    """Return a rule's forward for inputs whose second dimension is the batch."""
    return lambda input: forward(input.transpose(0, 1)).transpose(0, 1)


def _chain(path: str) -> list[str]:
    """Return a path and the paths of the modules around it, innermost first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:k]) for k in range(len(parts), -1, -1)]
