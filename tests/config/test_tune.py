"""What ``dpft tune`` may draw, and what would void its bound."""

from typing import Any

import pytest

from dpft.config.hydra_compose import compose
from dpft.config.load import load
from dpft.config.tune import TuneCommand, with_setting
from tests.rejections import rejects
from tests.slowness import slow


def command(*given: str, promise: str = "privacy.eps=3") -> TuneCommand:
    composed = compose("tune", [promise, *given], TuneCommand).values
    return load(composed, TuneCommand)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("task.data_dir=data", "eval.split"),
        ("privacy.show_diagnostics=true", "privacy.show_diagnostics"),
        *slow(
            ("eval.split=train", "eval.split"),
            ("eval.enabled=false", "eval.enabled"),
            ("eval.every_steps=10", "eval.every_steps"),
            ("privacy.resume_overspend=true", "privacy.resume_overspend"),
            ("privacy=none", "privacy.eps"),
            ("tune.gamma=1", "tune.gamma"),
            ("+tuning.space.privacy.delta=[0.1]", "tuning.space.privacy.delta"),
            ("+tuning.space.model.tokenizer=[a,b]", "tuning.space.model.tokenizer"),
            ("+tuning.space.train.seed=3", "tuning.space.train.seed"),
            ("tuning.space.train.learning_rate=[]", "tuning.space.train.learning_rate"),
            ("~tuning.space.train", "tuning.space"),
            (f"+tuning.space.train.seed=[{','.join(map(str, range(2000)))}]", "tuning.space"),
        ),
    ],
)
def test_settings_that_would_void_the_bound_are_rejected(given: str, key: str) -> None:
    with rejects(key):
        command(given, promise="train.seed=0" if given == "privacy=none" else "privacy.eps=3")


@pytest.mark.slow
def test_a_split_that_the_user_calls_public_is_taken() -> None:
    assert command("task.data_dir=data", "eval.split_is_public=true").eval.split == "validation"


@pytest.mark.slow
def test_the_space_is_set_as_any_key() -> None:
    space = command("tuning.space.train.learning_rate=[1,2,3]").tuning
    assert space.values()["train.learning_rate"] == [1, 2, 3]
    assert len(space.settings()) == 3 * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method", "sizes"),
    # Li et al. 2022, Tables 5 and 6: values of each row that is searched.
    [
        ("li2022_table5", "full", {"expected_batch_size": 2, "learning_rate": 5, "epochs": 3}),
        (
            "li2022_table6_lora",
            "lora",
            {"expected_batch_size": 2, "learning_rate": 5, "epochs": 4, "rank": 4},
        ),
        (
            "li2022_table6_rgp",
            "rgp",
            {
                "max_grad_norm": 3,
                "expected_batch_size": 2,
                "learning_rate": 5,
                "epochs": 4,
                "rank": 4,
            },
        ),
    ],
)
def test_the_published_spaces_are_those_of_the_tables_and_fit_their_method(
    name: str, method: str, sizes: dict[str, int]
) -> None:
    tune = command(f"tuning={name}", f"method={method}")
    found = {key.rpartition(".")[2]: len(values) for key, values in tune.tuning.values().items()}
    assert found == sizes | {"name": 2}
    for setting in (tune.tuning.settings()[0], tune.tuning.settings()[-1]):
        with_setting(tune.settings(), setting)


@pytest.fixture(scope="module")
def default() -> TuneCommand:
    """What a search is without any word; frozen."""
    return command()


@pytest.mark.slow
def test_a_setting_changes_its_keys_and_nothing_else(default: TuneCommand) -> None:
    config = default.settings()
    changed = with_setting(config, {"train.learning_rate": 0.5, "scheduler.name": "linear"})
    assert (changed.train.learning_rate, changed.scheduler.name) == (0.5, "linear")
    same = {"train.learning_rate": config.train.learning_rate, "scheduler.name": "constant"}
    assert with_setting(changed, same) == config


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ({"method.rank": 4}, "method.rank"),
        ({"train.learning_rate": "high"}, "train.learning_rate"),
    ],
)
def test_a_setting_that_does_not_fit_is_rejected(
    default: TuneCommand, setting: dict[str, Any], key: str
) -> None:
    with rejects(key):
        with_setting(default.settings(), setting)


@pytest.mark.slow
def test_epochs_that_given_steps_replace_are_not_drawn() -> None:
    with rejects("tuning.space.train.epochs", 3):
        with_setting(command("train.steps=5").settings(), {"train.epochs": 3})


@pytest.mark.slow
def test_a_text_of_a_saved_search_is_not_resolved_for_its_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "hidden")
    config = command().settings()
    config = config.replace(model=config.model.replace(path="${oc.env:SECRET}"))
    assert with_setting(config, {}).model.path == "${oc.env:SECRET}"
