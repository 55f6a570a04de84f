"""Regions: the smallest modules that must run example by example for gradients to be told apart.

Most weights belong to a layer with a rule and meet inputs that carry the batch. The others (a
class token, a position embedding looked up once for all examples, a weight
used behind its layer's back) get their per-example gradients by running the smallest enclosing
module through which the batch can be followed once per example, over an expanded weight.

Where a layer with a rule meets one row for all examples, none is needed: GPT-2's positions are
looked up once, (1, t, d), and added to the texts' (b, t, d). With their ids expanded to (b, t) the
same layer gives (b, t, d), the sum is the same, and the layer's rule sees each example's gradient
(``Broadcasts``). Whether the model takes the b rows as it took the one is not known from the flow;
the proof decides.

A plan is learned when a call signature is first met, and used for an accumulation only after a
proof on that accumulation's own data (``proof``). A plan that is not exact falls back to larger
regions, at last to the whole model, and then the model is refused (``Level``).
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum

import torch
from torch import nn

from dpft.errors import InputError
from dpft.privacy.clipping.rules import find_rule, intercepted_function
from dpft.privacy.clipping.separation.flow import Flow, ModuleFlow, Signature, Status, WeightUse
from dpft.privacy.clipping.separation.proof import CheckResult
from dpft.privacy.clipping.trainable import TrainableParameters


@dataclass(frozen=True)
class Cause:
    """Why a module must run example by example, and what a caller can do.

    Attributes:
        why: A clause that names a parameter.
        remedy: What to do.
    """

    why: str
    remedy: str


UNKNOWN = Cause(
    "no smaller module carries the batch from its inputs to its outputs",
    "give its layers inputs that carry the batch in front",
)


def cause_of(use: WeightUse, *, recorded: bool) -> Cause:
    """Returns why a use of a weight needs a module that runs example by example.

    Args:
        use: The use.
        recorded: Whether it is a layer's with a rule, of the layer's own weight.
    """
    layer = type(use.user).__name__
    if not recorded:
        remedy = f"freeze {use.name}, or use it in a layer with a rule, such as nn.Linear"
        return Cause(f"{layer} uses {use.name} in a way that no rule knows", remedy)
    why = f"{use.name} meets a tensor that does not carry the batch in front"
    if isinstance(use.user, nn.Embedding):
        return Cause(why, f"pass position_ids, or what else {layer} looks up, for each example")
    return Cause(why, f"give {layer} an input that carries the batch in front, or freeze it")


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
            carries = recorded and (
                use.status is Status.BATCH
                if intercepted_function(use.user) is not None
                else flow.modules[use.user].carries_the_batch_in
            )
            if not carries:
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
                # Of what has no batch dimension (DeBERTa's relative embeddings).
                shared_dropouts=[
                    layer
                    for layer in module.modules()
                    if isinstance(layer, nn.Dropout)
                    and layer in flows
                    and set(flows[layer].inputs.values()) <= {Status.ONE, Status.SHARED}
                ],
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


@dataclass(frozen=True)
class Broadcasts:
    """Where one row for all examples becomes a row for each.

    Attributes:
        layers: Layers with a rule whose input is expanded to the batch.
        repeaters: Modules whose forward repeats a row over the batch (peft repeats its prompt),
            which must not be done again with what already has a row for each example.
    """

    layers: Collection[nn.Module] = ()
    repeaters: Collection[nn.Module] = ()


def broadcasts_of(flow: Flow, trainable: TrainableParameters) -> Broadcasts:
    """Returns the layers that meet one row for all examples whenever their weights are used."""
    recorded, raw = [], set()
    for use in flow.uses:
        if is_recorded(use, trainable):
            recorded.append(use)
        else:
            raw.add(use.name)
    layers = {use.user for use in recorded if _meets_one_row(use, flow)}
    layers -= {use.user for use in recorded if not _meets_one_row(use, flow)}
    layers = {layer for layer in layers if not raw & set(trainable.own(layer).values())}
    return Broadcasts(layers, flow.repeaters) if layers else Broadcasts()


def _meets_one_row(use: WeightUse, flow: Flow) -> bool:
    """Whether a layer is at work on an input that is expanded by a leading dimension.

    That is a leading dimension of one, or of an embedding the ids of one sequence, shape (t,).
    """
    if isinstance(use.user, nn.Embedding) and use.status is Status.SHARED:
        return use.rank == 1
    if intercepted_function(use.user) is not None:
        return use.status is Status.ONE
    return next(iter(flow.modules[use.user].inputs.values()), None) is Status.ONE


class Level(IntEnum):
    """How far from the weights their regions are."""

    BROADCAST = 0
    """The smallest modules, but for layers whose one row for all becomes a row for each."""
    SMALL = 1
    """The smallest modules, also where their outputs have one row for all to broadcast."""
    CARRYING = 2
    """The smallest modules whose outputs all carry the batch."""
    WHOLE = 3
    """The model itself."""
    LOOPED = 4
    """The model itself, one example after another."""


@dataclass(eq=False)
class RegionPlan:
    """Which modules of the model run example by example in one kind of call.

    Attributes:
        flow: How the batch passes through; None where the model would not run on fewer rows.
        ambiguous: Whether it was learned where some other size equals the batch size.
        level: How far from the weights the regions are.
        regions: The modules that run example by example.
        broadcasts: The layers that are given a row for each example instead of one for all.
        refusal: Why no smaller regions would do, naming a parameter.
    """

    flow: Flow | None
    ambiguous: bool
    level: Level
    regions: list[Region]
    broadcasts: Broadcasts = field(default_factory=Broadcasts)
    refusal: InputError | None = None


@dataclass
class _Proof:
    """How far one kind of batch is proved, and how many of its batches have come."""

    result: CheckResult = CheckResult.WHOLE
    batches: int = 1

    def holds_once_more(self) -> bool:
        """Counts a batch; False where it is to be proved again, at each doubling of them.

        A parameter that had no gradient yet (behind a gate that starts at zero, say) may get one.
        """
        self.batches += 1
        again = self.result is CheckResult.PARTLY and self.batches & (self.batches - 1) == 0
        return not again


class RegionPlans:
    """The plans of one model for one trainable set, and which of them are proved."""

    def __init__(self, model: nn.Module, trainable: TrainableParameters) -> None:
        self._planner = RegionPlanner(model, trainable)
        self._trainable = trainable
        self._plans: dict[Hashable, RegionPlan] = {}
        self._proofs: dict[tuple[Hashable, Hashable], _Proof] = {}
        self._fresh: tuple[Hashable, CheckResult] | None = None
        self._calls: list[tuple[Signature, RegionPlan]] = []
        self._replayed: Iterator[RegionPlan] | None = None

    def by_kind(self) -> list[Region]:
        """Returns the regions to begin with, before any call of the model was seen."""
        return self._planner.by_kind()

    def plan_for(self, signature: Signature, learn: Callable[[], Flow | None]) -> RegionPlan:
        """Returns the plan for a call, learned where its kind is new or was ambiguous."""
        replayed = None if self._replayed is None else next(self._replayed, None)
        if replayed is not None:
            return replayed
        plan = self._plans.get(signature.kind)
        if plan is None or (plan.ambiguous and not signature.is_ambiguous):
            plan = self._plans[signature.kind] = self._plan(learn(), signature.is_ambiguous)
        self._calls.append((signature, plan))
        return plan

    def start(self) -> None:
        """Begins a computation of losses: forgets the calls of the model that the last one made."""
        self._calls = []

    @property
    def saw_a_call(self) -> bool:
        """Whether the model itself was called since ``start``."""
        return bool(self._calls)

    @property
    def kinds(self) -> list[Hashable]:
        """The kinds of the calls since ``start``."""
        return [signature.kind for signature, _ in self._calls]

    @property
    def are_ambiguous(self) -> bool:
        """Whether some size equals the batch size in a call since ``start``."""
        return any(signature.is_ambiguous for signature, _ in self._calls)

    @property
    def were_proved(self) -> bool:
        """Whether such calls as those since ``start`` were proved, whatever graph they led to."""
        return any(calls == self._key for calls, _ in self._proofs)

    def has_proof_of(self, graph: Hashable) -> bool:
        """Whether the calls since ``start`` were proved with this graph."""
        return (self._key, graph) in self._proofs

    @property
    def precision(self) -> torch.dtype | None:
        """The dtype that autocast computed in during the calls since ``start``; None without it."""
        found = (signature.precision for signature, _ in self._calls)
        return next((precision for precision in found if precision is not None), None)

    def are_proved(self, graph: Hashable) -> bool:
        """Whether the batch of the calls since ``start`` may be used: its kind has been proved.

        Args:
            graph: Digest of the graph that the calls since ``start`` led to; another graph is
                another way through the model or another loss, and is proved by itself.
        """
        if not self.saw_a_call:
            self._fresh = None
            return False
        key = (self._key, graph)
        if self._fresh is not None and self._fresh[0] == self._key:
            if self._fresh[1] is not CheckResult.FOR_NOW:
                self._proofs.setdefault(key, _Proof()).result = self._fresh[1]
            self._fresh = None
            return True
        self._fresh = None
        return key in self._proofs and self._proofs[key].holds_once_more()

    def remember_proof(self, result: CheckResult) -> None:
        """Remembers a proof of the calls since ``start``, for the batch that is to follow."""
        self._fresh = (self._key, result)

    @property
    def _key(self) -> Hashable:
        return tuple((signature, plan.level) for signature, plan in self._calls)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Gives the n-th call inside the plan that the n-th call since ``start`` got.

        A proof repeats a computation, and must judge the plans that the computation used.
        """
        self._replayed = iter([plan for _, plan in self._calls])
        try:
            yield
        finally:
            self._replayed = None

    def widen(self) -> bool:
        """Takes the plans of the calls since ``start`` one level up; False where none can be."""
        plans = dict.fromkeys(plan for _, plan in self._calls)
        wider = [plan for plan in plans if plan.level < Level.LOOPED]
        for plan in wider:
            self._widen(plan)
        return bool(wider)

    def forget(self) -> None:
        """Forgets the plans of the calls since ``start``: they are learned anew."""
        for signature, _ in self._calls:
            self._plans.pop(signature.kind, None)

    @property
    def refusal(self) -> InputError | None:
        """Why the calls since ``start`` needed the whole model as a region, where they did."""
        return next((plan.refusal for _, plan in self._calls if plan.refusal is not None), None)

    def _plan(self, flow: Flow | None, ambiguous: bool) -> RegionPlan:
        if flow is None:
            return RegionPlan(flow, ambiguous, Level.CARRYING, self._planner.by_kind())
        plan = RegionPlan(flow, ambiguous, Level.SMALL, [])
        broadcasts = broadcasts_of(flow, self._trainable)
        if broadcasts.layers:
            with suppress(InputError):
                layers = broadcasts.layers
                plan.regions = self._planner.by_flow(flow, widening=True, broadcast=layers)
                plan.level, plan.broadcasts = Level.BROADCAST, broadcasts
                return plan
        self._use_small_regions(plan, flow)
        return plan

    def _use_small_regions(self, plan: RegionPlan, flow: Flow) -> None:
        plan.level, plan.broadcasts = Level.SMALL, Broadcasts()
        try:
            plan.regions = self._planner.by_flow(flow, widening=True)
        except InputError as error:
            plan.level, plan.refusal = Level.WHOLE, error
            plan.regions = self._planner.whole(flow)

    def _widen(self, plan: RegionPlan) -> None:
        if plan.level == Level.BROADCAST and plan.flow is not None:
            self._use_small_regions(plan, plan.flow)
            return
        if plan.level == Level.SMALL and plan.flow is not None:
            plan.level = Level.CARRYING
            try:
                plan.regions = self._planner.by_flow(plan.flow, widening=False)
                return
            except InputError as error:
                plan.refusal = error
        plan.level = Level.LOOPED if plan.level == Level.WHOLE else Level.WHOLE
        plan.regions = self._planner.whole(plan.flow, loops=plan.level == Level.LOOPED)
