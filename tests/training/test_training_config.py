import math

import pytest
import torch

from dpft.errors import InputError
from dpft.training.training_config import DeviceConfig, TrainingConfig


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
    with pytest.raises(
        InputError,
        match="at most the 7 values of name, got 8; lower it, or set it to null, which takes 1[.]",
    ):
        TrainingConfig(expected_batch_size=8).planned_steps(7, of="values of name")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"expected_batch_size": 0}, "expected_batch_size"),
        ({"micro_batch_size": 0}, "micro_batch_size"),
        ({"micro_batch_tokens": 0}, "micro_batch_tokens"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of"),
        ({"keep": 0}, "keep"),
        ({"steps": 0}, "steps"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"num_threads": 0}, "num_threads"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": math.nan}, "epochs"),
        ({"learning_rate": -1e-3}, "learning_rate"),
        ({"learning_rate": math.inf}, "learning_rate"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        (
            {"device": "tpu"},
            "device",
        ),
    ],
)
def test_a_bad_setting_is_refused_by_name(given: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TrainingConfig(**given)


def test_an_absent_accelerator_is_refused_with_the_way_out(monkeypatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(InputError, match="train.device=cpu"):
        DeviceConfig(device="cuda").prepare()
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
