"""A whole run whose model writes to its weights: the command ends with 1, and there is no model."""

import pytest
import torch
from transformers import GPT2LMHeadModel

from tests.stories.tiny import EVALUATION, STEPS, TRAINING, make_workspace

BITFIT = (
    "method=bitfit",
    "privacy.noise_multiplier=1",
    "train.learning_rate=0.01",
    "hydra.run.dir=run",
)


def patched(monkeypatch, write):
    forward = GPT2LMHeadModel.forward

    def forward_and_write(self, *args, **kwargs):
        outputs = forward(self, *args, **kwargs)
        write(self, outputs.logits.detach())
        return outputs

    monkeypatch.setattr(GPT2LMHeadModel, "forward", forward_and_write)


def ended(workspace, *arguments):
    outcome = workspace.run("train", *TRAINING, *EVALUATION, STEPS, *BITFIT, *arguments)
    assert outcome.code == 1, outcome.err
    folder = workspace.root / "run"
    assert not (folder / "model").exists() and not (folder / "report.md").exists()
    return outcome.err


@pytest.mark.slow
def test_trust_rule_11_a_frozen_weight_that_learns_ends_the_run_before_a_record_is_seen(
    tmp_path, monkeypatch
):
    """The self-check sees it on synthetic records."""

    def write(model, logits):
        model.transformer.wpe.weight.data[0] += logits.mean()

    patched(monkeypatch, write)
    said = ended(make_workspace(tmp_path), "eval.enabled=false")
    assert "transformer.wpe.weight was written to" in said
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.slow  # tests/training/test_frozen_state.py has one of a tiny run
def test_trust_rule_11_one_that_learns_in_the_last_step_alone_is_not_released(
    tmp_path, monkeypatch
):
    def write(model, logits):
        ledger = tmp_path / "run" / "ledger.jsonl"
        if model.training and ledger.exists() and ledger.read_text().count('"step"') >= 2:
            model.transformer.wpe.weight.data[0] += logits.mean()

    patched(monkeypatch, write)
    said = ended(make_workspace(tmp_path), "eval.enabled=false")
    assert "transformer.wpe.weight was written to" in said
    assert "closed" not in (tmp_path / "run" / "ledger.jsonl").read_text()


@pytest.mark.slow
def test_what_scoring_writes_before_the_first_step_is_not_trained_on(tmp_path, monkeypatch):
    """Held-out records are private too, so what trains may not have moved by then either."""

    def write(model, logits):
        if not torch.is_grad_enabled():
            model.transformer.h[0].mlp.c_fc.bias.data[0] += logits.mean()

    patched(monkeypatch, write)
    said = ended(make_workspace(tmp_path))
    assert "c_fc.bias was" in said
    assert not list((tmp_path / "run").rglob("*.safetensors"))
