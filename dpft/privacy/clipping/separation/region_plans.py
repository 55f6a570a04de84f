"""Plans: for each kind of call of the model, which modules run example by example.

A plan is learned when its kind of call is first met, and used for an accumulation only after a
proof on that accumulation's own data (``proof``). A plan that is disproved is widened: towards
larger regions, at last the whole model, and then refused.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import nn

from dpft.errors import InputError
from dpft.privacy.clipping.separation.broadcasts import Broadcasts, broadcasts_of
from dpft.privacy.clipping.separation.flow import Flow
from dpft.privacy.clipping.separation.proof import Verdict
from dpft.privacy.clipping.separation.regions import Region, RegionPlanner
from dpft.privacy.clipping.separation.signature import Signature
from dpft.privacy.clipping.trainable import TrainableParameters


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

    verdict: Verdict = Verdict.WHOLE
    batches: int = 1

    def holds_once_more(self) -> bool:
        """Counts a batch; False where it is to be proved again, at each doubling of them.

        A parameter that had no gradient yet (behind a gate that starts at zero, say) may get one.
        """
        self.batches += 1
        again = self.verdict is Verdict.PARTLY and self.batches & (self.batches - 1) == 0
        return not again


class RegionPlans:
    """The plans of one model for one trainable set, and which of them are proved."""

    def __init__(self, model: nn.Module, trainable: TrainableParameters) -> None:
        """Prepares for a model of which no call was seen yet.

        Args:
            model: The model.
            trainable: The parameters whose uses are to be told apart.
        """
        self._planner = RegionPlanner(model, trainable)
        self._trainable = trainable
        self._plans: dict[Hashable, RegionPlan] = {}
        self._proofs: dict[tuple[Hashable, Hashable], _Proof] = {}
        self._fresh: tuple[Hashable, Verdict] | None = None
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
    def are_wholly_proved(self) -> bool:
        """Whether such calls as those since ``start`` were proved, and every parameter's uses."""
        return any(
            calls == self._key and proof.verdict is Verdict.WHOLE
            for (calls, _), proof in self._proofs.items()
        )

    def remember_graph(self, graph: Hashable) -> None:
        """Remembers that the calls since ``start`` are proved with another graph too."""
        self._proofs[(self._key, graph)] = _Proof()

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
            if self._fresh[1] is not Verdict.FOR_NOW:
                self._proofs.setdefault(key, _Proof()).verdict = self._fresh[1]
            self._fresh = None
            return True
        self._fresh = None
        return key in self._proofs and self._proofs[key].holds_once_more()

    def remember_proof(self, verdict: Verdict) -> None:
        """Remembers a proof of the calls since ``start``, for the batch that is to follow."""
        self._fresh = (self._key, verdict)

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
