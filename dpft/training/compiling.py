"""``train.compile=true``: the model's forward under torch.compile, for micro-batches of few shapes.

Lengths come in buckets, and of each length only whole micro-batches are compiled: what is left over
of a draw is smaller and runs as it is. So there is one compilation for each length, all of public
shapes, whatever is drawn.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dpft.compiler import missing_for_compile
from dpft.errors import InputError
from dpft.privacy.clipping.choices import Compilation
from dpft.privacy.clipping.engines.compiled import compiled, shape_of
from dpft.training.loop import TrainingSet


def check_compiler(device: torch.device, *, wanted: bool) -> None:
    """Refuses to compile on a machine that cannot.

    Raises:
        InputError: It lacks something, which is named.
    """
    missing = missing_for_compile(device.type) if wanted else None
    if missing is not None:
        raise InputError(
            f"train.compile=true needs {missing}, which this machine lacks; install it, or set"
            " train.compile=false."
        )


def compilation_of(training_set: TrainingSet) -> Compilation | None:
    """Returns which micro-batches of a training set are compiled, and how; None for none."""
    return Compilation(takes=training_set.is_whole) if training_set.compile else None


@contextmanager
def compiled_calls(model: nn.Module, compilation: Compilation | None) -> Iterator[None]:
    """Compiles the calls of a model that gradients are asked of, without the clipper.

    Raises:
        CompilerFailed: The compiler does not get through the model.
    """
    if compilation is None:
        yield
        return
    own, run = model.forward, compiled(model.forward, compilation)

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or not compilation.takes(shape_of((args, kwargs))):
            return own(*args, **kwargs)
        return run(*args, **kwargs)

    model.forward = forward
    try:
        yield
    finally:
        del model.forward
