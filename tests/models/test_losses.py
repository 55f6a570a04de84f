from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    PreTrainedModel,
)

from dpft.constants import (
    CAUSAL,
    CLASSES,
    CLASSIFIER,
    LABEL_WORDS,
    MASKED,
    SCORE,
    SEQ2SEQ,
    TEXT,
)
from dpft.data.batches import Batch, TextLayout
from dpft.data.tokenization import TokenizedExample
from dpft.models.architecture import PooledClassifier
from dpft.models.losses import per_example_losses, token_nll
from tests.clipped_batches import clipped_batches
from tests.models import small
from tests.privacy.clipping.oracle import (
    TOLERANCE,
    UnitGradients,
    batch_gradients,
    distance,
    unit_gradients,
)
from tests.slowness import slow_but

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
    """Return -log p of each target token given all before it, one example and no padding."""
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


WORDS = (9, 4, 30)
LENGTHS = (7, 3, 11, 2)


@dataclass(frozen=True)
class Case:
    """A model, how its rows lie, and four rows of ragged lengths."""

    model: PreTrainedModel
    layout: TextLayout
    rows: Sequence[TokenizedExample]

    def losses(self, *rows: int) -> Tensor:
        chosen = [self.rows[row] for row in rows or range(len(self.rows))]
        return per_example_losses(self.model, self.layout.collate(chosen))


def row_of(length: int, layout: TextLayout, generator: torch.Generator) -> TokenizedExample:
    ids = torch.randint(5, 40, (length,), generator=generator).tolist()
    if layout.answer == TEXT:
        written = torch.randint(5, 40, (12 - length,), generator=generator).tolist()
        return TokenizedExample(input_ids=ids, labels=[*written, 1])
    if layout.answer == SCORE:
        return TokenizedExample(input_ids=ids, labels=[length / 3])
    count = len(layout.words) or layout.outputs
    labels = torch.rand(count, generator=generator).softmax(0).tolist()
    types = [0] * (length - 1) + [1] if layout.kind == CLASSIFIER else None
    answer = length // 2 if layout.kind == MASKED else length - 1
    return TokenizedExample(input_ids=ids, labels=labels, token_type_ids=types, answer=answer)


def classifier(made, config, outputs: int = 3) -> PreTrainedModel:
    config.num_labels = outputs
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return small.shaken(made(config))


words_of = {"answer": LABEL_WORDS, "words": WORDS}
seq2seq = {"kind": SEQ2SEQ, "takes_position_ids": False, "decoder_start_token_id": 0}
classes = {"kind": CLASSIFIER, "answer": CLASSES, "outputs": 3}
MAKERS = {
    "bert-words": (lambda: small.language_model("bert"), TextLayout(kind=MASKED, **words_of)),
    "roberta-words": (
        lambda: small.language_model("roberta"),
        TextLayout(kind=MASKED, pad_token_id=1, takes_position_ids=False, **words_of),
    ),
    "gpt2-words": (lambda: small.language_model("gpt2"), TextLayout(kind=CAUSAL, **words_of)),
    "t5-words": (lambda: small.language_model("t5"), TextLayout(**seq2seq, **words_of)),
    "t5-text": (lambda: small.language_model("t5"), TextLayout(**seq2seq)),
    "bert-classes": (
        lambda: classifier(BertForSequenceClassification, small.bert_config()),
        TextLayout(**classes),
    ),
    "bert-mean-classes": (
        lambda: classifier(PooledClassifier, small.bert_config()),
        TextLayout(**classes),
    ),
    "bert-score": (
        lambda: classifier(BertForSequenceClassification, small.bert_config(), 1),
        TextLayout(kind=CLASSIFIER, answer=SCORE),
    ),
    "gpt2-classes": (
        lambda: classifier(GPT2ForSequenceClassification, small.gpt2_config(pad_token_id=1)),
        TextLayout(**classes, pad_token_id=1, takes_token_types=False),
    ),
}


@pytest.fixture(params=MAKERS)
def case(request) -> Case:
    make, layout = MAKERS[request.param]
    generator = torch.Generator().manual_seed(2)
    return Case(make(), layout, [row_of(length, layout, generator) for length in LENGTHS])


def expected_loss(case: Case, row: TokenizedExample) -> Tensor:
    """The definition, for one row without padding."""
    inputs = {"input_ids": torch.tensor([row.input_ids])}
    if row.token_type_ids is not None and case.model.config.model_type == "bert":
        inputs["token_type_ids"] = torch.tensor([row.token_type_ids])
    if case.layout.kind == SEQ2SEQ and case.layout.answer == TEXT:
        return case.model(**inputs, labels=torch.tensor([row.labels])).loss
    if case.layout.kind == SEQ2SEQ:
        inputs["decoder_input_ids"] = torch.tensor([[0]])
    if case.model.__class__ is PooledClassifier:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    logits = case.model(**inputs).logits[0]
    if case.layout.answer == SCORE:
        return (logits[0] - row.labels[0]) ** 2
    if case.layout.answer == LABEL_WORDS:
        place = 0 if case.layout.kind == SEQ2SEQ else row.answer
        logits = torch.stack([logits[place][word] for word in WORDS])
    return -sum(p * q for p, q in zip(row.labels, torch.log(logits.softmax(0)), strict=True))


def test_every_kinds_loss_equals_its_definition_on_single_unpadded_rows(case):
    # a text's: the loss that transformers computes of one row's labels
    expected = torch.stack([expected_loss(case, row) for row in case.rows])
    assert torch.allclose(case.losses(), expected, rtol=1e-5, atol=1e-6)


def test_every_kinds_loss_and_gradient_depend_on_their_own_row_only(case):
    parameters = list(case.model.parameters())

    def gradient(loss: Tensor) -> Tensor:
        found = torch.autograd.grad(loss, parameters, materialize_grads=True)
        return torch.cat([each.flatten() for each in found])

    for row in range(len(case.rows)):
        others = [other for other in range(len(case.rows)) if other != row]
        alone, among = case.losses(row)[0], case.losses(row, *others)[0]
        assert torch.allclose(among, alone, rtol=1e-5, atol=1e-6)
        assert torch.allclose(gradient(among), gradient(alone), rtol=1e-4, atol=1e-6)


def assert_exact(case: Case, expected: UnitGradients, **options: Any) -> None:
    norm, batch = expected.median_norm(), case.layout.collate(case.rows)
    got = clipped_batches(
        case.model, [batch], norm, layout=case.layout, engine="book_keeping", **options
    )
    assert distance(got, expected, norm) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(["bert-words", "gpt2-classes"], MAKERS), indirect=True)
def test_every_kinds_gradients_are_clipped_as_those_of_unpadded_rows(case):
    batch, rows = case.layout.collate(case.rows), [case.layout.collate([row]) for row in case.rows]
    assert_exact(case, unit_gradients(case.model, per_example_losses, batch, alone=rows))


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(["gpt2-classes"], MAKERS), indirect=True)
def test_every_kinds_gradients_are_clipped_with_the_masks_that_the_model_draws(case):
    case.model.train()
    batch = case.layout.collate(case.rows)
    assert_exact(case, batch_gradients(case.model, per_example_losses, batch, seed=3), seed=3)


def test_a_model_without_a_language_head_writes_no_texts():
    make, layout = MAKERS["bert-classes"]
    rows = [TokenizedExample(input_ids=[5, 6], labels=[5, 6])]
    with pytest.raises(ValueError, match="classifier model writes no texts"):
        per_example_losses(make(), TextLayout(kind=layout.kind).collate(rows))
