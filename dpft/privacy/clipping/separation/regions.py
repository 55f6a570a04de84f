"""Regions: the smallest modules that must run example by example for gradients to be told apart.

Most weights belong to a layer with a rule and meet inputs that carry the batch. The others (a
class token, an RMSNorm's weight, a position embedding looked up once for all examples, a weight
used behind its layer's back) get their per-example gradients by running the smallest enclosing
module through which the batch can be followed once per example, over an expanded weight.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from dpft.errors import InputError
from dpft.privacy.clipping.rules import find_rule, intercepted_function
from dpft.privacy.clipping.separation.flow import Flow, ModuleFlow, Status, WeightUse
from dpft.privacy.clipping.separation.slow_paths import UNKNOWN, Cause, cause_of
from dpft.privacy.clipping.trainable import TrainableParameters


@dataclass(frozen=True)
class Region:
    """A module to run example by example.

    Attributes:
        module: The module.
        expanded: The names of the parameters of its subtree that no rule records, by their
            paths in it.
        inputs: Status of each tensor argument; empty where nothing was learned.
        outputs: Status of each tensor that it returns; empty where nothing was learned.
        shared_dropouts: Its dropout layers that draw one mask for the whole batch.
        widened: Whether another region or layer of the plan may have given the batch to what had
            one row to be broadcast, so that such an input may have got it.
        loops: Whether its examples run one after another, whatever it is.
        cause: Why it must run example by example.
        model: What it is a part of; None where it stands alone.
        failures: Why it cannot be mapped over its examples, once that was tried.
    """

    module: nn.Module
    expanded: Mapping[str, str]
    inputs: Mapping[str, Status] = field(default_factory=dict)
    outputs: Mapping[str, Status] = field(default_factory=dict)
    shared_dropouts: Sequence[nn.Module] = ()
    widened: bool = False
    loops: bool = False
    cause: Cause = UNKNOWN
    model: nn.Module | None = None
    failures: list[str] = field(default_factory=list, compare=False)


class RegionPlanner:
    """Chooses the regions of one model for one trainable set."""

    def __init__(self, model: nn.Module, trainable: TrainableParameters) -> None:
        """Looks at the model's structure.

        Args:
            model: The model.
            trainable: The parameters whose uses are to be told apart.
        """
        self._model = model
        self._trainable = trainable

    def by_kind(self) -> list[Region]:
        """Returns the regions where nothing is known: each owner of a weight without a rule."""
        raw = self._without_a_rule()
        chosen = {owner for name in raw for owner in self._trainable.owners(name)}
        return self._regions(chosen, raw, {})

    def by_flow(
        self, flow: Flow, *, widening: bool, broadcast: Collection[nn.Module] = ()
    ) -> list[Region]:
        """Returns the regions that the observed flow asks for.

        Args:
            flow: What was learned of the model.
            widening: As ``ModuleFlow.can_run_example_by_example``.
            broadcast: Layers whose input is expanded to the batch, and which need no region.

        Raises:
            InputError: No enclosing module carries the batch in and out.
        """
        chosen: dict[nn.Module, Cause] = {}
        raw: set[str] = set()
        for use in flow.uses:
            if use.user in broadcast:
                continue
            recorded = is_recorded(use, self._trainable)
            if not recorded:
                raw.add(use.name)
            if not (recorded and _carries_the_batch(use, flow)):
                module = self._enclosing(use, flow.modules, widening=widening)
                chosen.setdefault(module, cause_of(use, recorded=recorded))
        regions = self._regions(chosen, raw, flow.modules)
        return [
            replace(r, widened=r.widened or bool(broadcast), cause=chosen[r.module])
            for r in regions
        ]

    def whole(self, flow: Flow | None, *, loops: bool = False) -> list[Region]:
        """Returns the model itself as a region: exact wherever each example runs alone.

        Args:
            flow: What was learned of the model, or None.
            loops: Whether its examples run one after another.
        """
        if flow is None:
            raw = self._without_a_rule()
        else:
            raw = {use.name for use in flow.uses if not is_recorded(use, self._trainable)}
        flows = {} if flow is None else flow.modules
        return [replace(r, loops=loops) for r in self._regions({self._model}, raw, flows)]

    def _enclosing(
        self, use: WeightUse, flows: Mapping[nn.Module, ModuleFlow], *, widening: bool
    ) -> nn.Module:
        """Returns the smallest module around a use, of those that were running, fit for a region.

        It must hold the weight: only there can the weight be swapped for an expanded one.
        """
        for module in use.users:
            holds = use.name in self._trainable.within(module).values()
            fit = module in flows and flows[module].can_run_example_by_example(widening=widening)
            if holds and fit:
                return module
        raise InputError(
            f"trainable parameter {use.name} is used without the batch dimension, "
            "and no module around it carries the batch from its inputs to its outputs; "
            "freeze it or choose `engine='loop'`."
        )

    def _regions(
        self,
        chosen: Collection[nn.Module],
        raw: Collection[str],
        flows: Mapping[nn.Module, ModuleFlow],
    ) -> list[Region]:
        """Returns the chosen modules that no other chosen one contains, as regions."""
        inside = {m for outer in chosen for m in outer.modules() if m is not outer}
        outermost = [m for m in self._model.modules() if m in chosen and m not in inside]
        widened = any(
            Status.ONE in flows[module].outputs.values() for module in outermost if module in flows
        )
        return [
            Region(
                module=module,
                expanded=self._expanded(module, raw),
                inputs=flows[module].inputs if module in flows else {},
                outputs=flows[module].outputs if module in flows else {},
                shared_dropouts=[m for m in module.modules() if _is_shared_dropout(m, flows)],
                widened=widened,
                model=self._model,
            )
            for module in outermost
        ]

    def _expanded(self, module: nn.Module, raw: Collection[str]) -> dict[str, str]:
        """Returns the weights to expand in a module: the raw ones, and all of a layer with one."""
        found: dict[str, str] = {}
        for path, layer in module.named_modules():
            own = self._trainable.own(layer)
            if any(name in raw for name in own.values()):
                whole = find_rule(layer) is not None
                wanted = {a: name for a, name in own.items() if whole or name in raw}
                found |= {f"{path}.{a}" if path else a: name for a, name in wanted.items()}
        return found

    def _without_a_rule(self) -> set[str]:
        """Returns the names of the weights none of whose owners has a rule."""
        owners = {name: self._trainable.owners(name) for name in self._trainable.names}
        return {name for name, modules in owners.items() if not any(map(find_rule, modules))}


def is_recorded(use: WeightUse, trainable: TrainableParameters) -> bool:
    """Whether a use is a rule's: by the layer that owns the weight, in a way the rule knows."""
    if find_rule(use.user) is None or use.name not in trainable.own(use.user).values():
        return False
    function = intercepted_function(use.user)
    return function is None or use.function is function


def _is_shared_dropout(module: nn.Module, flows: Mapping[nn.Module, ModuleFlow]) -> bool:
    """Whether a layer drops what has no batch dimension (DeBERTa's relative embeddings)."""
    if not isinstance(module, nn.Dropout) or module not in flows:
        return False
    return set(flows[module].inputs.values()) <= {Status.ONE, Status.SHARED}


def _carries_the_batch(use: WeightUse, flow: Flow) -> bool:
    if intercepted_function(use.user) is not None:
        return use.status is Status.BATCH
    if isinstance(use.user, nn.RNNBase):
        # Its batch may be second, or packed where no shape shows it.
        entering = next(iter(flow.modules[use.user].inputs.values()), None)
        return entering not in (Status.ONE, Status.SHARED)
    return flow.modules[use.user].carries_the_batch_in
