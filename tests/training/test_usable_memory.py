"""A share of what a device has, whatever is free of it."""

from types import SimpleNamespace

import pytest
import torch

from dpft.training import usable_memory as module
from dpft.training.usable_memory import SHARE, usable_memory


def test_it_is_a_share_of_all_that_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "machine_memory", lambda: 1000)
    assert usable_memory(torch.device("cpu")) == SHARE * 1000


def test_it_is_a_share_of_all_that_an_accelerator_has(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(total_memory=2000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert usable_memory(torch.device("cuda")) == SHARE * 2000
