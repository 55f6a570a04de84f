"""A decoder with a classification head reads a text's last token, wherever padding begins."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from dpft.data.encoding import Encoding
from dpft.models.architecture import read_architecture
from dpft.models.loading import load_model, load_tokenizer
from dpft.models.losses import answer_logits
from dpft.models.source import EMBEDDED_MODEL, ModelConfig
from dpft.runs.task_model import encoding_of, head_of
from dpft.tasks.glue import GlueTask
from dpft.tasks.records import LabelledExample
from dpft.training.self_check import check_independence

TASK = GlueTask(name="sst2", objective="cls", labels=("negative", "positive"), max_length=24)
TEXTS = ("a pub", "a pub that is very good, and near the river", "", "good")


def encoded(folder: Path, pad_token_id: int | None) -> tuple[torch.nn.Module, Encoding]:
    """A small GPT-2 whose config.json says what padding is, and its tokenizer, which says 0."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    tokenizer.save_pretrained(folder)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=8, n_layer=1, n_head=2)
    config.bos_token_id = config.eos_token_id = tokenizer.eos_token_id
    GPT2LMHeadModel(config).save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    settings["pad_token_id"] = pad_token_id
    (folder / "config.json").write_text(json.dumps(settings))
    model = read_architecture(ModelConfig(name="tiny", path=str(folder)))
    head = head_of(TASK, model)
    encoding = encoding_of(TASK, model, head, load_tokenizer(model, kind=head.kind))
    return load_model(model, seed=0, head=head).eval(), encoding


@pytest.mark.parametrize("pad_token_id", [None, 5])
def test_trust_rule_3_a_classifiers_loss_does_not_depend_on_padding(tmp_path, pad_token_id):
    """GPT-2 names no padding; and what it names need not be what its tokenizer does."""
    model, encoding = encoded(tmp_path, pad_token_id)
    rows = encoding.rows([LabelledExample(texts=(text,), label=1.0) for text in TEXTS])
    check_independence(model, rows, encoding.layout)


def test_a_batch_of_empty_texts_has_an_answer(tmp_path):
    """GPT-2's tokenizer writes no marks: whether a step fails must not depend on what it drew."""
    model, encoding = encoded(tmp_path, None)
    rows = encoding.rows([LabelledExample(texts=("",), label=0.0)] * 2)
    logits = answer_logits(model, encoding.layout.collate(rows))
    assert logits.shape == (2, 2) and bool(logits.isfinite().all())
