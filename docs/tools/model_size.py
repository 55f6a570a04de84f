"""Write the table of docs/how-to/plan.md: memory of models by method and precision.

Run: python -m docs.tools.model_size. The sums are those of ``dpft plan``; no weights are loaded.
"""

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.shapes import SHAPES, Shape, llama_shape
from dpft.data.batches import TextLayout
from dpft.estimates.activations import trace_activations
from dpft.estimates.rank_memory import StepShapes, peak_memory, rank_shapes
from dpft.methods.base import METHODS
from dpft.parallel.parallel_config import SHARDED, ParallelConfig
from dpft.training.optimizers import AdamW

PAGE = Path(__file__).resolve().parents[1] / "how-to" / "plan.md"
LENGTH, MICRO_BATCHES = 512, 64
LLAMA_3: Mapping[str, Any] = {"vocab_size": 128256, "num_key_value_heads": 8}
MODELS: Mapping[str, Shape] = {
    "GPT-2, 0.1 B": SHAPES["gpt2"],
    "Llama, 0.4 B": SHAPES["llama_350m"],
    "Llama 3.2, 1.2 B": llama_shape(
        hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, intermediate_size=8192,
        tie_word_embeddings=True, **LLAMA_3,
    ),
    "Llama 3.2, 3.2 B": llama_shape(
        hidden_size=3072, num_hidden_layers=28, num_attention_heads=24, intermediate_size=8192,
        tie_word_embeddings=True, **LLAMA_3,
    ),
    "Llama 3, 8.0 B": llama_shape(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=14336,
        **LLAMA_3,
    ),
    "Llama 3, 70.6 B": llama_shape(
        hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, intermediate_size=28672,
        **LLAMA_3,
    ),
}  # fmt: skip
METHODS_SHOWN: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "top2": {},
    "lora": {"rank": 8},
}
SETTINGS = {
    "fp32": ("fp32", False),
    "bf16": ("bf16", False),
    "bf16, checkpointing": ("bf16", True),
}
DEVICES = (16, 24, 48, 80, 141)
"""Memory of common GPUs in gigabytes."""
SHARDS = 8


def needed(shape: Shape, method: str, precision: str, *, checkpointing: bool, shards: int) -> int:
    """Return the bytes that a process needs for micro-batches of one record."""
    with torch.device("meta"):
        model = shape.build()
    targets = {"targets": tuple(shape.adapted)} if method == "lora" else {}
    chosen = METHODS.named(method)(name=method, **METHODS_SHOWN[method], **targets)
    prepared = chosen.prepare(model)
    parallel = ParallelConfig(name="none")
    if shards > 1:
        parallel = ParallelConfig(name="fsdp", shard_size=shards, accumulate=SHARDED)
    shapes = rank_shapes(prepared, parallel, shards, AdamW())
    traced = trace_activations(
        copy.deepcopy(prepared), rows=1, length=LENGTH, layout=TextLayout(kind="causal"),
        precision=precision, recomputes=checkpointing,
    )  # fmt: skip
    step = StepShapes(
        activations=traced,
        engine="book_keeping",
        micro_batches=MICRO_BATCHES,
    )
    return peak_memory(shapes, step)["total"]


def fitting(gigabytes: float) -> str:
    """Return the smallest device that has so much."""
    return next((f"{size} GB" for size in DEVICES if gigabytes <= size), "none")


def rows() -> list[str]:
    """Return the rows of the table."""
    made = []
    for name, shape in MODELS.items():
        for method in METHODS_SHOWN:
            sizes = {
                setting: needed(shape, method, precision, checkpointing=recomputes, shards=1) / 1e9
                for setting, (precision, recomputes) in SETTINGS.items()
            }
            spread = needed(shape, method, "bf16", checkpointing=True, shards=SHARDS) / 1e9
            least = min(sizes.values())
            cells = [*(f"{size:.1f}" for size in sizes.values()), fitting(least)]
            made.append(
                f"| {name} | `{method}` | {' | '.join(cells)} | {spread:.1f} | {fitting(spread)} |"
            )
            print(made[-1], flush=True)
    return made


def write(page: Path, lines: list[str]) -> None:
    """Put rows between the marks of a page.

    Raises:
        ValueError: The page has no marks.
    """
    text = page.read_text()
    body = "\n".join(lines)
    made, times = re.subn(
        r"(<!-- made -->\n).*?(\n<!-- /made -->)", lambda found: f"{found[1]}{body}{found[2]}",
        text, flags=re.DOTALL,
    )  # fmt: skip
    if times != 1:
        raise ValueError(f"{page} must have one <!-- made --> and <!-- /made -->, got {times}.")
    page.write_text(made)


if __name__ == "__main__":
    heads = ["model", "method", *(f"{name}, GB" for name in SETTINGS), "one GPU of",
             f"each of {SHARDS} GPUs, GB", f"{SHARDS} GPUs of"]  # fmt: skip
    rule = "|---|---|---:|---:|---:|---|---:|---|"
    write(PAGE, ["", f"| {' | '.join(heads)} |", rule, *rows(), ""])
