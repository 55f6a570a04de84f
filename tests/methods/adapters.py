"""What the tests of the peft methods share: small models, and the clipper against the loop."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from dpft.methods.base import Method
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.architectures import batches
from tests.privacy.clipping.architectures.batches import Examples, Kind, examples
from tests.privacy.clipping.architectures.comparison import difference, gradients_of
from tests.privacy.clipping.oracle import Clipped

GPT2 = {"vocab_size": 40, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BERT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT |= {"intermediate_size": 24, "max_position_embeddings": 32, "num_labels": 3}
T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 2}
T5 |= {"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
CLASSIFIER = frozenset({"classifier.weight", "classifier.bias"})
KINDS: dict[str, Kind] = {
    "gpt2": batches.causal,
    "bert-masked-lm": batches.masked,
    "bert-classification": batches.classification,
    "t5": batches.seq2seq,
}


def fresh(name: str) -> PreTrainedModel:
    """A model by its name in KINDS, the same weights every time, no dropout."""
    torch.manual_seed(0)
    model = {
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
        "bert-masked-lm": lambda: BertForMaskedLM(BertConfig(**BERT)),
        "bert-classification": lambda: BertForSequenceClassification(BertConfig(**BERT)),
        "t5": lambda: T5ForConditionalGeneration(T5Config(**T5)),
    }[name]()
    return shaken(model.eval())


def shaken(model: PreTrainedModel) -> PreTrainedModel:
    """Moves what is trainable far from its symmetric start, as training would."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def trained(method: Method, name: str, new: frozenset[str] = frozenset()) -> PreTrainedModel:
    """A prepared model after some training, in eval mode."""
    return shaken(method.prepare(fresh(name), new)).eval()


def trainable(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def clipped(model: nn.Module, kind: Kind, batch: Examples, engine: str) -> Clipped:
    """The clipped sum of a batch, dropout masks those of seed 3."""
    for parameter in model.parameters():
        parameter.grad = None
    torch.manual_seed(3)
    with PerExampleClipper(model, 0.5, engine=engine) as clipper:
        norms = clipper.accumulate(lambda: kind(model, batch))
    return Clipped(norms, gradients_of(model))


def off_the_loop(model: nn.Module, name: str, engine: str = "auto") -> float:
    """Largest relative difference from the loop, with dropout and without.

    Equal dropout masks also show that no layer is run one example after another.
    """
    kind, batch = KINDS[name], examples()
    apart = []
    for training in (True, False):
        model.train(training)
        expected = clipped(model, kind, batch, "loop")
        assert float(expected.norms.min()) > 0
        apart.append(difference(clipped(model, kind, batch, engine), expected))
    alone = [clipped(model, kind, batch.alone(row), "loop").norms for row in range(len(batch))]
    assert torch.allclose(torch.cat(alone), expected.norms, rtol=1e-5)
    return max(apart)


@torch.no_grad()
def outputs(model: nn.Module, name: str) -> Tensor:
    """Per-example losses of the test batch, which see every logit."""
    return KINDS[name](model, examples())


def restored(method: Method, model: PreTrainedModel, name: str, folder: Path) -> PreTrainedModel:
    """What ``method`` restores of a saved model, on the base the run began with."""
    method.save(model, folder)
    return method.restore(fresh(name), folder)


@contextmanager
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class Digits:
    """A tokenizer that writes token ids as numbers; none of them ends a text."""

    eos_token_id = 2

    def decode(self, ids: list[int], **settings: object) -> str:
        return " ".join(map(str, ids))


def writer(method: Method) -> PreTrainedModel:
    """A trained GPT-2 whose every token, and its position, matters for the next one."""
    model = fresh("gpt2")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    return shaken(method.prepare(model)).eval()


@torch.no_grad()
def greedy(model: nn.Module, prompt: list[int], steps: int) -> str:
    """The likeliest tokens by whole forward passes, without padding or cache."""
    ids = list(prompt)
    while len(ids) < len(prompt) + steps:
        inputs = torch.tensor([ids])
        logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits
        ids.append(int(logits[0, -1].argmax()))
        if ids[-1] == Digits.eos_token_id:
            return Digits().decode(ids[len(prompt) : -1])
    return Digits().decode(ids[len(prompt) :])


@torch.no_grad()
def greedy_decoder(model: nn.Module, ids: Tensor, steps: int) -> list[int]:
    """As ``greedy``, of an encoder-decoder, from its start token on; padding follows an end."""
    written = [0]
    while len(written) < steps + 1:
        if Digits.eos_token_id in written:
            written.append(0)
            continue
        mask = torch.ones_like(ids)
        decoded = torch.tensor([written])
        logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=decoded).logits
        written.append(int(logits[0, -1].argmax()))
    return written


def without_dropout(model: nn.Module) -> nn.Module:
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return model
