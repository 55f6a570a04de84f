"""Memory that each rank takes to load a model into shards, against its share of the weights.

    OMP_NUM_THREADS=1 python -m benchmarks.shard_loading --output benchmarks/results.md

Llama's shape with random weights is written to a temporary folder. Ranks of torchrun load a tiny
model first, so that libraries and buffers of gloo do not count, and then the large one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import tables
from dpft.commands.task_model import prepare_in_shards, prepare_model
from dpft.constants import CAUSAL, Head
from dpft.methods.full import Full
from dpft.models.architecture import read_architecture
from dpft.models.source import ModelConfig
from dpft.parallel.parallel_config import ParallelConfig
from dpft.parallel.processes import started
from dpft.parallel.ranks import Ranks, make_grid
from dpft.parallel.sharding import repeated_blocks, size_of
from dpft.parallel.shards import ShardedModel

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results.md"
TITLE = "Shards: memory of a rank while it loads its part of a model"
NOTES = (
    "Llama's shape, random float32 weights as safetensors. Most memory of the worst rank beyond\n"
    "what it had after a tiny model, anonymous (not of files) and resident, in MB, until it has\n"
    "its shard; the target is 1.3 shares of the weights and a layer's block: nothing is gathered\n"
    "before the first step, so that the group of embeddings and head need not lie whole."
)
COLUMNS = (
    "row",
    "parameters, M",
    "ranks",
    "anonymous",
    "resident",
    "target",
    "share",
    "block",
)
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
LARGE = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 22}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 16}


def write_model(folder: Path, **sizes: int) -> None:
    """Save a model of random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(**(HEADS | sizes))  # type: ignore[arg-type]
    LlamaForCausalLM(config).save_pretrained(folder)


def load(folder: Path, ranks: Ranks, *, whole: bool) -> ShardedModel:
    """Return a model in shards, as a run loads it.

    Args:
        folder: Of the model.
        ranks: The processes.
        whole: Whether each rank loads all of it before it is cut.
    """
    config: Any = SimpleNamespace(
        method=Full(name="full"),
        task=SimpleNamespace(special_tokens=()),
        train=SimpleNamespace(seed=0),
    )
    architecture = read_architecture(ModelConfig(name="shape", path=str(folder)))
    if whole:
        model, _ = prepare_model(config, architecture, Head(kind=CAUSAL))
        read = None
    else:
        model, _, rows = prepare_in_shards(config, architecture, Head(kind=CAUSAL))
        read = None if rows is None else rows.read
    grid = make_grid(ranks, None, torch.device("cpu"))
    return ShardedModel(model, grid, ranks, blocks=repeated_blocks(model), read=read)


def memory() -> tuple[int, int]:
    """Return the bytes that this process has in memory: anonymous, and all."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if line
    )
    anonymous, resident = (int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "VmRSS"))
    return anonymous, resident


@contextmanager
def watched() -> Iterator[list[int]]:
    """Give the most memory of the block, in bytes beyond what there was before it."""
    before, most, ended = memory(), [0, 0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.002):
            for at, (now, then) in enumerate(zip(memory(), before, strict=True)):
                most[at] = max(most[at], now - then)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield most
    finally:
        ended.set()
        watching.join()


def work(tiny: Path, large: Path, *, whole: bool) -> None:
    """Load both models on a rank; the first one prints what the worst took."""
    with started(ParallelConfig(name="ddp", cpu_offload=True)) as ranks:
        load(tiny, ranks, whole=whole)
        with watched() as most:
            shards = load(large, ranks, whole=whole)
        block = size_of(shards.model.get_submodule("model.layers.0").parameters()) * 4
        everyones = ranks.everyones(json.dumps(most).encode())
        if ranks.is_rank_0:
            worst = [max(each) for each in zip(*map(json.loads, everyones), strict=True)]
            total = size_of(shards.model.parameters())
            print(json.dumps({"worst": worst, "parameters": total, "block": block}))


def measure(tiny: Path, large: Path, *, ranks: int, whole: bool) -> str:
    """Return a row of the table in Markdown."""
    words = ["--work", str(tiny), str(large), *(["--whole"] if whole else [])]
    launched = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "-m"]
    ended = subprocess.run(
        [sys.executable, *launched, "benchmarks.shard_loading", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    share = found["parameters"] * 4 / ranks
    numbers = (*found["worst"], 1.3 * share + found["block"], share, found["block"])
    row = "loaded whole, then cut" if whole else "read into shards"
    cells = " | ".join(f"{number / 1e6:.0f}" for number in numbers)
    return f"| {row} | {found['parameters'] / 1e6:.0f} | {ranks} | {cells} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work is not None:
        work(*options.work, whole=options.whole)
        return
    options.device, options.precision, options.threads = "cpu", "fp32", 1
    writer = "benchmarks/shard_loading.py"
    table = tables.heading(TITLE, options, writer=writer, notes=NOTES, columns=COLUMNS)
    with tempfile.TemporaryDirectory() as name:
        tiny, large = Path(name, "tiny"), Path(name, "large")
        write_model(tiny, **TINY)
        write_model(large, **LARGE)
        for whole in (False, True):
            row = measure(tiny, large, ranks=options.ranks, whole=whole)
            print(row, flush=True)
            table += row + "\n"
    tables.write(options.output, table)


if __name__ == "__main__":
    main()
