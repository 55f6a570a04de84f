"""The time that is foretold, and limits that a record or a unit does not fit into."""

import io
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageClassification, ConvNextConfig, ViTConfig

from dpft.config.schema import TrainConfig
from dpft.data.batches import TextLayout
from dpft.data.encoding import TokenRows
from dpft.data.images import ImageLayout
from dpft.data.pixels import ImageForm
from dpft.data.tokenization import TokenizedExample
from dpft.errors import InputError
from dpft.estimates import step_time as estimate
from dpft.models.architecture import read_architecture
from dpft.records.plans import EstimatedTime
from dpft.runs import run_cost as module
from dpft.runs.run_cost import check_micro_batch_tokens, foretell, record_positions
from dpft.runs.run_plan import plan_run
from tests.models import small
from tests.runs.configs import settings, with_privacy, with_train


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    base = Path(small.save("gpt2", tmp_path_factory.mktemp("auto") / "base"))
    given = [
        *("task=e2e", "model=gpt2", f"model.path={base}", "task.max_length=16"),
        *("decode.max_new_tokens=8", "privacy.noise_multiplier=1", "train.micro_batch_size=auto"),
        "train.expected_batch_size=1000",
    ]
    return settings(*given)


@pytest.mark.parametrize(("unit", "least"), [("record", 16), ("name", 64)])
def test_tokens_below_what_a_record_or_a_unit_may_take_are_refused(
    config: TrainConfig, unit: str, least: int
) -> None:
    if unit != "record":
        config = with_privacy(config, unit=unit, records_per_unit=4)
    check_micro_batch_tokens(config)
    check_micro_batch_tokens(with_train(config, micro_batch_tokens=least))
    with pytest.raises(InputError) as refusal:
        check_micro_batch_tokens(with_train(config, micro_batch_tokens=least - 1))
    said = str(refusal.value)
    assert f"train.micro_batch_tokens must be at least {least}, the tokens of a " in said
    assert f"got {least - 1}; raise it, lower task.max_length, or set it to null." in said
    assert ("privacy.records_per_unit" in said) == (unit != "record")


def test_tokens_that_bound_nothing_are_warned_of(
    config: TrainConfig, caplog: pytest.LogCaptureFixture
) -> None:
    check_micro_batch_tokens(with_train(config, micro_batch_tokens=63, micro_batch_size=4))
    assert not caplog.records
    check_micro_batch_tokens(with_train(config, micro_batch_tokens=64, micro_batch_size=4))
    assert "changes nothing" in caplog.text and "raise train.micro_batch_size" in caplog.text


class Stream(io.StringIO):
    """A stream that is a terminal, or is not."""

    terminal = False

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(("terminal", "kept"), [(False, False), (True, False), (True, True)])
def test_the_time_that_is_foretold_is_of_own_lengths_on_their_owners_terminal_alone(
    terminal: bool,
    kept: bool,
    config: TrainConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    stderr = Stream()
    stderr.terminal = terminal
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=stderr))
    taken: list[int] = []
    made = module.estimate

    def estimated(*args: Any, **values: Any) -> EstimatedTime:
        taken.append(values["typical_length"])
        return replace(made(*args, **values), seconds_total=400.0)

    monkeypatch.setattr(module, "estimate", estimated)
    task = replace(config.task, typical_length=None)
    run = with_train(
        replace(config, task=task), micro_batch_size=8, expected_batch_size=8, steps=40
    )
    plan = plan_run(run, lambda: 100)
    rows = TokenRows([TokenizedExample(input_ids=[1] * 5, labels=[1] * 5)] * 3)
    handlers = [logging.StreamHandler(stderr), *([caplog.handler] if kept else [])]
    with caplog.at_level("INFO"), monkeypatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", handlers)  # a program's own log beside it
        seconds = foretell(run, plan, read_architecture(run.model), rows, taken=20)
    assert seconds == 200.0, "half of the steps are left"
    shown = terminal and not kept
    assert taken == [5 if shown else 12]
    length = "" if shown else ", records of 12 tokens"
    assert stderr.getvalue().splitlines()[-1] == (
        f"training takes about 3 minutes by an estimate (20 steps{length}); epsilon is the upper"
        " bound by prv"
    )


def on_meta(config: object) -> torch.nn.Module:
    with torch.device("meta"):
        return AutoModelForImageClassification.from_config(config)


def image_layout(size: int) -> ImageLayout:
    form = ImageForm(channels=3, height=size, width=size)
    return ImageLayout(form=form, mean=(0.5,) * 3, std=(0.5,) * 3, outputs=2)


def test_a_vit_works_at_each_patch_and_its_class_token() -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = on_meta(ViTConfig(**sizes, intermediate_size=8, image_size=16, patch_size=4))
    found = record_positions(model, image_layout(16))
    assert found is not None
    assert found["vit.embeddings.patch_embeddings.projection"] == 16
    assert found["vit.layers.0.mlp.fc1"] == 17 and found["classifier"] == 1


def test_convolutions_work_at_fewer_places_in_later_stages() -> None:
    config = ConvNextConfig(hidden_sizes=[4, 8, 8, 8], depths=[1, 1, 1, 1], patch_size=4)
    found = record_positions(on_meta(config), image_layout(64))
    assert found is not None
    places = [count for name, count in found.items() if name.endswith("pwconv1")]
    assert places == [256, 64, 16, 4]


def test_a_text_is_counted_by_its_tokens() -> None:
    assert record_positions(torch.nn.Linear(2, 2), TextLayout()) is None
