"""A clipped model's forward under ``torch.compile``, used for batches that were proved without it.

The proof of a kind of call, and every later look at it, is made of the model as it is. Only then,
and only for shapes that come again and again, the compiled forward takes its place; what it records
is held once against the bare model's gradient, on all rows of a batch, and each batch afterwards
must record as many uses of each parameter as that one.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from dpft.errors import RunError
from dpft.privacy.clipping.choices import Compilation
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.separation.nested_values import named_tensors
from dpft.privacy.clipping.separation.root_calls import Arguments
from dpft.privacy.clipping.traced import new_anchor

SHAPES = 4096
"""Compilations of one function that torch allows at most; each shape is one."""


class CompilerFailed(RunError):
    """The compiler does not get through a model."""

    def __init__(self, error: Exception) -> None:
        """Says so, without the error's message, which may tell the records' lengths."""
        super().__init__(
            f"`compilation` cannot compile this model ({type(error).__name__}); set"
            " `compilation=None`."
        )


class CompiledForward:
    """A forward that is compiled for each shape of its inputs."""

    def __init__(
        self, forward: Callable[..., Any], compilation: Compilation, recorder: Recorder
    ) -> None:
        """Compiles nothing yet.

        Args:
            forward: The model's, its layers on taps.
            compilation: How, and which shapes.
            recorder: What the taps report to.
        """
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
        """Notes which graph the losses have whose backward pass comes next; None: another's."""
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
