"""A self-check on a run's synthetic batches finds faults of engines, and models that mix rows."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.models.losses import per_example_losses
from dpft.privacy.clipping import PerExampleClipper, recorder
from dpft.privacy.clipping.products import GradientNorms
from tests.rejections import rejects
from tests.self_checks import check_text
from tests.slowness import slow_but
from tests.training.toy import tiny_model


def engine_of(
    model: nn.Module, engine: str = "book_keeping", autocast: torch.dtype | None = None
) -> str:
    """Return the engine that a self-check chooses."""
    with PerExampleClipper(
        model, per_example_losses, 0.1, engine=engine, autocast=autocast
    ) as clipper:
        return check_text(clipper, model).engine


@pytest.mark.parametrize("autocast", slow_but([None], [None, torch.bfloat16, torch.float16]))
def test_a_sound_model_passes(autocast: torch.dtype | None) -> None:
    assert engine_of(tiny_model(), autocast=autocast) == "book_keeping"


def without_cross_term(head: GradientNorms, embedding: GradientNorms, *_: Any) -> GradientNorms:
    return GradientNorms(
        head.square + embedding.square,
        head.error + embedding.error,
        head.rounding + embedding.rounding,
    )


def tied_model() -> nn.Module:
    """Return a model whose vocabulary is too large for per-example gradients to be formed."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=400, n_positions=16, n_embd=16, n_layer=1, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


@pytest.mark.slow
def test_a_missing_cross_term_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_of(tied_model()) == "book_keeping"
    monkeypatch.setattr(recorder, "tied_norms", without_cross_term)
    with rejects():
        engine_of(tied_model())
    assert engine_of(tied_model(), "auto") == "rows"


@pytest.mark.parametrize("engine", ["auto", "rows"])
def test_trust_rule_3_a_model_whose_examples_mix_is_rejected_on_every_engine(engine: str) -> None:
    class Mixing(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            return hidden + hidden.detach().mean(0, keepdim=True)

    model = tiny_model()
    model.transformer.drop = Mixing()
    with rejects():
        engine_of(model, engine)
