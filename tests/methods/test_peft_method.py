"""What peft is told of a model: its task, and the modules to save whole."""

import pytest
from peft import TaskType
from torch import nn

from dpft.methods.peft_method import new_modules, refuse, task_type
from tests.methods import adapters


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("gpt2", TaskType.CAUSAL_LM),
        ("t5", TaskType.SEQ_2_SEQ_LM),
        ("bert-classification", TaskType.SEQ_CLS),
        ("bert-masked-lm", None),
    ],
)
def test_a_model_has_the_task_that_peft_knows_it_by(name: str, task: TaskType | None) -> None:
    assert task_type(adapters.fresh(name)) is task


def test_only_modules_that_are_new_as_a_whole_are_saved_whole_the_outermost_alone() -> None:
    model = adapters.fresh("bert-classification")
    head = {"classifier.weight", "classifier.bias"}
    pooler = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert new_modules(model, frozenset()) == []
    assert new_modules(model, frozenset({"classifier.weight"})) == []
    assert new_modules(model, frozenset(head | pooler)) == ["bert.pooler", "classifier"]


def test_of_heads_in_a_list_each_is_saved_whole_and_not_the_list() -> None:
    """As CrossViT's of two branches: peft refuses to put another list in the place of one."""
    model = nn.ModuleDict({"body": nn.Linear(2, 2), "heads": nn.ModuleList()})
    model["heads"].extend([nn.Linear(2, 3), nn.Linear(2, 3)])
    new = {name for name, _ in model.named_parameters() if name.startswith("heads")}
    assert new_modules(model, frozenset(new)) == ["heads.0", "heads.1"]


def test_a_method_that_does_not_fit_names_the_model_and_a_way_out() -> None:
    sentence = str(refuse("prefix", adapters.fresh("gpt2"), "a model with a cache"))
    assert sentence == (
        "method=prefix needs a model with a cache, got GPT2LMHeadModel; choose another method,"
        " such as method=lora."
    )
