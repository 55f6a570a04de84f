"""What canaries' gradients are in the embeddings of words that one canary has alone."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dpft.data.batches import Batch
from dpft.models.losses import per_example_losses
from dpft.runs.white_box import (
    apart,
    common_directions,
    own_lengths,
    owners_of,
    summed_gradients,
    tables,
)


def toy(*, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def batch(*rows: list[int]) -> Batch:
    ids = torch.tensor(rows)
    return Batch(inputs={"input_ids": ids, "attention_mask": torch.ones_like(ids)}, labels=ids)


def test_a_token_has_an_owner_where_one_canary_alone_reads_it() -> None:
    batches = [batch([0, 1, 1], [0, 2, 3]), batch([3, 4, 4])]
    assert owners_of(batches, 6).tolist() == [-1, 0, 1, -1, 2, -1]


@pytest.mark.parametrize("tied", [True, False])
def test_tied_tables_count_once_and_frozen_ones_not_at_all(tied: bool) -> None:
    model = toy(tied=tied)
    assert len(tables(model)) == (1 if tied else 2)
    model.get_input_embeddings().weight.requires_grad_(False)
    assert len(tables(model)) == (0 if tied else 1)


def test_the_sum_of_gradients_is_that_of_all_canaries_and_leaves_nothing_behind() -> None:
    model, batches = toy(tied=True), [batch([0, 1, 1], [0, 2, 3]), batch([3, 4, 4])]
    (total,) = summed_gradients(model, batches)
    losses = torch.cat([per_example_losses(model, each) for each in batches])
    (expected,) = torch.autograd.grad(losses.sum(), tables(model))
    torch.testing.assert_close(total, expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_rows_have_in_common_is_taken_away_whatever_its_length() -> None:
    generator = torch.Generator().manual_seed(0)
    own = 0.01 * torch.randn((4000, 6), generator=generator, dtype=torch.float64)
    along = torch.zeros(6, dtype=torch.float64)
    along[2] = 1.0
    lengths = torch.randn((4000, 1), generator=generator, dtype=torch.float64)
    rows = own + 3.0 + 100 * lengths * along
    left = apart(rows, common_directions(rows))
    rest = [at for at in range(6) if at != 2]
    centered = (own - own.mean(dim=0))[:, rest]
    torch.testing.assert_close(left[:, rest], centered, atol=3e-3, rtol=0)
    torch.testing.assert_close(left.mean(dim=0), torch.zeros(6).double())
    assert float(left[:, 2].abs().max()) < 1e-3


def test_a_canary_is_as_long_as_its_rows_of_all_tables_together() -> None:
    tables_rows = [torch.tensor([[3.0, 0], [0, 1]]), torch.tensor([[0.0, 4], [0, 0]])]
    assert own_lengths(tables_rows, torch.tensor([1, 2]), 3).tolist() == [0.0, 5.0, 1.0]
