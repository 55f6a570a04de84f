"""What ``dpft tune`` may draw, and what would void its bound."""

from typing import Any

import pytest

from dpft.config.hydra_compose import compose
from dpft.config.load import load
from dpft.config.tune import SearchSpace, TuneCommand, with_setting
from dpft.errors import InputError
from tests.slowness import slow


def command(*given: str, promise: str = "privacy.eps=3") -> TuneCommand:
    composed = compose("tune", [promise, *given], TuneCommand).values
    return load(composed, TuneCommand)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("task.data_dir=data", "private until a noisy score is accounted inside each trial"),
        ("privacy.show_diagnostics=true", "tune needs privacy.show_diagnostics=false"),
        *slow(
            ("eval.split=train", "private until a noisy score is accounted inside each trial"),
            ("eval.enabled=false", "tune needs eval.enabled=true"),
            ("eval.every_steps=10", "tune needs eval.every_steps=null"),
            ("privacy.resume_overspend=true", "tune needs privacy.resume_overspend=false"),
            ("tune.gamma=1", "tune.gamma must be above 0 and below 1"),
            (
                "+tuning.space.privacy.delta=[0.1]",
                "got privacy.delta: it is the same in every trial",
            ),
            (
                "+tuning.space.model.tokenizer=[a,b]",
                "may not hold model.tokenizer: each tokenizer has",
            ),
            (
                "+tuning.space.task.max_length=[9]",
                "got task.max_length: it is the same in every trial",
            ),
            ("+tuning.space.train.seed=3", "tuning.space.train.seed must be a list"),
            ("tuning.space.train.learning_rate=[]", "must be a list of at least one value"),
            ("~tuning.space.train", "at least one key"),
            (
                f"+tuning.space.train.seed=[{','.join(map(str, range(2000)))}]",
                "at most 10000 settings",
            ),
        ),
    ],
)
def test_what_would_void_the_bound_is_refused(given: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        command(given)


@pytest.mark.slow
@pytest.mark.parametrize("promise", ["privacy.noise_multiplier=1", "privacy=none"])
def test_a_search_without_a_total_to_calibrate_to_is_refused(promise: str) -> None:
    with pytest.raises(InputError, match=r"tune needs privacy\.eps"):
        command(promise=promise)


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
    ("setting", "sentence"),
    [
        ({"method.rank": 4}, "unknown configuration key method.rank"),
        ({"train.learning_rate": "high"}, "train.learning_rate must be float"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(
    default: TuneCommand, setting: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        with_setting(default.settings(), setting)


@pytest.mark.slow
def test_epochs_that_given_steps_replace_are_not_drawn() -> None:
    with pytest.raises(InputError, match="which train.steps=5 replaces"):
        with_setting(command("train.steps=5").settings(), {"train.epochs": 3})


def test_an_entry_that_is_no_list_is_refused() -> None:
    with pytest.raises(InputError, match="must be a list"):
        SearchSpace(name="mine", space={"train": {"epochs": 3}}).settings()


@pytest.mark.slow
def test_a_text_of_a_saved_search_is_not_resolved_for_its_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", "hidden")
    config = command().settings()
    config = config.replace(model=config.model.replace(path="${oc.env:SECRET}"))
    assert with_setting(config, {}).model.path == "${oc.env:SECRET}"
