"""A search is drawn of the secret stream and kept as it was drawn."""

from pathlib import Path

import pytest

from dpft.commands.tune import Search, Trial, draw_trials
from dpft.errors import StateError
from dpft.privacy.accounting.calibration import Calibration
from dpft.run_folder import TRIALS, TUNING
from dpft.strict_model import read_model
from tests.config.test_tune import command

SEARCH = Search(
    calibration=Calibration(accountant="rdp", epsilon=2.9, grid="orders"),
    delta=1e-5,
    key="00",
    fingerprint="11",
    trials=(Trial(setting={"train.learning_rate": 0.1}, noise_multiplier=1.5),),
)


@pytest.mark.parametrize("content", ["", '{"schema_version": 2}'])
def test_a_damaged_search_is_never_drawn_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / TUNING).mkdir(parents=True)
    (tmp_path / TRIALS).write_text(content)
    with pytest.raises(StateError, match="trials.json"):
        read_model(tmp_path / TRIALS, Search)


@pytest.mark.slow
def test_only_a_test_seed_draws_a_search_twice() -> None:
    seeded = command("privacy.noise_seed=5")
    assert (
        draw_trials(seeded) == draw_trials(seeded) != draw_trials(command("privacy.noise_seed=6"))
    )
    secret = [draw_trials(command()) for _ in range(6)]
    assert any(trials != secret[0] for trials in secret)
    values = seeded.tuning.values()
    assert all(one[key] in values[key] for trials in secret for one in trials for key in values)
