"""Every method of peft's: what peft is told of a model, exact gradients, saves, texts."""

from pathlib import Path

import pytest
import torch
from peft import TaskType
from torch import nn

from dpft.generation.decoding import DecodeConfig, generate_texts
from dpft.methods.peft_method import new_modules, task_type
from tests.methods.shapes import (
    NAMES,
    Digits,
    assert_exact,
    assert_exact_with_dropout,
    fresh,
    greedy,
    greedy_decoder,
    logits,
    new_of,
    no_warnings,
    prepared,
    recipe,
    restored,
    shaken,
    trained_names,
    without_dropout,
    writer,
)
from tests.slowness import slow, slow_but

RECIPES = {
    "lora": {},
    "prefix": {"length": 3, "hidden": 5},
    "prompt": {"num_virtual_tokens": 3},
}
UNIONS = {"plain": {}, "biases": {"train_biases": True}, "embeddings": {"train_embeddings": True}}
UNIONS["all"] = {"train_biases": True, "train_embeddings": True}
GRID = [
    (method, shape, union)
    for method in RECIPES
    for shape in NAMES
    for union in UNIONS
    if method == "lora" or (shape != "bert-masked-lm" and union in ("plain", "all"))
]
FAST = [("lora", "gpt2", "all")]
"""What is plain of LoRA is clipped in tests/privacy/test_methods_twin.py as well."""
FAST_SAVED = [
    ("lora", "bert-classification", "all"),
    ("prefix", "gpt2", "plain"),
    ("prompt", "t5", "plain"),
]
ROUNDING = {"prefix": 1e-6}
"""Between the reparametrisation's product and the saved keys and values."""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "shape", "union"), slow_but(FAST, GRID))
def test_clipped_sums_are_those_of_examples_executed_separately(
    method: str, shape: str, union: str
) -> None:
    made = recipe(method, **RECIPES[method], **UNIONS[union])
    model = prepared(made, shape, new_of(shape))
    assert_exact(model, shape)
    assert_exact_with_dropout(model, shape)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "shape", "union"), slow_but(FAST_SAVED, GRID))
def test_what_is_saved_gives_the_same_outputs(
    method: str, shape: str, union: str, tmp_path: Path
) -> None:
    """Bit for bit, but of a prefix, whose reparametrisation is not saved."""
    made, rounding = recipe(method, **RECIPES[method], **UNIONS[union]), ROUNDING.get(method, 0.0)
    model = prepared(made, shape, new_of(shape))
    with no_warnings():
        loaded = restored(made, model, shape, tmp_path)
        found, expected = logits(loaded, shape), logits(model, shape)
    assert torch.allclose(found, expected, rtol=rounding, atol=rounding)
    assert not torch.allclose(found, logits(fresh(shape), shape), atol=1e-4)
    assert not any(
        "prompt_encoder.default.transform" in name for name, _ in loaded.named_parameters()
    )
    assert not trained_names(loaded) and not loaded.training


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "union"), [*(("lora", union) for union in UNIONS), ("prompt", "plain")]
)
def test_gradient_checkpointing_changes_no_gradient(method: str, union: str) -> None:
    made = recipe(method, **RECIPES[method], **UNIONS[union])
    model = fresh("gpt2")
    model.activation_checkpointing_enable()
    with no_warnings():
        recomputing = made.prepare(model)
    recomputing = without_dropout(shaken(recomputing).train())
    expected = assert_exact(prepared(made, "gpt2"), "gpt2")
    assert_exact(recomputing, "gpt2", expected=expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "beams", "is_restored"),
    [
        ("prefix", 4, False),
        ("prompt", 1, True),
        *slow(
            ("prefix", 1, False),
            ("prompt", 1, False),
            ("prompt", 4, False),
            ("prompt", 4, True),
        ),
    ],
)
def test_texts_do_not_depend_on_the_batches(
    method: str, beams: int, is_restored: bool, tmp_path: Path
) -> None:
    made = recipe(method, **RECIPES[method])
    model = writer(made)
    if is_restored:
        model = restored(made, model, "gpt2", tmp_path)
    prompts = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]
    config = DecodeConfig(num_beams=beams, max_new_tokens=6)
    with no_warnings():
        together = generate_texts(model, Digits(), prompts, config=config, batch_size=3)
    alone = generate_texts(model, Digits(), prompts, config=config, batch_size=1)
    assert together == alone and len(set(together)) > 1
    if beams == 1:
        assert together == [greedy(model, ids, 6) for ids in prompts]


@pytest.mark.slow
@pytest.mark.parametrize("method", slow_but(["prefix"], ["prefix", "prompt"]))
def test_t5_writes_what_its_whole_forward_passes_say(method: str) -> None:
    model = prepared(recipe(method, **RECIPES[method]), "t5")
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
    written = model.generate(input_ids=ids, num_beams=1, do_sample=False, max_new_tokens=6)
    for row in range(2):
        told = greedy_decoder(model, ids[row : row + 1], written.shape[1] - 1)
        assert written[row].tolist() == told


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
    assert task_type(fresh(name)) is task


def test_only_modules_that_are_new_as_a_whole_are_saved_whole_the_outermost_alone() -> None:
    model = fresh("bert-classification")
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
