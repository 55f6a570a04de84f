"""What clipping costs in addition to ordinary training: operations, host reads, matrix products.

All counts are exact on every machine. On an accelerator each operation is a launch, and the host
waits at each read. The formulas are Table 2 of Bu et al. 2022 (arXiv 2205.10683) for a layer from
(b, t, d) to (b, t, p); a multiplication and an addition are two operations.
"""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.counts import Counts, counts_of
from benchmarks.workload import LORA_RANK, LoRA
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.oracle import LossesOf

pytestmark = pytest.mark.slow

WIDTHS = (96, 80, 112)
EXAMPLES = 4


def counted(
    model: nn.Module, losses_of: LossesOf, batch: Tensor, synthetic: list[Tensor], engine: str
) -> tuple[Counts, Counts]:
    """Return counts of a steady private micro-batch and of an ordinary one."""
    ordinary = counts_of(lambda: losses_of(model, batch).sum().backward(), model.zero_grad)
    with PerExampleClipper(model, losses_of, 0.1, engine=engine) as clipper:
        clipper.self_check(*synthetic)
        for _ in range(2):  # The first two are compared with subsets of their rows.
            clipper.accumulate(batch)
        private = counts_of(lambda: clipper.accumulate(batch), model.zero_grad)
    return private, ordinary


def next_tokens(model: nn.Module, ids: Tensor) -> Tensor:
    positions = torch.arange(ids.shape[1]).expand(ids.shape)
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").sum(1)


def test_a_micro_batch_of_gpt2_takes_at_most_1_5_times_the_operations_and_one_host_read():
    torch.manual_seed(0)
    size = {"n_embd": 64, "n_head": 2, "n_layer": 12, "n_positions": 40}
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(**size, **rates, vocab_size=500, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).train()
    ids = torch.randint(0, 500, (8, 40))
    private, ordinary = counted(model, next_tokens, ids, [ids[:4, :9], ids[:3, :5]], "book_keeping")
    assert private.operations <= 1.5 * ordinary.operations
    assert private.host_reads - ordinary.host_reads <= 1
    assert private.passes == 1


def stack(trained: str) -> nn.Module:
    """Linear layers of which all, the biases, or low-rank adapters are trainable."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in zip(WIDTHS, WIDTHS[1:], strict=False):
        dense = nn.Linear(inputs, outputs)
        layers += [LoRA(dense) if trained == "lora" else dense, nn.Tanh()]
    model = nn.Sequential(nn.Linear(WIDTHS[0], WIDTHS[0]), *layers)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = (
            not name.startswith("0.")
            and {
                "full": True,
                "biases": name.endswith("bias"),
                "lora": name.endswith(("down.weight", "up.weight")),
            }[trained]
        )
    return model


@cache
def overhead(trained: str, length: int) -> int:
    """Return matrix-product operations in addition to ordinary training."""
    torch.manual_seed(1)
    batch = torch.randn(EXAMPLES, length, WIDTHS[0])
    losses = lambda model, batch: model(batch).square().sum((1, 2))  # noqa: E731
    synthetic = [batch, batch[:3]]
    private, ordinary = counted(stack(trained), losses, batch, synthetic, "book_keeping")
    return private.products - ordinary.products


def summed(formula) -> int:
    """Return the sum of a formula of (p, d) over the layers."""
    return sum(formula(p, d) for d, p in zip(WIDTHS, WIDTHS[1:], strict=False))


BIASES = 2 * EXAMPLES * summed(lambda p, d: p)
"""Sums of factors times gradients of biases."""


@pytest.mark.parametrize("length", [8, 16, 32, 128])
def test_a_weight_costs_at_most_the_lesser_of_ghost_norm_and_instantiation(length):
    """Table 2, BK-MixOpt: min(2 b t^2 (p + d), 2 b t p d), and here less for long texts."""
    ghost = summed(lambda p, d: 2 * EXAMPLES * length**2 * (p + d))
    formed = summed(lambda p, d: 2 * EXAMPLES * length * p * d)
    assert overhead("full", length) - BIASES <= min(ghost, formed)


@pytest.mark.parametrize("trained", ["biases", "lora"])
def test_biases_and_adapters_cost_a_sum_that_does_not_depend_on_the_length(trained):
    adapters = 2 * EXAMPLES * summed(lambda p, d: LORA_RANK * (p + d))
    for length in (16, 64):
        assert overhead(trained, length) <= (BIASES if trained == "biases" else adapters)


def test_rows_cost_no_matrix_products():
    """The norm and the scaled addition of each row are the only extra operations."""
    batch = torch.randn(EXAMPLES, 16, WIDTHS[0])
    losses = lambda model, batch: model(batch).square().sum((1, 2))  # noqa: E731
    private, ordinary = counted(stack("full"), losses, batch, [batch, batch[:3]], "rows")
    assert private.products == ordinary.products
    assert private.host_reads <= 3 * EXAMPLES + 1
