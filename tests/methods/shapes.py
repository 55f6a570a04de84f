"""Small models of each kind, trained for a few private steps and read back, and published sizes."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from dpft.methods.base import METHODS, Method
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.architectures.batches import Examples, Kind, examples
from tests.privacy.clipping.architectures.zoo import EVERY, Case
from tests.privacy.clipping.oracle import (
    TOLERANCE,
    UnitGradients,
    batch_gradients,
    clipped,
    distance,
    unit_gradients,
)

NAMES = {
    "gpt2": "gpt2-tied",
    "bert-masked-lm": "bert-masked-lm",
    "bert-classification": "bert-classification",
    "t5": "t5",
}
"""The kinds of model that every method is tried on, and their names in the clipper's zoo."""
CLASSIFIER = frozenset({"classifier.weight", "classifier.bias"})
"""The new head of the classifier among them."""
SYNTHETIC = (examples((5, 9, 2, 7), seed=11), examples((4, 6, 3), seed=12))
"""Batches for self-checks: ragged rows in no order of length, at two padded lengths."""
BERT_BASE = ("BertConfig", {"vocab_size": 30522})
ROBERTA_BASE = (
    "RobertaConfig",
    {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
)
LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


def published(config: str, options: dict, auto: str = "AutoModel") -> hf.PreTrainedModel:
    """A model of published size, without storage."""
    with torch.device("meta"):
        return getattr(hf, auto).from_config(getattr(hf, config)(**options))


def share(method: Method, model: hf.PreTrainedModel) -> float:
    """Trainable parameters in percent of those the model has before the method adds to it."""
    total = sum(parameter.numel() for parameter in model.parameters())
    prepared = method.prepare(model)
    return 100 * sum(p.numel() for p in prepared.parameters() if p.requires_grad) / total


def case(shape: str) -> Case:
    found = EVERY[NAMES.get(shape, shape)]
    # heads that do not fill d_model, as Flan-T5 small's
    return replace(found, options=found.options | {"d_kv": 6}) if shape == "t5" else found


def fresh(shape: str) -> hf.PreTrainedModel:
    """A small float32 model with random weights far from symmetric, the same at each call.

    In eval mode; in training it has dropout.
    """
    return case(shape).build(dtype=torch.float32, dropout=0.1).eval()


def auto_class(shape: str) -> Any:
    return getattr(hf, case(shape).auto)


def loss_of(shape: str) -> Kind:
    return case(shape).kind


def new_of(shape: str) -> frozenset[str]:
    return CLASSIFIER if shape == "bert-classification" else frozenset()


def shaken(model: hf.PreTrainedModel) -> hf.PreTrainedModel:
    """Move what is trainable far from where a method starts it, as training would."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def prepared(method: Method, shape: str, new: frozenset[str] = frozenset()) -> hf.PreTrainedModel:
    """A prepared model after some training, in eval mode."""
    return shaken(method.prepare(fresh(shape), new)).eval()


def trained_names(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def recipe(name: str, **settings) -> Method:
    return METHODS.named(name)(name=name, **settings)


def train(model: nn.Module, kind: Kind, steps: int = 3) -> None:
    """A few steps of descent along the clipped sum."""
    with PerExampleClipper(model, kind, 0.5) as clipper:
        clipper.self_check(*SYNTHETIC)
        for step in range(steps):
            model.zero_grad()
            clipper.accumulate(examples(seed=step))
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.sub_(0.5 * parameter.grad)


@torch.no_grad()
def logits(model: nn.Module, kind: Kind | str) -> Tensor:
    """What the model computes for a batch; its kind may be given by a name."""
    seen: list[Tensor] = []
    handle = model.register_forward_hook(lambda *call: seen.append(call[2].logits))
    (loss_of(kind) if isinstance(kind, str) else kind)(model, examples())
    handle.remove()
    return seen[0]


def read_back(method: Method, model: nn.Module, shape: str, folder: Path) -> nn.Module:
    """Save a model, and load it as a user would."""
    method.save(model, folder)
    if method.saves_whole_model:
        return auto_class(shape).from_pretrained(folder).eval()
    return method.restore(fresh(shape), folder).eval()


def assert_exact(
    model: nn.Module,
    kind: Kind | str,
    engine: str = "book_keeping",
    *,
    expected: UnitGradients | None = None,
) -> UnitGradients:
    """Assert that norms and clipped sums are those of examples executed separately, unpadded.

    Args:
        model: The model.
        kind: How its losses are computed, or the name of its shape.
        engine: The clipping engine.
        expected: The gradients, if they are known; None: those of ``model``.

    Returns:
        The gradients of the examples.
    """
    kind, batch = loss_of(kind) if isinstance(kind, str) else kind, examples()
    expected = expected or unit_gradients(model, kind, batch, alone=rows_of(batch))
    norm, alone = expected.median_norm(), [rows_of(each) for each in SYNTHETIC]
    got = clipped(model, kind, [batch], norm, synthetic=SYNTHETIC, alone=alone, engine=engine)
    error = distance(got, expected, norm)
    assert error <= TOLERANCE, f"relative error {error:.1e}"
    return expected


def assert_exact_with_dropout(model: nn.Module, shape: str) -> None:
    """Assert that the masks are those that the model draws for a whole batch."""
    kind, batch = loss_of(shape), examples()
    model.train()
    expected = batch_gradients(model, kind, batch, seed=3)
    norm = expected.median_norm()
    got = clipped(model, kind, [batch], norm, synthetic=SYNTHETIC, engine="book_keeping", seed=3)
    assert distance(got, expected, norm) <= TOLERANCE
    model.eval()


def rows_of(batch: Examples) -> list[Examples]:
    """Each example of a batch, unpadded."""
    return [batch.alone(row) for row in range(len(batch))]


def restored(
    method: Method, model: hf.PreTrainedModel, name: str, folder: Path
) -> hf.PreTrainedModel:
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


def writer(method: Method) -> hf.PreTrainedModel:
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
