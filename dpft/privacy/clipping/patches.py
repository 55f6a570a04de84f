"""Recording forwards: put on the layers that own trainable parameters, compiled, and taken off."""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config

from dpft.errors import InputError, RunError, is_out_of_memory
from dpft.privacy.clipping.choices import Compilation
from dpft.privacy.clipping.recorder import Recorder, new_anchor, with_one_mask
from dpft.privacy.clipping.rules import find_rule, recording_forward
from dpft.privacy.clipping.separation.flow import Flow, Signature, learn_flow, signature_of
from dpft.privacy.clipping.separation.mapping import MappedForward, RepeatedOnce
from dpft.privacy.clipping.separation.proof import gradients_kept
from dpft.privacy.clipping.separation.reexecution import batch_size_of, named_tensors
from dpft.privacy.clipping.separation.regions import Broadcasts, RegionPlans
from dpft.privacy.clipping.separation.row_subset import Arguments, ModelCalls, with_signature
from dpft.privacy.clipping.separation.single_example import check_single_examples
from dpft.privacy.clipping.trainable import TrainableParameters

SHAPES = 4096
"""Compilations of one function that torch allows at most; each shape is one."""
logger = logging.getLogger(__name__)


class CompilerFailed(RunError):
    """The compiler does not get through a model."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"`compilation` cannot compile this model ({type(error).__name__}); set"
            " `compilation=None`."
        )


class CompiledForward:
    """A forward that is compiled for each shape of its inputs.

    Checks are made of the model as it is. Only then, and only for shapes that come again and
    again, the compiled forward takes its place; what it records is compared once with the bare
    model's gradient, on all rows of a batch, and each batch afterwards must record as many uses of
    each parameter as that one.
    """

    def __init__(
        self, forward: Callable[..., Any], compilation: Compilation, recorder: Recorder
    ) -> None:
        self._run = compiled(forward, compilation)
        self._compilation, self._recorder = compilation, recorder
        self.is_on = False
        """Whether the next call is compiled."""
        self.ran = False
        """Whether the last computation of losses ran compiled."""
        self.shapes: list[tuple[tuple[int, ...], ...]] = []
        """Shapes of all tensors of each compiled call since the last computation began."""
        self._expected: dict[Hashable, Counter[str]] = {}
        self._graph: Hashable = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the compiled forward.

        Raises:
            CompilerFailed: It does, on this model.
        """
        tensors = list(named_tensors((args, kwargs)).values())
        self.shapes.append(tuple(tuple(tensor.shape) for tensor in tensors))
        self._recorder.anchor, self.ran = new_anchor(tensors[0].device), True
        try:
            return self._run(*args, **kwargs)
        finally:
            self._recorder.anchor = None

    def start(self) -> None:
        """Begins a computation of losses, uncompiled."""
        self.ran = self.is_on = False
        self.shapes, self._graph = [], None

    def takes(self, arguments: Arguments) -> bool:
        """Whether a call has a shape that is to be compiled."""
        return torch.is_grad_enabled() and self._compilation.takes(shape_of(arguments))

    @contextmanager
    def always(self) -> Iterator[None]:
        """Has every call compiled meanwhile."""
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False

    def meet(self, graph: Hashable) -> None:
        """Notes which graph the losses have whose backward pass comes next."""
        self._graph = graph

    def expect(self, graph: Hashable, counts: Counter[str]) -> None:
        """Remembers how many uses of each parameter a backward pass of a graph must meet."""
        self._expected[graph] = Counter(counts)

    def check_counts(self, losses: Tensor, counts: Counter[str]) -> None:
        """Refuses a compiled backward pass that met more or fewer uses than was proved.

        Raises:
            RunError: It did.
        """
        if self._graph is not None and counts != self._expected.get(self._graph):
            raise RunError(
                "`compilation` gave another number of uses of a parameter than the model"
                " itself; set `compilation=None`."
            )


