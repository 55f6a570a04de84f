"""Recording forwards: put on the layers that own trainable parameters, and taken off."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from dpft.errors import InputError, RunError, is_out_of_memory
from dpft.privacy.clipping.recorder import Recorder, with_one_mask
from dpft.privacy.clipping.rules import find_rule, recording_forward
from dpft.privacy.clipping.separation.flow import Flow, Signature, learn_flow, signature_of
from dpft.privacy.clipping.separation.mapping import MappedForward, RepeatedOnce
from dpft.privacy.clipping.separation.proof import gradients_kept
from dpft.privacy.clipping.separation.reexecution import batch_size_of
from dpft.privacy.clipping.separation.regions import Broadcasts, RegionPlans
from dpft.privacy.clipping.separation.row_subset import Arguments, ModelCalls, with_signature
from dpft.privacy.clipping.separation.single_example import check_single_examples
from dpft.privacy.clipping.trainable import TrainableParameters

logger = logging.getLogger(__name__)


class Patches:
    """The modules of one model that an engine gives another ``forward``.

    Layers with a rule record the uses of their weights. What has no rule, and what is used
    without the batch dimension, is run example by example: where, is learned when a kind of call
    is first met, from two small runs of the model (``flow``, ``regions``).
    """

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        # The compiled wrapper around a model calls it; it is the model that is looked into.
        self.model = getattr(model, "_orig_mod", model)
        self._recorder = recorder
        self.plans = RegionPlans(self.model, recorder.trainable)
        self.calls = ModelCalls(self.model)
        """What is made of the calls of the model itself."""
        self._regions = self.plans.by_kind()
        self._broadcasts = Broadcasts()
        self._patched: list[nn.Module] = []
        self._on = False
        self._root: Callable[..., Any] = self._own_forward

    def install(self) -> None:
        """Gives each layer its recording forward, and the model one that leads to ``calls``.

        Raises:
            InputError: A layer's forward is already replaced, by a second clipper or by hand.
        """

        def now(*args: Any, **kwargs: Any) -> Any:
            return self._root(*args, **kwargs)

        passes = lambda: self._recorder.in_region  # noqa: E731
        self._put(self.model, self.calls.watched(now, passes=passes, entering=self._enter))
        self.put_on()

    def remove(self) -> None:
        """Takes the recording forwards away; the layers' own reappear."""
        self.take_off()
        if self._patched:
            del self._patched.pop().forward

    @property
    def _own_forward(self) -> Callable[..., Any]:
        return partial(type(self.model).forward, self.model)

    @property
    def trainable(self) -> TrainableParameters:
        """What trains, by name."""
        return self._recorder.trainable

    def put_on(self) -> None:
        """Gives each layer its recording forward, unless it has it."""
        if self._on:
            return
        self._on = True
        for module, forward in self._new_forwards().items():
            self._put(module, forward)

    def _new_forwards(self) -> dict[nn.Module, Callable[..., Any]]:
        # Layers whose weights are expanded run their own forward on them.
        swapped = {
            region.module.get_submodule(name.rpartition(".")[0])
            for region in self._regions
            for name in region.expanded
        }
        forwards = {
            module: recording_forward(
                module, self._recorder, broadcast=module in self._broadcasts.layers
            )
            for module in self.model.modules()
            if module not in swapped
            and find_rule(module)
            and any(p.requires_grad for p in module.parameters(recurse=False))
        }
        for region in self._regions:
            inner = forwards.get(region.module)
            mapped = MappedForward(region, self._recorder, inner)
            forwards[region.module] = with_signature(mapped, region.module.forward)
            for dropout in region.shared_dropouts:
                forwards[dropout] = with_one_mask(dropout, self._recorder)
        for module in self._broadcasts.repeaters:
            own = forwards.get(module) or partial(type(module).forward, module)
            forwards[module] = with_signature(RepeatedOnce(own, self._recorder), module.forward)
        return forwards

    def take_off(self) -> None:
        """Takes the layers' recording forwards away, and leaves the model's calls watched."""
        while len(self._patched) > 1:
            del self._patched.pop().forward
        self._on, self._root = False, self._own_forward

    def _put(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        if module is self.model and module in self._patched:
            self._root = forward
            return
        if "forward" in vars(module):
            self.remove()
            raise InputError(
                f"a {type(module).__name__} layer must have its own forward, got a replaced "
                "one; leave the other clipper first."
            )
        module.forward = forward
        self._patched.append(module)

    def _enter(self, arguments: Arguments) -> None:
        """Notes how many rows the model is about to run on."""
        self._recorder.enter(batch_size_of(arguments))

    def use_plan_for(self, arguments: Arguments, units: Tensor | None = None) -> Signature | None:
        """Puts on the regions for a kind of call; returns the kind, None for an empty batch."""
        if batch_size_of(arguments) == 0:
            return None
        signature = signature_of(self.model, arguments, units)
        plan = self.plans.plan_for(signature, lambda: self._learn(arguments))
        self._enter(arguments)
        if plan.regions is not self._regions:
            self._regions, self._broadcasts = plan.regions, plan.broadcasts
            if self._on:
                self.take_off()
                self.put_on()
        return signature

    def _learn(self, arguments: Arguments) -> Flow | None:
        """Returns how the batch flows through a call, from two small runs of the bare model."""
        with self.without():
            try:
                weights = self._recorder.trainable.now()
                return learn_flow(self.model, self._own_forward, arguments, weights)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                # Its message may tell the records' lengths.
                reason = type(error).__name__
                logger.info("clipping: the model would not run on fewer rows (%s)", reason)
                return None

    def check_single_examples(self, arguments: Arguments, units: Tensor | None) -> bool:
        """Runs each row of a call by itself; returns whether the model draws random numbers.

        Raises:
            RunError: A row comes out otherwise than among the others.
        """
        with self.without():
            return check_single_examples(self.model, self._own_forward, arguments, units)

    @contextmanager
    def without(self) -> Iterator[None]:
        """Takes the layers' recording forwards away for a while."""
        was_on = self._on
        self.take_off()
        try:
            yield
        finally:
            if was_on:
                self.put_on()


@contextmanager
def watch_for_unrecorded_gradients(parameters: Mapping[str, Tensor]) -> Iterator[None]:
    """Sets gradients of named parameters aside during a backward pass that must form none.

    Raises:
        RunError: A parameter got an ordinary gradient, so it is used outside its own layer's
            forward, where no rule sees it and no clipping would reach it.
    """
    with gradients_kept(list(parameters.values())):
        yield
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                raise RunError(
                    f"parameter {name} is used outside its layer's forward, where its per-example "
                    "gradients cannot be seen; choose `engine='loop'`."
                )
