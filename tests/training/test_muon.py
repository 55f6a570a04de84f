"""Muon beside AdamW: which moves what, by whose formula."""

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from dpft.errors import InputError
from dpft.methods.base import METHODS
from dpft.training.checkpoint import restore_checkpoint, save_checkpoint
from dpft.training.optimizer_steps import MuonAndAdamW, tables_and_heads
from dpft.training.optimizers import (
    Muon,
    check_works_on_shards,
)
from dpft.training.training_state import TrainingState, optimizer_state
from tests.training.toy import take_steps, tiny_model, training_state

BERT = BertConfig(
    vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=16,
)  # fmt: skip
T5 = T5Config(vocab_size=11, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
GPT = GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=1, n_head=2)


def by_muon(optimizer: torch.optim.Optimizer, model: nn.Module) -> set[str]:
    names = {p: name for name, p in model.named_parameters()}
    return {names[p] for p in optimizer.param_groups[0]["params"]}


def made(model: nn.Module, **settings) -> MuonAndAdamW:
    moved = [p for p in model.parameters() if p.requires_grad]
    optimizer = Muon(**settings).make_for(model, moved, learning_rate=0.1, weight_decay=0.01)
    assert isinstance(optimizer, MuonAndAdamW)
    return optimizer


@pytest.mark.parametrize(
    ("model", "apart"),
    [
        (GPT2LMHeadModel(GPT), ["wte", "wpe"]),
        (
            BertForSequenceClassification(BERT),
            ["word_embeddings", "position_embeddings", "token_type_embeddings", "classifier"],
        ),
        (T5ForConditionalGeneration(T5), ["shared", "relative_attention_bias"]),
    ],
    ids=["gpt2", "bert", "t5"],
)
def test_matrices_that_are_no_table_and_no_head_are_moved_by_muon(model, apart) -> None:
    found = by_muon(made(model), model)
    matrices = {name for name, p in model.named_parameters() if p.ndim == 2}
    left = {name for name in matrices if any(part in name for part in apart)}
    assert all(any(part in name for name in left) for part in apart), "each part names something"
    assert found == matrices - left and found
    groups = made(model).param_groups
    everything = [p for group in groups for p in group["params"]]
    assert len(everything) == len(set(everything)) == len(list(model.parameters()))


def test_a_lora_moves_by_muon_and_its_new_head_does_not() -> None:
    pytest.importorskip("peft")
    model = METHODS.named("lora")(name="lora", targets=("query", "value")).prepare(
        BertForSequenceClassification(BERT), frozenset({"classifier.weight", "classifier.bias"})
    )
    found = by_muon(made(model), model)
    assert found and all("lora_" in name for name in found)


def test_biases_alone_are_refused() -> None:
    model = METHODS.named("bitfit")(name="bitfit").prepare(tiny_model())
    with pytest.raises(InputError, match="optimizer=muon needs a matrix of a hidden layer"):
        Muon().check_model(model)
    Muon().check_model(tiny_model())


def test_a_matrix_moves_by_its_mean_gradient_made_orthogonal_and_adamw_moves_the_rest() -> None:
    """Liu et al. 2025, section 2.2: 0.2 sqrt(max(rows, columns)) times the orthogonal factor.

    torch's five iterations leave singular values between 0.68 and 1.14 (Jordan et al. 2024), so
    the update is U S V^T with S near one; its directions are those of the singular vectors.
    """
    torch.manual_seed(0)
    matrix, bias = nn.Parameter(torch.zeros(6, 4)), nn.Parameter(torch.zeros(4))
    optimizer = Muon(nesterov=False).make([matrix, bias], learning_rate=0.1, weight_decay=0.0)
    matrix.grad, bias.grad = torch.randn(6, 4), torch.tensor([3.0, -0.5, 1e-3, 2.0])
    optimizer.step()
    left, _, right = torch.linalg.svd(matrix.grad, full_matrices=False)
    scaled = -matrix.detach() / (0.1 * 0.2 * 6**0.5)
    within = left.t() @ scaled @ right.t()
    assert ((within.diagonal() > 0.6) & (within.diagonal() < 1.25)).all()
    off = within - within.diagonal().diag()
    assert off.abs().max() < 0.05, "bfloat16's rounding"
    assert bias.tolist() == pytest.approx([-0.1, 0.1, -0.1, -0.1], rel=1e-4), "Adam's first step"


def state_of(model: nn.Module, steps: int) -> TrainingState:
    state = training_state(model, made(model))
    take_steps(state, steps)
    return state


def test_it_goes_on_from_a_checkpoint_to_the_same_bits(tmp_path) -> None:
    through = state_of(tiny_model(), 4)
    path = save_checkpoint(tmp_path / "checkpoints", 2, state_of(tiny_model(), 2))
    resumed = state_of(tiny_model(9), 1)
    restore_checkpoint(path, resumed)
    take_steps(resumed, 2)
    for first, second in (
        (through.model.state_dict(), resumed.model.state_dict()),
        (optimizer_state(through), optimizer_state(resumed)),
    ):
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
    rates = [group["lr"] for group in resumed.optimizer.param_groups]
    assert rates == pytest.approx([0.1 * 6 / 10] * 2), "the schedule's, for both parts"


def test_shards_are_refused() -> None:
    with pytest.raises(InputError, match="optimizer=muon needs whole parameters, .*adamw or sgd"):
        check_works_on_shards(Muon())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"momentum": 1.0}, r"optimizer.momentum must be in \[0, 1\), got 1.0"),
        ({"eps": 0.0}, "optimizer.eps must be positive, got 0.0"),
        ({"newton_schulz_steps": 0}, "newton_schulz_steps must be from 1 to 99, got 0"),
        ({"newton_schulz_steps": 100}, "newton_schulz_steps must be from 1 to 99, got 100"),
    ],
)
def test_a_bad_setting_is_refused_by_name(given: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Muon(**given)


def test_what_tables_and_heads_are_does_not_hang_on_requires_grad() -> None:
    model = tiny_model()
    expected = tables_and_heads(model)
    assert expected and tables_and_heads(model.requires_grad_(False)) == expected
