"""What the clipper does with each method on a family: its sum, compared with that of a loop."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.architectures import Batch, causal, classification, sequence_to_sequence
from dpft.errors import DpftError
from dpft.kinds import CLASSIFIER, IMAGE_CLASSIFIER, Head
from dpft.methods.base import METHODS
from dpft.models.architecture import read_architecture
from dpft.models.loading import load_model
from dpft.models.source import ModelConfig
from dpft.privacy.clipping import PerExampleClipper
from tests.zoo.families import CAUSAL, ENCODER, IMAGE, SEQ2SEQ, Family

METHOD_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "lora": {},
    "bitfit": {},
    "norms": {},
    "top2": {},
    "adapter": {"bottleneck": 8},
    "prefix": {"length": 3, "hidden": 8},
    "prompt": {"num_virtual_tokens": 3},
    "rgp": {},
}
EXACT = "exact"
ALLOWED = 1e-5
LABELS = ("bad", "good")
HEADS = {
    CAUSAL: Head(kind=CAUSAL),
    SEQ2SEQ: Head(kind=SEQ2SEQ),
    ENCODER: Head(kind=CLASSIFIER, labels=LABELS),
    IMAGE: Head(kind=IMAGE_CLASSIFIER, labels=LABELS),
}
Compute = Callable[[nn.Module], Tensor]


def method_result(family: Family, folder: Path, method: str) -> str:
    """Return ``EXACT``, or the reason why a method is not supported on a family.

    Args:
        family: The family.
        folder: Its folder.
        method: Name of the method.

    Raises:
        AssertionError: The clipper accepted the model, and its sum differs from the loop's.
    """
    torch.manual_seed(0)
    architecture = read_architecture(ModelConfig(name="local", path=str(folder)))
    chosen = METHODS.named(method)(name=method, **METHOD_SETTINGS[method])
    losses = _losses(family, architecture.vocabulary_size if family.kind != IMAGE else 0)
    try:
        loaded = load_model(architecture, seed=0, head=HEADS[family.kind])
        model = chosen.prepare(loaded).eval()
        clipped = _sums(model, losses, "auto")
    except DpftError as error:
        return str(error)
    by_loop = _sums(model, losses, "loop")
    scale = max(float(total.abs().max()) for total in by_loop.values())
    assert scale > 0
    assert clipped.keys() == by_loop.keys()
    off = max(float((clipped[name] - by_loop[name]).abs().max()) for name in by_loop) / scale
    assert off <= ALLOWED, f"{method}: the sum differs by {off:.1e}"
    return EXACT


def _sums(model: nn.Module, losses: Compute, engine: str) -> dict[str, Tensor]:
    """Return the clipped sum of a batch by an engine of the clipper, by parameter."""
    model.zero_grad(set_to_none=True)
    with PerExampleClipper(model, max_grad_norm=0.1, engine=engine) as clipper:
        clipper.accumulate(lambda: losses(model))
    named = model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.requires_grad and p.grad is not None}


def _losses(family: Family, vocabulary_size: int) -> Compute:
    """Return what computes the losses of three examples, shape (3,)."""
    generator = torch.Generator().manual_seed(1)
    classes = torch.tensor([0, 1, 1])
    if family.kind == IMAGE:
        pixels = torch.randn(3, 3, 16, 16, generator=generator)
        return lambda model: functional.cross_entropy(
            model(pixel_values=pixels).logits, classes, reduction="none"
        )
    ids = torch.randint(5, vocabulary_size, (3, 12), generator=generator)
    mask = (torch.arange(12) < torch.tensor([12, 9, 5])[:, None]).long()
    batch = Batch(ids.masked_fill(mask == 0, 0), mask, classes)
    compute = {CAUSAL: causal, SEQ2SEQ: sequence_to_sequence, ENCODER: classification}
    return lambda model: compute[family.kind](model, batch)
