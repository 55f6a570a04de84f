"""Writes the table of docs/how-to/model-families.md: what each method is on each model family.

Run: python -m docs.tools.families. Small models with random weights (benchmarks.architectures); the
clipper runs on each pair, and its sum is compared with one example at a time.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.architectures import Architecture, Batch, architectures
from docs.tools.model_size import write
from dpft.errors import DpftError
from dpft.methods.base import METHODS
from dpft.privacy.clipping import PerExampleClipper

PAGE = Path(__file__).resolve().parents[1] / "how-to" / "model-families.md"
FAMILIES = (
    *("llama", "qwen2", "bert", "roberta", "t5", "gpt2", "mistral", "gemma3", "opt", "falcon"),
    *("deberta-v2", "gpt_neox", "bart", "phi", "bloom"),
)
SETTINGS: Mapping[str, Mapping[str, Any]] = {
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
EXACT, REFUSED, LACKS = "exact", "refused", "–"
ALLOWED = 1e-5


def said_of(architecture: Architecture, method: str) -> str:
    """Returns what a method is on an architecture: exact, refused, or that it has no such part.

    Raises:
        ValueError: The clipper did not refuse the model, and its sum is another than the loop's.
    """
    torch.manual_seed(0)
    try:
        chosen = METHODS.named(method)(name=method, **SETTINGS[method])
        model = chosen.prepare(architecture.build()).eval()
    except (DpftError, ValueError, AttributeError, KeyError):
        return LACKS
    try:
        clipped = _sums(model, architecture, "auto")
    except DpftError:
        return REFUSED
    alone = _sums(model, architecture, "loop")
    scale = max(float(total.abs().max()) for total in alone.values())
    if scale == 0 or clipped.keys() != alone.keys():
        raise ValueError(f"{method}: nothing to compare.")
    off = max(float((clipped[name] - alone[name]).abs().max()) for name in alone) / scale
    if off > ALLOWED:
        raise ValueError(f"{method}: the sum differs by {off:.1e}, allowed {ALLOWED:.0e}.")
    return EXACT


def _sums(model: nn.Module, of: Architecture, engine: str) -> dict[str, Tensor]:
    """Returns the clipped sum of a batch, by an engine of the clipper."""
    model.zero_grad(set_to_none=True)
    batch = _batch()
    with PerExampleClipper(model, max_grad_norm=0.1, engine=engine) as clipper:
        clipper.accumulate(lambda: of.losses(model, batch))
    named = model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.requires_grad and p.grad is not None}


def _batch() -> Batch:
    ids = torch.randint(3, 8192, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(12) < torch.tensor([12, 9, 5])[:, None]).long()
    return Batch(ids.masked_fill(mask == 0, 0), mask, torch.tensor([0, 1, 1]))


def rows(families: tuple[str, ...] = FAMILIES) -> list[str]:
    """Returns the rows of the table."""
    known = architectures()
    made = []
    for family in families:
        cells = [said_of(known[family], method) for method in SETTINGS]
        made.append(f"| {family} | {' | '.join(cells)} |")
        print(made[-1], flush=True)
    return made


if __name__ == "__main__":
    families = tuple(sys.argv[1:]) or FAMILIES
    head = f"| family | {' | '.join(f'`{method}`' for method in SETTINGS)} |"
    write(PAGE, ["", head, f"|---{'|---' * len(SETTINGS)}|", *rows(families), ""])
