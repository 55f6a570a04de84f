import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from dpft.data.collation import Batch
from dpft.models.losses import per_example_losses, token_nll

VOCABULARY = 11
ROWS = [([1, 2, 3, 4, 5], 2), ([6, 7, 8], 1), ([9, 10], 0)]
"""Token ids and the number of prompt tokens, which carry no loss."""


@pytest.fixture
def model() -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=8, n_layer=2, n_head=2)
        ).eval()


def batch(rows: list[tuple[list[int], int]], length: int = 5) -> Batch:
    def padded(row: list[int], value: int) -> list[int]:
        return row + [value] * (length - len(row))

    inputs = {
        "input_ids": torch.tensor([padded(ids, 0) for ids, _ in rows]),
        "attention_mask": torch.tensor([padded([1] * len(ids), 0) for ids, _ in rows]),
        "position_ids": torch.arange(length).repeat(len(rows), 1),
    }
    labels = torch.tensor([padded([-100] * n + ids[n:], -100) for ids, n in rows])
    return Batch(inputs=inputs, labels=labels)


def expected_nll(model: PreTrainedModel, ids: list[int], prompt: int) -> Tensor:
    """Returns -log p of each target token given all before it, one example and no padding."""
    log_probabilities = functional.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
    return torch.stack([-log_probabilities[i - 1, ids[i]] for i in range(max(prompt, 1), len(ids))])


def test_a_loss_is_the_mean_over_the_examples_own_target_tokens(model):
    expected = torch.stack([expected_nll(model, *row).mean() for row in ROWS])
    assert torch.allclose(per_example_losses(model, batch(ROWS)), expected, atol=1e-6)


def test_negative_log_likelihoods_and_tokens_are_summed_for_perplexity(model):
    nll, tokens = token_nll(model, batch(ROWS))
    assert torch.allclose(nll, torch.stack([expected_nll(model, *r).sum() for r in ROWS]))
    assert tokens.tolist() == [3, 2, 1]
    assert not nll.requires_grad


def test_a_loss_depends_on_its_own_row_only(model):
    together = per_example_losses(model, batch(ROWS))
    alone = torch.cat([per_example_losses(model, batch([row])) for row in ROWS])
    assert torch.allclose(together, alone, atol=1e-6)


def test_a_gradient_does_not_depend_on_padding_or_neighbors(model):
    def gradient(rows: list[tuple[list[int], int]], length: int) -> Tensor:
        loss = per_example_losses(model, batch(rows, length))[0]
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())])

    alone = gradient(ROWS[1:2], 3)
    assert torch.allclose(gradient([ROWS[1], ROWS[0]], 9), alone, rtol=1e-4, atol=1e-6)


def test_an_example_without_target_tokens_has_loss_zero_and_gradient_zero(model):
    losses = per_example_losses(model, batch([([1, 2, 3], 3), ([4, 5, 6], 1)]))
    assert losses[0].item() == 0
    gradients = torch.autograd.grad(losses[0], list(model.parameters()))
    assert all((gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_losses_are_float32_or_float64(model, dtype, expected):
    assert per_example_losses(model.to(dtype), batch(ROWS)).dtype == expected
