import pytest

from dpft.errors import InputError
from dpft.tasks.base import TASKS, Example
from dpft.tasks.e2e import E2ETask


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ({"source": "disk"}, "task.source"),
        ({"max_length": 1}, "task.max_length"),
        ({"column_aliases": {"mr": "record"}}, "task.column_aliases"),
    ],
)
def test_a_bad_setting_is_refused_by_its_key(setting, key):
    with pytest.raises(InputError, match=key):
        E2ETask(name="e2e", **setting)


def test_data_dir_means_local_whatever_source_says():
    task = E2ETask(name="e2e", source="url", data_dir="somewhere", num_train_examples=42061)
    assert task.effective_source == "local"
    assert task.public_num_train_examples is None


@pytest.mark.parametrize(("source", "number"), [("url", 42061), ("hub", 42061), ("embedded", 12)])
def test_the_public_number_of_examples_follows_the_source(source, number):
    task = E2ETask(
        name="e2e", source=source, num_train_examples=42061, embedded_num_train_examples=12
    )
    assert task.public_num_train_examples == number


def test_an_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"task\.name must be one of .*e2e.*, got 'e2'"):
        TASKS.named("e2")


def test_a_prompt_ends_with_its_separator():
    with pytest.raises(ValueError, match="separator"):
        Example(prompt="a", separator="\n", target="b", group="c")
