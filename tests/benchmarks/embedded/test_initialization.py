import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.embedded.initialization import start_near_copying


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=300,
        n_positions=64,
        n_embd=160,
        n_layer=2,
        n_head=4,
        initializer_range=0.05,
        attn_implementation="eager",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config).eval()
    start_near_copying(model)
    return model


@torch.no_grad()
def test_the_first_head_attends_to_the_previous_token(model):
    ids = torch.randint(300, (4, 40), generator=torch.Generator().manual_seed(1))
    attention = model(ids, output_attentions=True).attentions[0][:, 0]  # [b, t, t]
    assert (attention[:, 5:].argmax(-1) == torch.arange(4, 39)).float().mean() > 0.8


@torch.no_grad()
def test_a_copying_head_attends_to_what_followed_the_token_before(model):
    tokens = torch.randperm(300, generator=torch.Generator().manual_seed(2))[:20]
    ids = torch.cat([tokens, tokens])[None]
    attention = model(ids, output_attentions=True).attentions[1][0, :2]  # [2, t, t]
    followed = attention[:, torch.arange(20, 39), torch.arange(1, 20)].mean()
    assert followed > 3 * attention[:, 20:39, :20].mean()


def test_every_weight_stays_finite_and_tied(model):
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert model.lm_head.weight is model.transformer.wte.weight
