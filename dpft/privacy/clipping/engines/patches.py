"""Recording forwards: put on the layers that own trainable parameters, and taken off again."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules import find_rule, recording_forward
from dpft.privacy.clipping.rules.whole_batch import with_one_mask
from dpft.privacy.clipping.separation.arguments import batch_size_of
from dpft.privacy.clipping.separation.flow import Flow, learn_flow
from dpft.privacy.clipping.separation.mapping import MappedForward
from dpft.privacy.clipping.separation.output_mixing import mixed_output
from dpft.privacy.clipping.separation.region_plans import RegionPlans
from dpft.privacy.clipping.separation.regions import Region
from dpft.privacy.clipping.separation.signature import signature_of

logger = logging.getLogger(__name__)


class Patches:
    """The modules of one model that an engine gives another ``forward``.

    Layers with a rule record the uses of their weights. What has no rule, and what is used
    without the batch dimension, is run example by example: where, is learned when a kind of call
    is first met, from two small runs of the model (``flow``, ``region_plans``).
    """

    def __init__(self, model: nn.Module, recorder: Recorder) -> None:
        """Looks for the layers that own a trainable parameter."""
        # The compiled wrapper around a model calls it; it is the model that is looked into.
        self._model = getattr(model, "_orig_mod", model)
        self._recorder = recorder
        self.plans = RegionPlans(self._model, recorder.trainable)
        self._regions = self.plans.by_kind()
        self._patched: list[nn.Module] = []
        self._root: Callable[..., Any] = self._own_forward

    def install(self) -> None:
        """Gives each layer its recording forward.

        Raises:
            InputError: A layer's forward is already replaced, by a second clipper or by hand.
        """
        self._put(self._model, self._model_forward())
        self._install_plan()

    def remove(self) -> None:
        """Takes the recording forwards away; the layers' own reappear."""
        while self._patched:
            del self._patched.pop().forward
        self._root = self._own_forward

    @property
    def _own_forward(self) -> Callable[..., Any]:
        return partial(type(self._model).forward, self._model)

    def _install_plan(self) -> None:
        swapped = {p for region in self._regions for p in _layers_swapped(region)}
        forwards = {
            module: recording_forward(module, self._recorder)
            for module in self._model.modules()
            if module not in swapped and find_rule(module) and _has_trainable(module)
        }
        for region in self._regions:
            inner = forwards.get(region.module)
            mapped = MappedForward(region, self._recorder, inner)
            forwards[region.module] = with_signature(mapped, region.module.forward)
            for dropout in region.shared_dropouts:
                forwards[dropout] = with_one_mask(dropout, self._recorder)
        for module, forward in forwards.items():
            self._put(module, forward)

    def _put(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        if module is self._model and module in self._patched:
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

    def _model_forward(self) -> Callable[..., Any]:
        """Returns the model's forward, which learns what it needs to when first called."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and not self._recorder.in_region:
                use_plan_for(args, kwargs)
            return self._root(*args, **kwargs)

        # Under torch.compile plans are made outside of what is compiled; the model is inside.
        use_plan_for = torch.compiler.disable(self._use_plan_for)
        forward = torch.compiler.disable(run, recursive=False)
        return with_signature(forward, self._own_forward)

    def _use_plan_for(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Puts on the regions for this kind of call."""
        if batch_size_of((args, kwargs)) == 0:
            return
        signature = signature_of(self._model, (args, kwargs))
        plan = self.plans.plan_for(signature, lambda: self._learn(args, kwargs))
        if plan.regions is not self._regions:
            self._regions = plan.regions
            self.remove()
            self.install()

    def _learn(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Flow | None:
        """Returns how the batch flows through a call, from two small runs of the bare model."""
        with self.without():
            try:
                mixed = mixed_output(self._model, self._own_forward, (args, kwargs))
                weights = self._recorder.trainable.now()
                flow = learn_flow(self._model, self._own_forward, (args, kwargs), weights)
            except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
                # Its message may tell the records' lengths.
                reason = type(error).__name__
                logger.info("clipping: the model would not run on fewer rows (%s)", reason)
                return None
        if mixed is not None:
            raise RunError(
                f"the output {mixed or 'of the model'} of {type(self._model).__name__} for one "
                "example changes with the other examples of its batch, so no clipping bounds what "
                "one of them does; choose another model."
            )
        return flow

    @contextmanager
    def without(self) -> Iterator[None]:
        """Takes the recording forwards away for a while."""
        self.remove()
        try:
            yield
        finally:
            self.install()


def with_signature(forward: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a forward that shows the signature of the module's own: ``generate`` asks for it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    vars(run)["__signature__"] = signature(own)
    return run


def _has_trainable(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters(recurse=False))


def _layers_swapped(region: Region) -> Iterator[nn.Module]:
    """Yields the region's layers whose weights are expanded: they run their own forward on them."""
    for name in region.expanded:
        yield region.module.get_submodule(name.rpartition(".")[0])


@contextmanager
def watch_for_unrecorded_gradients(parameters: Mapping[str, Tensor]) -> Iterator[None]:
    """Sets gradients of named parameters aside during a backward pass that must form none.

    Raises:
        RunError: A parameter got an ordinary gradient, so it is used outside its own layer's
            forward, where no rule sees it and no clipping would reach it.
    """
    held = {name: parameter.grad for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = None
    try:
        yield
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                raise RunError(
                    f"parameter {name} is used outside its layer's forward, where its per-example "
                    "gradients cannot be seen; choose privacy.engine=loop."
                )
    finally:
        for name, gradient in held.items():
            parameters[name].grad = gradient
