"""The clipped sum of each method on each family, compared with single-example execution."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.architectures import Batch, causal, classification, sequence_to_sequence
from dpft.constants import CLASSIFIER, IMAGE_CLASSIFIER, Head
from dpft.errors import DpftError
from dpft.methods.base import METHODS
from dpft.models.architecture import read_architecture
from dpft.models.loading import load_model
from dpft.models.source import ModelConfig
from tests.privacy.clipping.oracle import TOLERANCE, clipped, distance, unit_gradients
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
"""DeBERTa projects one row of relative positions for the whole batch by the layers of RGP."""
LABELS = ("bad", "fair", "good", "great")
"""More classes than examples, because gradients of one bias would otherwise cancel in the sum."""
HEADS = {
    CAUSAL: Head(kind=CAUSAL),
    SEQ2SEQ: Head(kind=SEQ2SEQ),
    ENCODER: Head(kind=CLASSIFIER, labels=LABELS),
    IMAGE: Head(kind=IMAGE_CLASSIFIER, labels=LABELS),
}
LossesOf = Callable[[nn.Module, Any], Tensor]


def method_result(family: Family, folder: Path, method: str) -> str:
    """Return ``EXACT``, or the reason why a method is not supported on a family.

    Args:
        family: The family.
        folder: Its folder.
        method: Name of the method.

    Raises:
        AssertionError: The clipper accepted the model, and its sum differs from that of
            single-example execution.
    """
    torch.manual_seed(0)
    architecture = read_architecture(ModelConfig(name="local", path=str(folder)))
    chosen = METHODS.named(method)(name=method, **METHOD_SETTINGS[method])
    vocabulary_size = 0 if family.kind == IMAGE else architecture.vocabulary_size
    batch = _batch(family, vocabulary_size, [12, 9, 5], seed=1)
    synthetic = [
        _batch(family, vocabulary_size, lengths, seed=2) for lengths in ([5, 9, 2, 7], [4, 6, 3])
    ]
    losses_of = _losses_of(family)
    try:
        loaded = load_model(architecture, seed=0, head=HEADS[family.kind])
        loaded.config.use_cache = False  # as the losses of dpft do: maps cannot write to a cache
        model = chosen.prepare(loaded).eval()
        expected = unit_gradients(model, losses_of, batch)
        norm = expected.median_norm()
        actual = clipped(model, losses_of, [batch], norm, synthetic=synthetic)
    except DpftError as error:
        return str(error)
    assert actual.choice.engine == "book_keeping", method
    off = distance(actual, expected, norm)
    assert off <= TOLERANCE, f"{method}: the sum differs by {off:.1e}"
    return EXACT


def _batch(
    family: Family, vocabulary_size: int, lengths: Sequence[int], seed: int
) -> dict[str, Tensor]:
    """Return random examples; texts are right-padded and have the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.arange(len(lengths))
    if family.kind == IMAGE:
        pixels = torch.randn(len(lengths), 3, 16, 16, generator=generator)
        return {"pixels": pixels, "classes": classes}
    width = max(lengths)
    ids = torch.randint(5, vocabulary_size, (len(lengths), width), generator=generator)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    return {"ids": ids.masked_fill(mask == 0, 0), "mask": mask, "classes": classes}


def _losses_of(family: Family) -> LossesOf:
    """Return the function that computes per-example losses, shape (b,)."""
    if family.kind == IMAGE:
        return lambda model, batch: functional.cross_entropy(
            model(pixel_values=batch["pixels"]).logits, batch["classes"], reduction="none"
        )
    compute = {CAUSAL: causal, SEQ2SEQ: sequence_to_sequence, ENCODER: classification}[family.kind]
    return lambda model, batch: compute(model, Batch(**batch))
