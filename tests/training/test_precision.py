import logging

import pytest
import torch

from dpft.training.training_config import TrainingConfig, autocast, warn_if_slow
from tests.slowness import slow, slow_but
from tests.training.toy import (
    plan,
    privacy,
    session,
    spent,
    tiny_model,
    train_ordinarily,
    train_privately,
    training_set,
)

CPU = torch.device("cpu")


def weights_after(folder, precision, private=True, **settings):
    model = tiny_model()
    own = session(folder, model, precision=precision, **settings)
    batches = training_set()
    object.__setattr__(batches, "precision", precision)
    object.__setattr__(own, "training_set", batches)
    if private:
        train_privately(own, plan(steps=2), privacy(), epsilon_after=spent)
    else:
        train_ordinarily(own, 2)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("private", slow_but([False], [True, False]))
@pytest.mark.parametrize("precision", ["bf16", *slow(("fp16",))])
def test_half_precision_training_follows_float32(tmp_path, precision, private):
    start = torch.cat([p.detach().flatten() for p in tiny_model().parameters()])
    exact = weights_after(tmp_path / "fp32", "fp32", private)
    half = weights_after(tmp_path / precision, precision, private)
    moved, apart = (exact - start).norm(), (exact - half).norm()
    assert 0 < apart < 0.2 * moved


def test_autocast_is_what_the_precision_says():
    for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        with autocast(precision, CPU):
            assert torch.nn.functional.linear(torch.ones(1, 2), torch.ones(3, 2)).dtype == dtype
    with autocast("fp32", CPU):
        assert not torch.is_autocast_enabled("cpu")


def test_float16_on_a_cpu_warns(caplog):
    caplog.set_level(logging.WARNING, logger="dpft")
    for precision in ("fp32", "bf16", "fp16"):
        warn_if_slow(precision, CPU)
    assert [record.message.split(" is some")[0] for record in caplog.records] == [
        "train.precision=fp16"
    ]


def test_the_loss_scale_is_for_float16_alone():
    assert TrainingConfig(precision="bf16").backward_scale == 1
    assert TrainingConfig(precision="fp16", loss_scale=8).backward_scale == 8


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"precision": "fp8"}, "precision"),
        ({"loss_scale": 0.0}, "loss_scale"),
        ({"loss_scale": float("inf")}, "loss_scale"),
        ({"adaptive_loss_scale": True}, "train.adaptive_loss_scale"),
    ],
)
def test_bad_precision_is_rejected(options, key):
    with pytest.raises(ValueError, match=key):
        TrainingConfig(**options)
