"""conf/task says everything a user may set: Hydra refuses a key that its YAML lacks."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from dpft.config.load import from_values
from dpft.config.schema import AnyTask
from dpft.config.section import Section
from dpft.tasks.base import TASKS, Task

FORMS = {"custom": {"text": "{text}"}}
"""What must be chosen beyond the YAML."""

CONF = Path(__file__).parents[2] / "conf" / "task"


@pytest.mark.parametrize("name", TASKS.entries())
def test_the_yaml_holds_every_field_of_its_task_and_builds_it(name):
    values = OmegaConf.to_object(OmegaConf.load(CONF / f"{name}.yaml"))
    assert set(values) == {
        field.alias or name for name, field in TASKS.named(name).model_fields.items()
    }
    assert built(values | FORMS.get(name, {})).name == name


def built(values: dict[str, object]) -> Task:
    return from_values({"task": values}, Rooted).task


class Rooted(Section):
    task: AnyTask


@pytest.mark.parametrize("name", TASKS.entries())
def test_published_tasks_keep_the_papers_delta_and_own_data_has_a_smaller_one(name):
    values = OmegaConf.to_object(OmegaConf.load(CONF / f"{name}.yaml"))
    own = name in ("custom", "corpus", "images", "preference")
    elsewhere = {} if name == "digits" else {"data_dir": "elsewhere"}
    there = built(values | FORMS.get(name, {}) | elsewhere)
    assert there.default_delta == ("own_data" if own else "published"), "wherever its files lie"


def test_a_task_that_says_nothing_of_delta_is_of_own_data_and_another_rule_is_refused():
    values = OmegaConf.to_object(OmegaConf.load(CONF / "custom.yaml")) | FORMS["custom"]
    silent = {key: value for key, value in values.items() if key != "default_delta"}
    assert built(silent).default_delta == "own_data"
    with pytest.raises(ValueError, match="default_delta"):
        built(values | {"default_delta": "papers"})


@pytest.mark.parametrize("name", ["e2e", "dart", "personachat"])
def test_published_tasks_are_scored_as_english_ones_even_by_a_saved_run_without_the_key(name):
    values = OmegaConf.to_object(OmegaConf.load(CONF / f"{name}.yaml"))
    assert values.pop("language") == "en"
    assert built(values).language == "en"


def test_e2e_trains_on_the_published_number_of_examples():
    assert OmegaConf.load(CONF / "e2e.yaml").num_train_examples == 42061


@pytest.mark.parametrize("name", sorted({*TASKS.entries()} - {"custom"}))
def test_the_yaml_reads_the_published_data_unless_told_otherwise(name):
    values = OmegaConf.to_object(OmegaConf.load(CONF / f"{name}.yaml"))
    published = [source for source, key in (("hub", "hub_name"), ("url", "urls")) if values[key]]
    for source in published:
        task = built(values | {"source": source})
        assert all(task.is_published(split) for split in ("train", "validation", "test"))
