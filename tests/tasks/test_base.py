import pytest

from dpft.tasks.base import (
    TASKS,
    Example,
    LabeledExample,
    are_texts,
    is_unicode,
)
from dpft.tasks.e2e import E2ETask
from tests.rejections import rejects
from tests.tasks.test_conf import built


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ({"source": "disk"}, "task.source"),
        ({"max_length": 1}, "task.max_length"),
        ({"column_aliases": {"mr": "record"}}, "task.column_aliases"),
        ({"name": "corpus", "record_kind": "page"}, "task.record_kind"),
        ({"name": "corpus", "text": " "}, "task.text"),
        ({"name": "personachat", "max_history": -1}, "task.max_history"),
    ],
)
def test_a_bad_setting_is_rejected_by_its_key(setting, key):
    with rejects(key):
        built({"name": "e2e", **setting})


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


def test_an_unknown_task_is_rejected():
    with rejects("task.name", "e2"):
        TASKS.named("e2")


def test_a_prompt_ends_with_its_separator():
    with pytest.raises(ValueError, match="separator"):
        Example(prompt="a", separator="\n", target="b", group="c")


TEXT = Example(prompt="name[x] :", target="x", group="name[x]", separator=" :")
LABEL = LabeledExample(texts=("x",), label=1.0)


@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        ({"separator": "?"}, "must end with separator"),
        ({"lead": "no"}, "must start with lead"),
        ({"lead": "name[x] :", "separator": " :"}, "separator follow it"),
    ],
)
def test_the_ends_that_stay_when_a_prompt_is_cut_are_its_own_and_do_not_overlap(
    ends: dict[str, str], sentence: str
) -> None:
    Example(prompt="name[x] :", target="x", group="g", lead="name", separator=" :")
    with pytest.raises(ValueError, match=sentence):
        Example(prompt="name[x] :", target="x", group="g", **ends)


def test_records_are_texts_where_every_one_is() -> None:
    assert are_texts([TEXT, TEXT]) and not are_texts([TEXT, LABEL])


def test_a_lone_surrogate_is_no_unicode() -> None:
    assert is_unicode("é ✓ 😀") and not is_unicode("x\ud800")
