from pathlib import Path

import pytest
import yaml

from dpft.config.load import from_values
from dpft.evaluation.eval_config import (
    EvalConfig,
    check_held_out,
    check_schedule,
    eval_split_is_public,
    reads_training_split,
)
from dpft.tasks.custom import CustomTexts
from tests.config.test_conf import loaded
from tests.evaluation.letters import LetterTask
from tests.rejections import rejects


@pytest.mark.parametrize(
    ("source", "data_dir", "split", "declared", "public"),
    [
        ("hub", None, "test", None, True),
        ("url", None, "validation", None, True),
        ("embedded", None, "test", None, True),
        ("hub", None, "test", False, False),
        ("hub", "somewhere", "test", None, False),
        ("hub", "somewhere", "test", True, True),
        ("local", None, "test", None, False),
        ("hub", None, "train", None, False),
        ("hub", None, "train", True, False),
    ],
)
def test_trust_rule_8_which_splits_are_public(source, data_dir, split, declared, public):
    task = LetterTask(
        name="letters", source=source, data_dir=data_dir,
        hub_name=LetterTask.published_hub_name, urls=dict(LetterTask.published_urls),
    )  # fmt: skip
    config = EvalConfig(split=split, split_is_public=declared)
    assert eval_split_is_public(task, config) is public


@pytest.mark.parametrize("declared", [None, True])
@pytest.mark.parametrize("source", ["embedded", "local"])
def test_trust_rule_8_what_is_held_out_of_the_training_split_is_never_public(source, declared):
    task = LetterTask(name="letters", source=source)
    config = EvalConfig(split_is_public=declared, held_out=0.1, publish_private_scores=True)
    assert not eval_split_is_public(task, config)


@pytest.mark.parametrize(
    "own",
    [
        {"source": "hub", "hub_name": "mycorp/letters"},
        {"source": "url", "urls": {"test": "https://intranet.example/test.csv"}},
    ],
)
def test_trust_rule_8_a_users_own_hub_data_or_address_is_not_public(own):
    assert not eval_split_is_public(LetterTask(name="letters", **own), EvalConfig())


@pytest.mark.parametrize("part", ["train", "train[:100]", "validation+train", "all"])
def test_trust_rule_8_a_split_with_a_part_of_the_training_split_is_never_public(part):
    task = LetterTask(name="letters", split_parts={"validation": ("validation", part)})
    config = EvalConfig(split="validation", split_is_public=True)
    assert reads_training_split(task, config)
    assert not reads_training_split(task, EvalConfig(split="test"))
    assert not eval_split_is_public(task, config)


def test_trust_rule_8_every_part_of_a_public_split_is_published():
    urls = {**LetterTask.published_urls, "mine": "https://intranet.example/mine.csv"}
    task = LetterTask(
        name="letters", source="url", urls=urls, split_parts={"validation": ("validation", "mine")}
    )
    assert not eval_split_is_public(task, EvalConfig(split="validation"))
    published = task.replace(split_parts={})
    assert eval_split_is_public(published, EvalConfig(split="validation"))


def test_records_are_held_out_of_your_own_data_alone_and_instead_of_another_split():
    own = CustomTexts(name="custom", text_template="{text}")
    check_held_out(own, EvalConfig(held_out=0.1))
    check_held_out(LetterTask(name="letters"), EvalConfig())
    with rejects("eval.held_out", 0.1):
        check_held_out(LetterTask(name="letters"), EvalConfig(held_out=0.1))
    with rejects("eval.held_out", 0.1):
        check_held_out(own, EvalConfig(held_out=0.1, split="train"))


def test_the_yaml_holds_every_field_at_its_default():
    path = Path(__file__).parents[2] / "conf" / "eval" / "default.yaml"
    values = yaml.safe_load(path.read_text())
    assert set(values) == set(EvalConfig.model_fields)
    assert values.pop("split") == "${task.eval_split}"
    assert EvalConfig(**values) == EvalConfig()


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ({"split": "dev"}, "split"),
        ({"limit": 0}, "limit"),
        ({"batch_size": 0}, "batch_size"),
        ({"held_out": 0.0}, "held_out"),
        ({"held_out": 1.0}, "held_out"),
        ({"every_steps": 0}, "every_steps"),
        ({"every_epochs": float("nan")}, "every_epochs"),
        ({"every_steps": 10, "every_epochs": 1.0}, "eval.every_steps"),
    ],
)
def test_a_bad_setting_is_rejected_by_its_key(setting, key):
    with rejects(key):
        from_values(setting, EvalConfig)


def test_a_schedule_in_epochs_is_of_the_public_sizes():
    assert EvalConfig().steps_between(100, 8) is None
    assert EvalConfig(every_steps=7).steps_between(100, 8) == 7
    assert EvalConfig(every_epochs=2).steps_between(100, 8) == 25
    assert EvalConfig(every_epochs=0.001).steps_between(100, 8) == 1


def test_trust_rule_8_private_records_are_not_scored_while_training():
    local = LetterTask(name="letters", source="local", data_dir="mine")
    published = LetterTask(name="letters", source="embedded")
    schedule = {"every_epochs": 1.0}
    check_schedule(local, EvalConfig())
    check_schedule(published, EvalConfig(**schedule))
    check_schedule(local, EvalConfig(split_is_public=True, **schedule))
    for task, settings in (
        (local, {"split": "test"}),
        (local, {"publish_private_scores": True}),
        (published, {"split": "train"}),
        (published, {"held_out": 0.1}),
        (published, {"enabled": False}),
    ):
        with rejects("eval.every_epochs"):
            check_schedule(task, EvalConfig(**settings, **schedule))


@pytest.mark.slow
def test_models_in_shards_are_not_scored_while_training():
    given = ["task=e2e", "task.source=embedded", "model=tiny", "privacy.eps=3"]
    given += ["eval.every_steps=10"]
    loaded("train", [*given, "parallel=ddp"])
    with rejects("eval.every_steps"):
        loaded("train", [*given, "parallel=fsdp"])
