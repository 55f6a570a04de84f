from operator import attrgetter

import pytest
import torch

from dpft import devices
from dpft.training.training_config import DeviceConfig
from tests.rejections import rejects

XPU = torch.device("xpu")


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch):
    """Make torch say that the machine has an accelerator of a kind, or none."""

    def make(kind: str | None) -> None:
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: kind is not None)
        found = None if kind is None else torch.device(kind)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: found)

    return make


@pytest.mark.parametrize("word", ["auto", "accelerator", "xpu"])
def test_an_accelerator_is_taken_by_whatever_word_names_it(there, word: str) -> None:
    there("xpu")
    assert devices.chosen_device(word) == XPU
    assert devices.chosen_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(("kind", "word"), [("xpu", "cuda"), (None, "accelerator")])
def test_a_device_of_another_kind_is_none(there, kind: str | None, word: str) -> None:
    there(kind)
    assert devices.chosen_device(word) is None


def test_what_there_is_in_its_place_is_said(there) -> None:
    there("xpu")
    with rejects("train.device", "cuda") as faults:
        DeviceConfig(device="cuda").prepare()
    assert faults[0].hint == "train.device=xpu"


def test_processes_talk_by_what_torch_has_for_a_kind() -> None:
    assert devices.group_backends(None) == "gloo"
    assert devices.group_backends(torch.device("cuda")) == "cpu:gloo,cuda:nccl"
    assert devices.group_backends(XPU) == "cpu:gloo,xpu:xccl"


def test_products_are_in_whole_precision() -> None:
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    matmul.allow_bf16_reduced_precision_reduction = True
    devices.only_whole_precision()
    assert not (matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)
    assert not matmul.allow_bf16_reduced_precision_reduction
    assert torch.get_float32_matmul_precision() == "highest"
    parts = [attrgetter(part)(torch) for part in devices.PARTS_WITH_PRECISION]
    found = [part.fp32_precision for part in parts if hasattr(part, "fp32_precision")]
    assert len(found) >= len(parts) - 1 and {*found} == {"ieee"}


def test_random_states_are_put_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with devices.random_states_kept([torch.device("cpu")]):
        torch.rand(7)
    assert torch.equal(torch.rand(3), expected)


def test_noise_is_drawn_on_the_cpu_for_a_device_without_float64(caplog) -> None:
    from dpft.privacy.randomness import make_randomness

    randomness = make_randomness(torch.device("mps"), 1)
    assert randomness.noise.device == torch.device("cpu")
    assert "mps does not support float64" in caplog.text


@pytest.fixture
def any_order():
    with devices.order_of_addition_kept():
        yield


@pytest.mark.parametrize(("kind", "asked"), [("xpu", True), (None, False)])
def test_an_accelerator_is_asked_to_add_in_one_order(
    there, any_order, monkeypatch, kind: str | None, asked: bool
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    there(kind)
    DeviceConfig().prepare()
    assert torch.are_deterministic_algorithms_enabled() is asked
    assert torch.is_deterministic_algorithms_warn_only_enabled() is asked