def compiled(forward: Callable[..., Any], compilation: Compilation) -> Callable[..., Any]:
    """Returns a forward that is compiled anew for each shape of its inputs.

    It raises ``CompilerFailed`` where the compiler does not get through.
    """
    from torch._dynamo import config as dynamo_config  # takes seconds, and few runs compile

    run = torch.compile(forward, backend=compilation.backend, dynamic=False)
    limits = {"recompile_limit": SHAPES, "accumulated_recompile_limit": SHAPES}

    def compile_and_run(*args: Any, **kwargs: Any) -> Any:
        try:
            # What a graph keeps is read twice by two-pass.
            with dynamo_config.patch(limits), functorch_config.patch(donated_buffer=False):
                return run(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise CompilerFailed(error) from error

    return compile_and_run


def shape_of(arguments: Arguments) -> tuple[int, ...]:
    """Returns the shape of a call's first tensor, such as its token ids'."""
    return tuple(next(x for x in named_tensors(arguments).values() if x.dim()).shape)


class Patches:
    """The modules of one model that an engine gives another ``forward``.

    Layers with a rule record the uses of their weights. What has no rule, and what is used
    without the batch dimension, is run example by example: where, is learned when a kind of call
    is first met, from two small runs of the model (``flow``, ``regions``).
    """

    def __init__(
        self, model: nn.Module, recorder: Recorder, compilation: Compilation | None = None
    ) -> None:
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
        self._recording: dict[tuple[nn.Module, bool], Callable[..., Any]] = {}
        self._kept_for: tuple[int, int] | None = None
        self._kept: tuple[object, object, dict[nn.Module, Callable[..., Any]]] = (None, None, {})
        self.compiled: CompiledForward | None = None
        """The model's forward, compiled, for batches that may be; None where none may."""
        if compilation is not None:
            self.compiled = CompiledForward(
                lambda *args, **kwargs: self._root(*args, **kwargs), compilation, recorder
            )

    def install(self) -> None:
        """Gives each layer its recording forward, and the model one that leads to ``calls``.

        Raises:
            InputError: A layer's forward is already replaced, by a second clipper or by hand.
        """

        def now(*args: Any, **kwargs: Any) -> Any:
            if self.compiled is not None and self._on and self.compiled.is_on:
                return self.compiled(*args, **kwargs)
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

    @property
    def counts(self) -> Counter[str]:
        """How many uses of each parameter the last backward pass met."""
        return Counter(self._recorder.counts)

    @property
    def has_regions(self) -> bool:
        """Whether any module runs example by example."""
        return bool(self._regions)

    def put_on(self) -> None:
        """Gives each layer its recording forward, unless it has it."""
        if self._on:
            return
        self._on = True
        for module, forward in self._forwards_now().items():
            self._put(module, forward)

    def _forwards_now(self) -> dict[nn.Module, Callable[..., Any]]:
        """Returns the forwards of the regions as they are, the same ones as long as they stay.

        What is compiled is compiled for these very functions.
        """
        if self.compiled is None:
            return self._new_forwards()
        if self._kept_for != (id(self._regions), id(self._broadcasts)):
            self._kept_for = id(self._regions), id(self._broadcasts)
            self._kept = self._regions, self._broadcasts, self._new_forwards()
        return self._kept[2]

    def _new_forwards(self) -> dict[nn.Module, Callable[..., Any]]:
        # Layers whose weights are expanded run their own forward on them.
        swapped = {
            region.module.get_submodule(name.rpartition(".")[0])
            for region in self._regions
            for name in region.expanded
        }
        forwards = {
            module: self._recording_forward(module)
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

    def _recording_forward(self, module: nn.Module) -> Callable[..., Any]:
        """Returns a layer's recording forward, the same in all plans if it may be compiled."""
        key = module, module in self._broadcasts.layers
        found = self._recording.get(key)
        if found is None:
            found = recording_forward(module, self._recorder, broadcast=key[1])
            if self.compiled is not None:
                self._recording[key] = found
        return found

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
