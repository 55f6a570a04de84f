"""Limits that a record or a unit does not fit into."""

from pathlib import Path

import pytest

from dpft.commands.run_cost import check_micro_batch_tokens
from dpft.config.schema import TrainConfig
from tests.commands.configs import settings, with_privacy, with_train
from tests.models import small
from tests.rejections import rejects


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    base = Path(small.save("gpt2", tmp_path_factory.mktemp("auto") / "base"))
    given = [
        *("task=e2e", "model=gpt2", f"model.path={base}", "task.max_length=16"),
        *("decode.max_new_tokens=8", "privacy.noise_multiplier=1", "train.micro_batch_size=auto"),
        "train.expected_batch_size=1000",
    ]
    return settings(*given)


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "least"), [("record", 16), ("name", 64)])
def test_tokens_below_what_a_record_or_a_unit_may_take_are_refused(
    config: TrainConfig, unit: str, least: int
) -> None:
    if unit != "record":
        config = with_privacy(config, unit=unit, records_per_unit=4)
    check_micro_batch_tokens(config)
    check_micro_batch_tokens(with_train(config, micro_batch_tokens=least))
    with rejects("train.micro_batch_tokens", least - 1) as faults:
        check_micro_batch_tokens(with_train(config, micro_batch_tokens=least - 1))
    assert faults[0].hint == f"train.micro_batch_tokens={least}"


@pytest.mark.slow
def test_tokens_that_bound_nothing_are_warned_of(
    config: TrainConfig, caplog: pytest.LogCaptureFixture
) -> None:
    check_micro_batch_tokens(with_train(config, micro_batch_tokens=63, micro_batch_size=4))
    assert not caplog.records
    check_micro_batch_tokens(with_train(config, micro_batch_tokens=64, micro_batch_size=4))
    assert "train.micro_batch_tokens=64" in caplog.text
