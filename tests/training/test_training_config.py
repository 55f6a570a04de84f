import math
from typing import Any

import pytest
import torch

from dpft.training.training_config import DeviceConfig, TrainingConfig
from tests.rejections import rejects


@pytest.mark.parametrize(
    ("epochs", "size", "batch", "steps"),
    [(10, 42061, 1024, 410), (0.1, 100, 50, 1), (1, 100, 30, 3)],
)
def test_steps_are_whole_expected_batches_and_at_least_one(epochs, size, batch, steps) -> None:
    config = TrainingConfig(epochs=epochs, expected_batch_size=batch)
    assert config.planned_steps(size) == steps


@pytest.mark.parametrize(
    ("size", "batch"), [(42061, 1024), (4096, 1024), (4095, 1023), (365, 91), (3, 1)]
)
def test_without_a_batch_size_few_examples_make_four_batches(size: int, batch: int) -> None:
    config = TrainingConfig(epochs=10)
    assert config.batch_size(size) == batch
    assert config.planned_steps(size) == max(1, 10 * size // batch)


def test_steps_replace_epochs() -> None:
    assert TrainingConfig(epochs=10, steps=3, expected_batch_size=8).planned_steps(80) == 3


def test_a_batch_may_be_all_of_the_data_but_not_more() -> None:
    assert TrainingConfig(epochs=2, expected_batch_size=8).planned_steps(8) == 2
    with rejects("train.expected_batch_size", 8) as faults:
        TrainingConfig(expected_batch_size=8).planned_steps(7, of="values of name")
    assert faults[0].hint == "train.expected_batch_size=1"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expected_batch_size", 0),
        ("micro_batch_size", 0),
        ("epochs", math.nan),
        ("learning_rate", -1e-3),
        ("seed", 2**63),
        ("device", "tpu"),
    ],
)
def test_a_bad_setting_is_rejected_by_its_key(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        TrainingConfig(**{key: value})


def test_an_absent_accelerator_is_refused_with_the_way_out(monkeypatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with rejects("train.device", "cuda") as faults:
        DeviceConfig(device="cuda").prepare()
    assert faults[0].hint == "train.device=cpu"
    assert DeviceConfig().prepare() == torch.device("cpu")


def test_the_number_of_threads_is_the_users(monkeypatch) -> None:
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    DeviceConfig(device="cpu", num_threads=3).prepare()
    assert set_to == [3]


@pytest.mark.parametrize(
    ("device", "precision", "given", "bucket"),
    [
        ("cpu", "bf16", None, 1), ("cuda", "fp32", None, 8), ("cuda", "bf16", None, 16),
        ("cuda", "fp16", None, 16), ("cpu", "fp32", 8, 8), ("cuda", "bf16", 1, 1),
    ],
)  # fmt: skip
def test_an_accelerator_has_lengths_that_its_matrix_units_take(device, precision, given, bucket):
    config = TrainingConfig(precision=precision, pad_to_multiple_of=given)
    assert config.bucket(torch.device(device)) == bucket
