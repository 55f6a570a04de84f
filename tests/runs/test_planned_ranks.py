"""A plan of many processes, none of which is started."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dpft.config.schema import PlanConfig
from dpft.errors import InputError
from dpft.runs import planned_ranks, planned_run
from dpft.runs.planned_run import describe_run
from dpft.training.estimate import Estimate
from tests.config.test_conf import loaded
from tests.models import small
from tests.slowness import slow_but

TOOK = {"seconds_per_step": 1.0, "seconds_total": 3.0, "typical_length": 12, "how": "told"}


@pytest.fixture(autouse=True)
def _no_probe(monkeypatch: pytest.MonkeyPatch, shared_accounting: None) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(
        planned_run,
        "estimated_cost",
        lambda *_, peak_memory_bytes, **__: Estimate(peak_memory_bytes=peak_memory_bytes, **TOOK),
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without weights."""
    base = Path(small.save("gpt2", tmp_path_factory.mktemp("ranks") / "base"))
    for path in base.iterdir():
        if path.name != "config.json":
            path.unlink()
    return base


def planned(base: Path, *words: str) -> dict[str, Any]:
    given = [
        *("task=e2e", "model=gpt2", f"model.path={base}", "task.max_length=16"),
        *("decode.max_new_tokens=8", "privacy.noise_multiplier=1", "privacy.accountant=rdp"),
        *("train.steps=3", "train.expected_batch_size=64", "train.micro_batch_size=4"),
    ]
    config = loaded("plan", [*given, *words])
    assert isinstance(config, PlanConfig)
    return dict(describe_run(config).record)


def test_one_process_has_parts_that_add_up_and_sends_nothing(base: Path) -> None:
    record = planned(base)
    parts = dict(record["memory_per_rank_bytes"])
    assert parts.pop("total") == sum(parts.values()) == record["estimated"]["peak_memory_bytes"]
    assert parts["weights"] == 4 * record["total_parameters"]
    assert record["bytes_sent_per_step"] == 0
    assert record["processes"]["world_size"] == 1


def test_shards_hold_less_and_their_sums_less_still(base: Path) -> None:
    whole = planned(base, "parallel=fsdp", "parallel.world_size=4")
    sharded = planned(base, "parallel=fsdp", "parallel.world_size=4", "parallel.accumulate=sharded")
    one = planned(base)["memory_per_rank_bytes"]
    for record in (whole, sharded):
        assert record["memory_per_rank_bytes"]["weights"] < 0.3 * one["weights"]
        assert record["processes"]["shard_size"] == 4
    memory = [each["memory_by_phase_bytes"]["optimizer"] for each in (whole, sharded)]
    assert memory[1] < memory[0]
    assert whole["bytes_sent_per_step"] < sharded["bytes_sent_per_step"]


def test_replicas_are_two_where_nobody_says(base: Path) -> None:
    record = planned(base, "parallel=ddp")
    assert record["processes"]["world_size"] == 2
    assert record["bytes_sent_per_step"] > 4 * record["trainable_parameters"]


def test_more_memory_makes_room_for_more(base: Path) -> None:
    few, many = (
        planned(base, f"plan.device_memory_gb={gb}")["largest_micro_batch"] for gb in (0.4, 0.6)
    )
    assert 0 < few < many
    assert planned(base, "plan.device_memory_gb=0.1")["largest_micro_batch"] == 0
    assert planned(base)["device_memory_bytes"] > 10**9, "this machine's"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("parallel=fsdp", "parallel.world_size=8", "parallel.shard_size=3"), "must divide"),
        (("parallel=ddp", "parallel.world_size=0"), "world_size must be at least 1"),
        (("parallel.world_size=2",), "parallel=none is one process"),
        (("plan.device_memory_gb=0",), "device_memory_gb must be positive"),
        (("parallel=fsdp", "optimizer=adafactor"), "adafactor"),
        (("model.path=nowhere",), "nowhere"),
    ],
)
def test_what_cannot_be_planned_is_refused(base: Path, words: tuple[str, ...], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        planned(base, *words)


def test_a_model_that_cannot_be_cut_is_refused_by_its_parameter(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones((), device="meta"))
    monkeypatch.setattr(planned_ranks, "planned_model", lambda *_: (model, frozenset()))
    with pytest.raises(InputError, match="cannot shard the parameter scale"):
        planned(base, "parallel=fsdp")


def test_a_model_that_does_not_run_without_values_is_guessed(
    base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError

    expected = planned(base)["memory_per_rank_bytes"]
    monkeypatch.setattr(planned_ranks, "trace_activations", fails)
    found = planned(base)["memory_per_rank_bytes"]
    assert "guessed from its layers' shapes" in caplog.text
    assert replace_activations(found) == replace_activations(expected)


def replace_activations(parts: dict[str, int]) -> dict[str, int]:
    """The parts but for what depends on activations."""
    return {name: parts[name] for name in ("process", "weights")}


@pytest.mark.parametrize("given", slow_but(("auto",), ("auto", "true")))
def test_a_fused_head_is_planned_with_less_memory(base: Path, given: str) -> None:
    words = ("task.max_length=48", "train.micro_batch_size=64", "train.expected_batch_size=64")
    large = ("model.path=" + str(_with_a_large_vocabulary(base)),)
    whole = planned(base, *words, *large, "train.fused_head=false")
    fused = planned(base, *words, *large, f"train.fused_head={given}")
    parts = [each["memory_per_rank_bytes"]["activations"] for each in (fused, whole)]
    assert parts[0] < 0.7 * parts[1]
    assert planned(base, *words) == planned(base, *words, "train.fused_head=false"), "few tokens"


def _with_a_large_vocabulary(base: Path) -> Path:
    large = base.with_name("large")
    if not large.exists():
        shutil.copytree(base, large)
        config = json.loads((large / "config.json").read_text())
        (large / "config.json").write_text(json.dumps(config | {"vocab_size": 20_000}))
    return large
