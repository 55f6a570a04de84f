"""What a run that goes on is compared by: its plan, its environment, its promises."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from dpft.privacy.plan import read_plan, write_plan
from dpft.records.ledger import Calibration
from dpft.training import checkpoint
from dpft.training.checkpoint import environment, promises
from tests.training.toy import plan, privacy, training_set

CALIBRATION = Calibration(accountant="rdp", epsilon=2.99, grid="all orders")


@pytest.mark.parametrize("calibration", [None, CALIBRATION])
def test_a_plan_that_went_through_json_is_the_same_plan(calibration: Calibration | None) -> None:
    planned = replace(plan(), calibration=calibration)
    assert read_plan(json.loads(json.dumps(write_plan(planned)))) == planned


def surroundings(**changed: Any) -> dict[str, Any]:
    options = {"engine": "two_pass", "memory_mb": 64, "settings": ("adamw",), **changed}
    return environment(training_set(options.pop("size", 4)), **options)


def test_the_same_environment_is_the_same_and_ready_for_json() -> None:
    assert json.loads(json.dumps(surroundings())) == surroundings()


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"engine": "book_keeping"}, "engine"),
        ({"memory_mb": 65}, "memory_mb"),
        ({"settings": ("sgd",)}, "settings"),
    ],
)
def test_what_a_caller_changes_of_the_environment_is_seen(
    changed: dict[str, Any], key: str
) -> None:
    before, after = surroundings(), surroundings(**changed)
    assert {name for name in before if before[name] != after[name]} == {key}


@pytest.mark.parametrize(
    ("owner", "name", "key"),
    [
        (torch, "get_num_threads", "threads"),
        (torch.backends.cpu, "get_cpu_capability", "cpu"),
        (checkpoint, "version", "packages"),
    ],
)
def test_what_the_machine_changes_of_the_environment_is_seen(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, key: str
) -> None:
    before = surroundings()
    monkeypatch.setattr(owner, name, lambda *_: "another")
    after = surroundings()
    assert {each for each in before if before[each] != after[each]} == {key}


def test_precision_and_micro_batches_are_of_the_environment() -> None:
    whole = training_set()
    first = environment(whole, engine="loop", memory_mb=0)
    for field, value in (
        ("precision", "bf16"),
        ("micro_batch_size", 3),
        ("micro_batch_tokens", 64),
        ("compile", True),
    ):
        other = environment(replace(whole, **{field: value}), engine="loop", memory_mb=0)
        assert {each for each in first if first[each] != other[each]} == {field}
    padded = replace(whole, layout=replace(whole.layout, pad_to_multiple_of=8))
    other = environment(padded, engine="loop", memory_mb=0)
    assert {each for each in first if first[each] != other[each]} == {"padded_to"}


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("noise_seed", 1, "reproducible"),
        ("self_check", False, "self_check"),
        ("show_diagnostics", True, "show_diagnostics"),
    ],
)
def test_each_promise_rests_on_its_own_key(key: str, value: Any, name: str) -> None:
    kept = promises(privacy(seed=None))
    changed = promises(replace(privacy(seed=None), **{key: value}))
    assert set(kept) == set(checkpoint.PROMISES) and checkpoint.PROMISES[name] == f"privacy.{key}"
    assert {each for each in kept if kept[each] != changed[each]} == {name}
