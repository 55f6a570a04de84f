"""A plan of many processes, none of which is started, and what ``auto`` stands for."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dpft.commands import run_cost
from dpft.commands.plan import describe_run
from dpft.commands.run_cost import with_micro_batch_size
from dpft.commands.task_model import fitted_to, training_head
from dpft.config.schema import PlanConfig, TrainConfig
from dpft.errors import InputError
from dpft.estimates import rank_memory
from dpft.models.architecture import read_architecture
from dpft.strict_model import as_json
from tests.commands.configs import with_privacy, with_train, without_weights
from tests.config.test_conf import loaded
from tests.rejections import rejects


@pytest.fixture(autouse=True)
def _no_probe(monkeypatch: pytest.MonkeyPatch, shared_accounting: None) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("RANK", raising=False)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without weights."""
    return without_weights(tmp_path_factory.mktemp("ranks") / "base")


def planned(base: Path, *words: str) -> dict[str, Any]:
    given = [
        *("task=e2e", "model=gpt2", f"model.path={base}", "task.max_length=16"),
        *("decode.max_new_tokens=8", "privacy.noise_multiplier=1", "privacy.accountant=rdp"),
        *("train.steps=3", "train.expected_batch_size=64", "train.micro_batch_size=4"),
        "plan.measure=false",
    ]
    config = loaded("plan", [*given, *words])
    assert isinstance(config, PlanConfig)
    return as_json(describe_run(config).record)


@pytest.mark.slow
def test_one_process_has_parts_that_add_up(base: Path) -> None:
    record = planned(base)
    parts = dict(record["memory_per_rank_bytes"])
    assert parts.pop("total") == sum(parts.values())
    assert parts["weights"] == 4 * record["parameters"]["total"]
    assert record["processes"]["world_size"] == 1
    assert planned(base, "parallel=ddp")["processes"]["world_size"] == 2


@pytest.mark.slow
def test_shards_hold_less_and_their_sums_less_still(base: Path) -> None:
    whole = planned(base, "parallel=fsdp", "parallel.world_size=4")
    sharded = planned(base, "parallel=fsdp", "parallel.world_size=4", "parallel.accumulate=sharded")
    one = planned(base)["memory_per_rank_bytes"]
    for record in (whole, sharded):
        assert record["memory_per_rank_bytes"]["weights"] < 0.3 * one["weights"]
        assert record["processes"]["shard_size"] == 4
    gradients = [each["memory_per_rank_bytes"]["gradients"] for each in (whole, sharded)]
    assert gradients[1] < gradients[0]


@pytest.mark.slow
def test_more_memory_makes_room_for_more(base: Path) -> None:
    few, many = (
        planned(base, f"plan.device_memory_gb={gb}")["largest_micro_batch"] for gb in (0.6, 0.8)
    )
    assert 0 < few < many
    assert planned(base, "plan.device_memory_gb=0.1")["largest_micro_batch"] == 0
    assert planned(base)["device_memory_bytes"] > 10**9, "this machine's"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (
            ("parallel=fsdp", "parallel.world_size=8", "parallel.shard_size=3"),
            "parallel.shard_size",
            3,
        ),
        (("parallel.world_size=2",), "parallel.world_size", 2),
        (("parallel=fsdp", "optimizer=adafactor"), "optimizer", "adafactor"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    base: Path, words: tuple[str, ...], key: str, value: object
) -> None:
    with rejects(key, value):
        planned(base, *words)


@pytest.mark.slow
def test_a_model_that_cannot_be_cut_is_refused_by_its_parameter(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones((), device="meta"))
    monkeypatch.setattr(run_cost, "planned_model", lambda *_: (model, frozenset()))
    with pytest.raises(InputError, match="parameter scale"):
        planned(base, "parallel=fsdp")


