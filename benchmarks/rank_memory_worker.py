"""A rank whose peaks of memory are noted, phase by phase, while it takes private steps.

Started by ``benchmarks.rank_memory``, alone or by torchrun. Weights and records are random: GPT-2's
shape with fewer layers, texts of one length, as many micro-batches on each rank. Printed is a JSON
list with an object for each rank: its peaks of anonymous memory.
"""

import argparse
import gc
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.constants import CAUSAL
from dpft.data.batches import TextLayout
from dpft.data.tokenization import TokenizedExample
from dpft.models.losses import per_example_losses
from dpft.parallel.parallel_config import SHARDED, ParallelConfig
from dpft.parallel.processes import started
from dpft.parallel.ranks import ALONE, Ranks, RankShare, make_grid
from dpft.parallel.sharding import repeated_blocks
from dpft.parallel.shards import ShardedModel
from dpft.privacy.clipping.clipper import ClippingOptions
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.engine_results import MicroBatchResult
from dpft.privacy.ledger import NoLedger
from dpft.privacy.plan import Phase, PrivacyPlan
from dpft.privacy.randomness import make_randomness, restore_randomness
from dpft.training.loop import TrainingSet, compute_gradient
from dpft.training.synthetic_batches import self_check_batches

CPU = torch.device("cpu")
STATUS = Path("/proc/self/status")
INTERVAL = 0.02
"""Seconds between two looks at what the process holds."""
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
STEPS = 2


@dataclass(frozen=True, kw_only=True)
class RankWorkload:
    """What each rank is to hold; as the command line names it."""

    parallel: str = "none"
    accumulate: str = "whole"
    engine: str = "book_keeping"
    layers: int = 8
    width: int = 512
    vocabulary: int = 50257
    length: int = 64
    micro_batch_size: int = 4
    micro_batches: int = 2
    """Of each rank and step."""

    def model(self) -> GPT2LMHeadModel:
        """Return the model, of random weights."""
        torch.manual_seed(0)
        config = GPT2Config(
            n_layer=self.layers, n_embd=self.width, n_head=8, vocab_size=self.vocabulary,
            **NO_DROPOUT,
        )  # fmt: skip
        return GPT2LMHeadModel(config)

    def records(self, ranks: Ranks) -> TrainingSet:
        """Return records of one length, a step's on all ranks."""
        count = ranks.size * self.micro_batches * self.micro_batch_size
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(self.vocabulary, (count, self.length), generator=generator).tolist()
        return TrainingSet(
            examples=[TokenizedExample(input_ids=ids, labels=ids) for ids in tokens],
            micro_batch_size=self.micro_batch_size,
            layout=TextLayout(kind=CAUSAL),
            device=CPU,
            share=RankShare(ranks.rank, ranks.size),
        )


class Peaks:
    """A thread that looks at this process's anonymous memory, by the phase it is in."""

    def __init__(self) -> None:
        self.phase = "start"
        self.highest: dict[str, int] = defaultdict(int)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> dict[str, int]:
        """Return the bytes of each phase."""
        self._ends.set()
        self._thread.join()
        return dict(self.highest)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count what is held meanwhile as a phase's."""
        self.phase, before = phase, self.phase
        try:
            yield
        finally:
            self.phase = before

    def _watch(self) -> None:
        while not self._ends.wait(INTERVAL):
            phase, held = self.phase, resident_bytes()
            self.highest[phase] = max(self.highest[phase], held)


def resident_bytes() -> int:
    """Return what this process holds, the pages of its libraries' files too."""
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


class WatchedEngine:
    """A private engine that says which phase of a step it is in."""

    def __init__(self, engine: PrivacyEngine, peaks: Peaks) -> None:
        self._engine, self._peaks, self._calls = engine, peaks, 0

    def draw(self, num_units: int) -> list[int]:
        """As the engine's."""
        return self._engine.draw(num_units)

    def accumulate(self, batch: Any, rows_per_unit: int = 1) -> MicroBatchResult:
        """As the engine's; the first two calls are checked."""
        self._calls += 1
        with self._peaks.during("checked" if self._calls <= 2 else "accumulate"):
            return self._engine.accumulate(batch, rows_per_unit)

    def finish_step(self) -> Any:
        """As the engine's."""
        with self._peaks.during("finish"):
            return self._engine.finish_step()


def sharded(model: nn.Module, workload: RankWorkload, ranks: Ranks) -> ShardedModel | None:
    """Cuts the model, where the workload says so."""
    if workload.parallel != "fsdp":
        return None
    shards = ShardedModel(
        model,
        make_grid(ranks, None, CPU),
        ranks,
        blocks=repeated_blocks(model),
        accumulates_shards=workload.accumulate == SHARDED,
    )
    ranks.serving_other_ranks = shards.serving_other_ranks
    return shards


def private_engine(
    model: nn.Module, workload: RankWorkload, ranks: Ranks, shards: ShardedModel | None
) -> PrivacyEngine:
    """Return an engine that draws all records."""
    count = ranks.size * workload.micro_batches * workload.micro_batch_size
    phase = Phase(method="full", steps=STEPS, max_grad_norm=0.1, sensitivity=0.1)
    plan = PrivacyPlan(
        noise_multiplier=1.0, sample_rate=1.0, steps=STEPS, delta=1e-3, num_examples=count,
        expected_batch_size=count, clipping="flat", phases=(phase,),
    )  # fmt: skip
    return PrivacyEngine(
        model,
        per_example_losses,
        plan=plan,
        ledger=NoLedger(),
        randomness=restore_randomness(CPU, make_randomness(CPU, 1).state(0), 1, rank=ranks.rank),
        options=ClippingOptions(max_grad_norm=1.0, engine=workload.engine),
        ranks=ranks,
        shards=shards,
    )


def take_steps(workload: RankWorkload, ranks: Ranks) -> dict[str, Any]:
    """Take the steps; return the peaks of each phase."""
    model = workload.model()
    shards = sharded(model, workload, ranks)
    training_set, peaks = workload.records(ranks), Peaks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.train()
    gc.collect()
    held = resident_bytes()
    peaks.start()
    with private_engine(model, workload, ranks, shards) as engine:
        synthetic = self_check_batches(
            model, max_length=workload.length, layout=training_set.layout
        )
        with peaks.during("self-check"), ranks.failing_together():
            engine._clipper.self_check(*synthetic.batches)
        watched = WatchedEngine(engine, peaks)
        for step in range(1, STEPS + 1):
            compute_gradient(training_set, watched, step, ranks)  # type: ignore[arg-type]
            with peaks.during("optimizer"):
                optimizer.step()
    return {"peaks": peaks.stop(), "held": held}


def main() -> None:
    """Take the steps that the arguments describe and print what they took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    workload = RankWorkload(**json.loads(parser.parse_args().workload))
    if workload.parallel == "none":
        print(json.dumps([take_steps(workload, ALONE)]))
        return
    with started(ParallelConfig(name=workload.parallel, cpu_offload=True)) as ranks:
        answers = ranks.everyones(json.dumps(take_steps(workload, ranks)).encode())
        if ranks.is_rank_0:
            print(json.dumps([json.loads(each) for each in answers]))


if __name__ == "__main__":
    main()
