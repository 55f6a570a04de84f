"""What ``run=`` takes from the run it names, and which words do not go together."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from dpft.cli.commands import subcommand
from dpft.commands.overrides import (
    checked_overrides,
    inherit,
    with_model_of_path,
    without_recipes_promise,
)
from dpft.config.hydra_compose import Words
from dpft.config.load import dump
from dpft.config.schema import EvaluateConfig, TrainCommand
from dpft.privacy.privacy_config import NoPrivacy
from tests.config.test_conf import loaded
from tests.rejections import rejects
from tests.slowness import slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a finished run without privacy, on task e2e from ``mine``."""
    folder = tmp_path_factory.mktemp("overrides") / "run"
    (folder / "model").mkdir(parents=True)
    given = ["task=e2e", "privacy=none", "task.data_dir=mine", "task.max_length=50"]
    command = loaded("train", given)
    assert isinstance(command, TrainCommand)
    dump(command.settings(), folder / "config.yaml")
    return str(folder)


@pytest.mark.slow
def test_a_runs_sections_lead_and_overrides_lead_them(run: str) -> None:
    words = ["task=e2e", f"run={run}", "task.max_length=70", "train.device=cpu"]
    composed = loaded("eval", words)
    assert isinstance(composed, EvaluateConfig) and composed.task.data_dir is None
    given = Words(job=tuple(words), typed=())
    config = inherit(composed, run, ("task", "model"), given)
    assert (config.task.data_dir, config.task.max_length) == ("mine", 70)
    assert (config.run, config.train) == (run, composed.train)
    saved = yaml.safe_load((Path(run) / "config.yaml").read_text())
    assert config.model.name == saved["model"]["name"]


LABELS = ["task=custom", "task.data_dir=rows.csv", 'task.text="{text}"', "task.label=label"]


@pytest.mark.parametrize("model", [[], ["model=minilm"], ["model.path=DIR"], ["model=mine"]])
def test_labels_of_ones_own_train_the_head_of_a_pre_trained_model_alone(model: list[str]) -> None:
    assert checked_overrides([*LABELS, *model])[0] == "method=linear_probe"


@pytest.mark.parametrize(
    "word",
    [
        "method=full",
        "experiment=mine",
        "resume=outputs/a",
        "task.objective=infilling",
        "task.label=null",
        'task.prompt="{label}: "',
        "task=e2e",
        "model.init=random",
        "model=tiny",
        "model=t5-tiny",
    ],
)
def test_any_other_run_keeps_the_method_that_it_has(word: str) -> None:
    assert not {"method=linear_probe"} & set(checked_overrides([*LABELS, word]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", *slow(("plan",), ("tune",))])
def test_each_command_that_trains_composes_the_default_for_labels(name: str) -> None:
    words = [*LABELS, "task.labels=[a,b]", "model=minilm", "privacy.eps=8"]
    words += ["eval.split_is_public=true"]
    expand = subcommand(name).expand
    assert loaded(name, expand([*words])).method.name == "linear_probe"
    assert loaded(name, expand([*words, "method=lora"])).method.name == "lora"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "published"),
    [
        ("eval.split=train", False),
        *slow(
            ("eval.limit=3", True), ("eval.held_out=null", False), ("task.data_dir=others", False)
        ),
    ],
)
def test_what_was_said_of_the_scores_of_a_split_is_not_said_of_anothers(
    tmp_path: Path, word: str, published: bool
) -> None:
    (tmp_path / "model").mkdir()
    command = loaded("train", ["task=e2e", "privacy=none", "eval.publish_private_scores=true"])
    dump(command.settings(), tmp_path / "config.yaml")
    for more, expected in (((), published), (("eval.publish_private_scores=true",), True)):
        words = ["task=e2e", f"run={tmp_path}", word, *more]
        config = inherit(
            loaded("eval", words),
            str(tmp_path),
            ("task", "eval"),
            Words(job=tuple(words), typed=()),
        )
        assert config.eval.publish_private_scores is expected


def test_epochs_and_steps_are_refused_together_but_not_a_null() -> None:
    with rejects("train.epochs"):
        checked_overrides(["train.epochs=1", "++train.steps=2"])
    words = ["train.epochs=1", "train.steps=null"]
    assert checked_overrides(words) == words


def test_the_users_epochs_win_over_the_steps_of_a_recipe() -> None:
    words = ["experiment=demo", "train.epochs=1"]
    assert checked_overrides(words) == [*words, "train.steps=null"]
    assert checked_overrides(["experiment=demo"]) == ["experiment=demo"]


def test_a_promise_without_privacy_is_refused_but_a_size_is_none() -> None:
    with rejects("privacy.eps", "3"):
        checked_overrides(["privacy=none", "privacy.eps=3"])
    words = ["privacy=none", "privacy.num_examples=3", "privacy.max_grad_norm=0.1"]
    assert checked_overrides(words) == words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "given", "norm", "clipping"),
    [
        ("li2022_e2e", [], None, "flat"),
        *slow(
            ("li2022_e2e", ["privacy.max_grad_norm=null"], None, "flat"),
            ("li2022_e2e", ["privacy.max_grad_norm=0.3"], 0.3, "flat"),
            ("bu2022_full_sst2", ["privacy.max_grad_norm=0.3"], 0.3, "flat"),
        ),
    ],
)
def test_a_recipes_clipping_norm_is_no_norm_without_privacy_but_the_users_is(
    recipe: str, given: list[str], norm: float | None, clipping: str
) -> None:
    words = [f"experiment={recipe}", "privacy=none", *given]
    privacy = loaded("train", words).privacy
    assert isinstance(privacy, NoPrivacy)
    assert (privacy.max_grad_norm, privacy.clipping) == (norm, clipping)
    assert privacy.guarantee is None


def test_the_users_norm_keeps_how_the_recipe_clips() -> None:
    """So that the run is the recipe's but for its noise."""
    composed = OmegaConf.create(
        {
            "privacy": {
                **{"name": "none", "eps": 3, "delta": 1e-5, "clipping": "per_layer"},
                **{"groups": ["*"], "max_grad_norm": 0.2},
            },
            "method": {"name": "two_phase", "bitfit_max_grad_norm": 0.5},
        }
    )
    plain = without_recipes_promise(composed, ["privacy=none"])
    assert dict(plain.privacy) == {"name": "none"} and plain.method.bitfit_max_grad_norm is None
    own = ["privacy=none", "privacy.max_grad_norm=0.2"]
    clipped = without_recipes_promise(composed, own)
    assert dict(clipped.privacy) == {
        **{"name": "none", "clipping": "per_layer", "groups": ["*"], "max_grad_norm": 0.2},
    }
    assert clipped.method.bitfit_max_grad_norm == 0.5


@pytest.mark.slow
def test_a_folder_alone_is_a_model_of_its_own_and_keeps_nothing_of_gpt2() -> None:
    assert with_model_of_path(["model.path=mine"]) == ["model=local", "model.path=mine"]
    for named in (["model=gpt2", "model.path=a"], ["experiment=demo", "model.path=a"], ["a=b"]):
        assert with_model_of_path(named) == named
    assert with_model_of_path(["model.path=null"]) == ["model.path=null"]
    command = loaded("train", checked_overrides(["model.path=mine", "method=lora", "privacy=none"]))
    assert isinstance(command, TrainCommand)
    assert (command.model.name, command.model.lora_targets) == ("local", None)