@pytest.mark.slow
def test_a_model_that_does_not_run_without_values_is_guessed(
    base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError

    expected = planned(base)["memory_per_rank_bytes"]
    monkeypatch.setattr(run_cost, "trace_activations", fails)
    found = planned(base)["memory_per_rank_bytes"]
    assert "estimated from the shapes" in caplog.text
    for part in ("weights", "optimizer"):
        assert found[part] == expected[part]


CPU = torch.device("cpu")


@pytest.fixture
def auto(base: Path) -> TrainConfig:
    """A run whose micro-batch is to be found, of 1000 records a step."""
    given = [
        *("task=e2e", "model=gpt2", f"model.path={base}", "task.max_length=16"),
        *("decode.max_new_tokens=8", "privacy.noise_multiplier=1", "train.micro_batch_size=auto"),
        *("train.expected_batch_size=1000",),
    ]
    composed = loaded("train", given)
    assert isinstance(composed, TrainConfig)
    return composed


def resolved(config: TrainConfig, device: torch.device = CPU) -> int:
    architecture = read_architecture(config.model)
    config = fitted_to(config, architecture)
    head = training_head(config, architecture)
    return with_micro_batch_size(config, architecture, head, device).train.most_rows


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the memory beyond a process's own, in bytes."""
    monkeypatch.setattr(rank_memory, "NOISE_BLOCK", 0)

    def set_to(beyond: int) -> None:
        monkeypatch.setattr(run_cost, "usable_memory", lambda _: rank_memory.PROCESS + beyond)

    return set_to


@pytest.mark.slow
def test_auto_is_the_largest_micro_batch_that_the_plan_prints(
    base: Path, room: Callable[[int], None]
) -> None:
    room(2**23)
    words = ("train.micro_batch_size=auto", "train.expected_batch_size=5000")
    record = planned(base, *words)
    assert 1 < record["micro_batch_size"] == record["largest_micro_batch"] < 5000
    fits = planned(base, *words, f"train.micro_batch_size={record['micro_batch_size']}")
    more = planned(base, *words, f"train.micro_batch_size={record['micro_batch_size'] + 1}")
    totals = [each["memory_per_rank_bytes"]["total"] for each in (fits, more)]
    assert totals[0] <= record["device_memory_bytes"] < totals[1]


@pytest.mark.slow
def test_processes_of_one_machine_share_its_memory(
    base: Path, room: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    room(2**23)
    alone = planned(base)["device_memory_bytes"]
    words = ("parallel=ddp", "parallel.world_size=4")
    assert planned(base, *words)["device_memory_bytes"] == alone // 4
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert planned(base, *words)["device_memory_bytes"] == alone // 2


@pytest.mark.slow
def test_auto_follows_memory_and_the_length_of_records(
    auto: TrainConfig, room: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    room(2**23)
    with caplog.at_level(logging.INFO):
        size = resolved(auto)
    assert 1 < size < 1000
    assert f"train.micro_batch_size: {size} records of task.max_length=16" in caplog.text
    shorter = auto.replace(task=auto.task.replace(max_length=9))
    assert size < resolved(shorter) < 2.2 * size
    room(2**24)
    assert resolved(auto) > 2 * size


@pytest.mark.slow
def test_a_step_is_the_most_and_a_number_stays(auto: TrainConfig) -> None:
    assert resolved(with_train(auto, expected_batch_size=7)) == 7
    assert resolved(with_train(auto, micro_batch_size=5)) == 5
    units = with_privacy(auto, unit="name", records_per_unit=4)
    assert resolved(with_train(units, expected_batch_size=7)) == 28


@pytest.mark.slow
def test_tokens_that_fit_leave_the_records_to_the_step(
    auto: TrainConfig, room: Callable[[int], None]
) -> None:
    room(2**23)
    size = resolved(auto)
    assert resolved(with_train(auto, micro_batch_tokens=16)) == 1000
    assert resolved(with_train(auto, micro_batch_tokens=10**9)) == size


@pytest.mark.slow
def test_what_does_not_fit_is_refused_with_the_way_out(
    auto: TrainConfig, room: Callable[[int], None]
) -> None:
    room(0)
    with rejects("train.micro_batch_size", "auto"):
        resolved(auto)
    room(2**23)
    size = resolved(auto)
    large = with_privacy(auto, unit="name", records_per_unit=size + 1)
    with rejects("train.micro_batch_size", "auto") as faults:
        resolved(large)
    assert f"least {size + 1} " in faults[0].message and f"for {size} " in faults[0].message
    assert resolved(with_privacy(auto, unit="name", records_per_unit=size)) == size


@pytest.mark.slow
def test_memory_that_nobody_knows_is_refused(
    auto: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rejects("train.micro_batch_size", "auto") as faults:
        resolved(auto, torch.device("mps"))
    assert faults[0].hint == "train.micro_batch_size=32"
    monkeypatch.setattr(run_cost, "usable_memory", lambda _: None)
    with rejects("train.micro_batch_size", "auto"):
        resolved(auto)
