from typing import Any

import pytest

from dpft.privacy.accounting.calibration import calibrate_noise_multiplier
from dpft.privacy.accounting.early import Target
from dpft.records.ledger import Calibration
from dpft.runs.run_plan import early_calibration, plan_run, target_of, with_batch_size
from tests.config.test_conf import loaded

FOUND = Calibration(accountant="rdp", epsilon=2.9, grid="orders")
SMALL = ("task=e2e", "task.source=embedded", "model=tiny", "privacy.eps=3")
CUSTOM = ("task=custom", 'task.text="{note}"', "model=tiny", "privacy.eps=8")


def never() -> int:
    pytest.fail("the rows were counted")


@pytest.mark.parametrize(
    "words",
    [
        ("experiment=demo",),
        (*SMALL, "train.steps=7", "privacy.delta=1e-6", "privacy.accountant=pld"),
        (*SMALL, "privacy.num_examples=10000"),
        (*SMALL, "method=two_phase", "train.epochs=2"),
        (*CUSTOM, "privacy.num_examples=3000"),
    ],
    ids=["demo", "steps", "number", "phases", "own data"],
)
def test_what_is_begun_with_is_what_the_plan_asks_for(words: tuple[str, ...]) -> None:
    config, asked = loaded("train", list(words)), []

    def calibrate(**target: Any) -> tuple[float, Calibration]:
        asked.append(Target(**target))
        return 1.0, FOUND

    plan_run(with_batch_size(config, never), never, calibrate)
    assert asked == [target_of(config)]


@pytest.mark.parametrize(
    "words",
    [
        (*CUSTOM, "task.data_dir=notes.csv"),
        (*SMALL, "train.expected_batch_size=100000"),
        (*SMALL, "train.transfer_sample_rate_from=sst2"),
    ],
    ids=["not counted", "refused later", "another task's rate"],
)
def test_nothing_is_begun_with_where_it_is_not_known(words: tuple[str, ...]) -> None:
    assert target_of(loaded("train", list(words))) is None


@pytest.mark.parametrize(
    "words",
    [("privacy=none",), ("privacy.noise_multiplier=1",)],
)
def test_a_run_without_a_target_starts_no_accountant(words: tuple[str, ...]) -> None:
    with early_calibration(loaded("train", [*SMALL[:-1], *words])) as calibrate:
        assert calibrate is calibrate_noise_multiplier
