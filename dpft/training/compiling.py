"""``train.compile=true``: the model's forward under torch.compile, for micro-batches of few shapes.

Only whole micro-batches are compiled: what is left over of a draw runs as it is. In a private run
all of them are padded to ``task.max_length``, so that there is one shape, which is
public: which lengths are compiled, and when, would tell which lengths were drawn. Without privacy
lengths come in buckets, with one compilation for each. What the compiler keeps on disk stays in the
run's ``private/`` and goes with the steps.
"""

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpft.errors import InputError
from dpft.files import COMPILED, private_path
from dpft.machine import missing_for_compile
from dpft.privacy.clipping.choices import Compilation
from dpft.privacy.clipping.patches import compiled, shape_of
from dpft.training.loop import TrainingSet

UNLIKELY = 1e-6
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Where torch's compilers look for the folder of what they made; else one in /tmp for all runs."""


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


def check_first_step_compiles(
    *, expected_batch_size: int, micro_batch_size: int, longest: int, tokens: int | None
) -> None:
    """Refuses micro-batches of which a step may draw none that is whole.

    Compiling takes seconds or minutes, in the first step that has a whole micro-batch. Which one
    that is must not be seen, so all but one in a million runs have one in their first.

    Args:
        expected_batch_size: Units that a step draws, on average.
        micro_batch_size: Most records of a micro-batch.
        longest: Tokens that every record is padded to.
        tokens: Most padded tokens of a micro-batch; None: no bound.

    Raises:
        InputError: They are too large.
    """
    whole = micro_batch_size if tokens is None else min(micro_batch_size, tokens // longest)
    if _fewer(whole, expected_batch_size) <= UNLIKELY:
        return
    fitting = [n for n in range(1, whole) if _fewer(n, expected_batch_size) <= UNLIKELY]
    why = (
        "it compiles in the first step that draws as many records, and that must be the first of"
        " all, or the pause would show how many a step drew"
    )
    if not fitting:
        raise InputError(
            f"train.compile=true needs a larger train.expected_batch_size, got"
            f" {expected_batch_size}: {why}; raise it, or set train.compile=false."
        )
    raise InputError(
        f"train.micro_batch_size must be at most {max(fitting)} with train.compile=true and"
        f" train.expected_batch_size={expected_batch_size}, got {micro_batch_size}: {why}; lower"
        " it, or set train.compile=false."
    )


def _fewer(records: int, expected: float) -> float:
    """Returns the probability that a Poisson number of that mean is below so many."""
    return sum(
        math.exp(-expected + n * math.log(expected) - math.lgamma(n + 1)) for n in range(records)
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


@contextmanager
def private_cache(run: Path | None, *, wanted: bool) -> Iterator[None]:
    """Keeps what compilers write in a run's private folder meanwhile, and deletes it at the end.

    Args:
        run: The run's folder; None on all of its processes but the first, which have one beside it
            that nobody else can look into: when a compiler writes tells of a batch's length.
        wanted: Whether anything is compiled.
    """
    if not wanted:
        yield
        return
    with (
        tempfile.TemporaryDirectory() if run is None else nullcontext(run) as parent,
        _cache_in(private_path(Path(parent), COMPILED)),
    ):
        yield


@contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    from torch._inductor import config as inductor  # Which takes a while.

    before = {name: os.environ.get(name) for name in CACHES}
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir(mode=0o700)
    os.environ.update(dict.fromkeys(CACHES, str(folder.resolve())))
    try:
        # Else headers would be compiled into a folder of all runs, whose time can be read.
        with inductor.patch(cpp_cache_precompile_headers=False):
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
