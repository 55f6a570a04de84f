"""The rows of ``make bench-gpu``, the most important first."""

import importlib.util
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from benchmarks.shapes import SHAPES, untied
from benchmarks.workload import Workload

ORDINARY = Workload(engine="ordinary", precision="bf16")
SETTINGS = {
    "gpt2": replace(ORDINARY, batch_size=64, length=100),
    "gpt2_long": replace(ORDINARY, batch_size=8, length=1024),
    "roberta": replace(ORDINARY, shape="roberta", batch_size=32, length=128),
    "llama_350m": replace(ORDINARY, shape="llama_350m", batch_size=8, length=1024),
    "llama_1b": replace(ORDINARY, shape="llama_1b", batch_size=4, length=1024),
    "tiny_gpt2": replace(ORDINARY, shape="tiny_gpt2", batch_size=4, length=16),
    "tiny_roberta": replace(ORDINARY, shape="tiny_roberta", batch_size=4, length=16),
    "tiny_llama": replace(ORDINARY, shape="tiny_llama", batch_size=4, length=16),
}
"""An ordinary micro-batch of each shape, by the names that ``--shapes`` takes."""
GROUPS = {
    "all": ("gpt2", "gpt2_long", "roberta", "llama_350m", "llama_1b"),
    "tiny": ("tiny_gpt2", "tiny_llama"),
}
IN_SHARDS = ("llama_350m", "llama_1b", "tiny_llama")
METHODS = {"full": "full", "lora": "LoRA", "bitfit": "BiTFiT"}
PRIVATE, COMPILED, OPACUS = "private", "private, compiled", "Opacus ghost"
TARGETS = {"full": "1.15, 1.10", "lora": "1.05, 1.05", "bitfit": "1.05, 1.05"}
"""Of time and of memory, in bfloat16."""
SHARDS_TARGET = "0.85 of the tokens a second: 1.18, -"
NONE = "-, -"
FIRST = (
    ("bf16", "full", PRIVATE), ("bf16", "full", "fsdp"), ("bf16", "lora", PRIVATE),
    ("bf16", "bitfit", PRIVATE), ("fp32", "full", PRIVATE), ("bf16", "full", COMPILED),
    ("bf16", "full", OPACUS), ("fp32", "lora", PRIVATE), ("fp32", "bitfit", PRIVATE),
)  # fmt: skip
"""Precision, method and kind of the rows that come before all others, in this order."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison: a configuration beside a baseline, in one process."""

    name: str
    measured: Workload
    baseline: Workload
    target: str
    """Of time and memory, as ratios to the baseline."""
    place: tuple[str, str, str]
    """Precision, method and kind."""

    @property
    def missing(self) -> str | None:
        """Why this machine cannot measure the row, where a package lacks; else None."""
        is_peer = self.measured.engine.startswith("opacus")
        if is_peer and importlib.util.find_spec("opacus") is None:
            return "opacus is not installed"
        return None


def rows(settings: Collection[str], *, device: str, threads: int, compiler: str) -> list[Row]:
    """Returns the rows of some settings, the most important first.

    Args:
        settings: Names of ``SETTINGS``.
        device: What computes.
        threads: Of the processor.
        compiler: The backend of ``torch.compile``.
    """
    found: list[Row] = []
    for name in settings:
        base = replace(SETTINGS[name], device=device, threads=threads)
        for precision in ("bf16", "fp32"):
            found += _of_shape(name, replace(base, precision=precision), compiler)
        if name in IN_SHARDS:
            found += _in_shards(name, base)
    order = {place: number for number, place in enumerate(FIRST)}
    return sorted(found, key=lambda row: order.get(row.place, len(order)))


def chosen(words: str) -> list[str]:
    """Returns the settings that words separated by commas name, groups taken apart.

    Raises:
        KeyError: A word is the name of none.
    """
    names = [name for word in words.split(",") for name in GROUPS.get(word, (word,))]
    return [name for name in dict.fromkeys(names) if SETTINGS[name]]


def _of_shape(name: str, base: Workload, compiler: str) -> Iterator[Row]:
    """Yields a shape's rows in one precision, each beside the same method without privacy."""
    for method, spoken in METHODS.items():
        if method == "bitfit" and not SHAPES[base.shape].has_biases:
            continue
        own = replace(base, method=method)
        private = replace(own, engine="auto")
        kinds = {
            PRIVATE: private,
            COMPILED: replace(private, compiler=compiler),
            # Opacus refuses tied weights: its head is untied, the baseline's is not.
            OPACUS: replace(own, engine="opacus_ghost", shape=untied(own.shape)),
        }
        for kind, measured in kinds.items():
            has_target = base.precision == "bf16" and kind != OPACUS
            yield Row(
                name=f"{_named(name, base)}, {spoken}, {kind}",
                measured=measured,
                baseline=own,
                target=TARGETS[method] if has_target else NONE,
                place=(base.precision, method, kind),
            )


def _in_shards(name: str, base: Workload) -> Iterator[Row]:
    """Yields what cutting costs a private engine of one rank, beside none and beside torch's."""
    private = replace(base, engine="auto")
    fsdp = replace(private, parallel="fsdp")
    baselines = {
        "non-private FSDP2": (replace(base, parallel="fsdp"), SHARDS_TARGET),
        "private without shards": (private, NONE),
    }
    for spoken, (baseline, target) in baselines.items():
        yield Row(
            name=f"{_named(name, base)}, full, private, parallel=fsdp of one rank / {spoken}",
            measured=fsdp,
            baseline=baseline,
            target=target,
            place=(base.precision, "full", "fsdp"),
        )


def _named(name: str, base: Workload) -> str:
    return f"{name} (T={base.length}, b={base.batch_size}), {base.precision}"
