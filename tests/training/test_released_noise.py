"""What a reader of released weights sees of the noise, and what it does not give away."""

import dataclasses

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.training.optimizers import SGD, AdamW
from tests.privacy.linear_complexity import linear_complexity
from tests.training.toy import VOCABULARY, plan, privacy, session, spent, train_privately

pytestmark = pytest.mark.slow

POSITIONS = 700_000
"""Rows of the position embedding, one number each; records use the first few."""


@pytest.mark.parametrize("optimizer", [SGD(), AdamW()], ids=["sgd", "adamw"])
def test_trust_rule_4_noise_bare_in_the_released_weights_does_not_give_the_generator_away(
    tmp_path, optimizer
):
    """The audit's attack: rows that no record reaches show the noise alone, AdamW its signs.

    With torch's generator every 16th sign followed from 20,000 others, and then all noise did.
    """
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=1, n_layer=1, n_head=1,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    base = GPT2LMHeadModel(config)
    before = base.transformer.wpe.weight.detach().clone()
    run = session(tmp_path, base)
    settings = run.settings.replace(weight_decay=0.0)
    run = dataclasses.replace(run, optimizer=optimizer, settings=settings)
    train_privately(run, plan(steps=1), privacy(seed=1), epsilon_after=spent)
    moved = (before - base.transformer.wpe.weight.detach()).flatten()
    assert (moved != 0).double().mean() > 0.9999
    signs = (moved < 0).int()
    patterns = {"sines": signs[POSITIONS // 2 :][:41_000], "torch's blocks": signs[8::16][:41_000]}
    for bits in patterns.values():
        order = linear_complexity(bits.tolist())
        assert abs(order - len(bits) / 2) < 50, "that of coin tosses"
    assert {len(bits) for bits in patterns.values()} == {41_000}
