"""Rows of preference data: texts or messages, and what is wrong with some of them."""

from typing import Any

import pytest

from dpft.tasks.preference import PreferenceTask
from tests.rejections import rejects

TASK = PreferenceTask(name="preference")
ANSWER = [{"role": "assistant", "content": "At noon."}]


def pair(**changes: Any) -> dict[str, Any]:
    return {"prompt": "When?", "chosen": "At noon.", "rejected": "No idea.", **changes}


def test_texts_and_messages_give_the_same_pair() -> None:
    messages = [{"role": "user", "content": "When?"}]
    (of_texts,) = TASK.examples(pair())
    assert TASK.examples(pair(prompt=messages, chosen=ANSWER)) == (of_texts,)
    assert (of_texts.prompt, of_texts.target) == ("When?\n", "At noon.")
    assert of_texts.rejected == "No idea." and of_texts.group == "When?"


def test_a_conversation_keeps_its_messages() -> None:
    turns = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "When?")]
    messages = [{"role": role, "content": content} for role, content in turns]
    (example,) = TASK.examples(pair(prompt=messages))
    assert [message.role for message in example.messages] == [role for role, _ in turns]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"chosen": " "}, "chosen"),
        ({"rejected": ""}, "rejected"),
        ({"rejected": "At noon."}, "rejected"),
        ({"prompt": "\n"}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"chosen": [*ANSWER, *ANSWER]}, "chosen"),
        ({"chosen": [{"role": "user", "content": "x"}]}, "chosen"),
        ({"chosen": [{"role": "assistant"}]}, "chosen"),
    ],
)
def test_an_invalid_pair_is_rejected_without_quoting_it(changes: dict[str, Any], key: str) -> None:
    with rejects(key) as faults:
        TASK.examples(pair(**changes))
    assert "noon" not in str(faults[0])


def test_the_columns_have_keys() -> None:
    task = PreferenceTask(name="preference", prompt="question", chosen="best", rejected="worst")
    assert task.columns == ("question", "best", "worst")
    assert task.column_key("worst") == "task.rejected"
