"""Micro-batches and padding change no clipped sum: compared with each unit by itself, unpadded."""

from dataclasses import replace

import pytest
import torch
from transformers import BertForSequenceClassification

from dpft.constants import CAUSAL, CLASSES, CLASSIFIER, LABEL_WORDS, MASKED, SEQ2SEQ
from dpft.data.batches import TextLayout, synthetic_rows
from dpft.models.losses import per_example_losses
from dpft.training.loop import TrainingSet
from tests.clipped_batches import clipped_batches
from tests.models.small import bert_config, language_model, shaken
from tests.privacy.clipping.oracle import (
    Clipped,
    UnitGradients,
    distance,
    gradient_of,
    total_norm,
)
from tests.slowness import slow_but

LONGEST = 20
UNITS = [[0, 5], [1], [], [2, 3, 4], [6, 7, 8]]
LAYOUTS = {
    "gpt2": TextLayout(kind=CAUSAL),
    "bert": TextLayout(kind=MASKED, answer=LABEL_WORDS, words=(3, 9)),
    "roberta": TextLayout(
        kind=MASKED, answer=LABEL_WORDS, words=(3, 9), pad_token_id=1, takes_position_ids=False
    ),
    "t5": TextLayout(kind=SEQ2SEQ, takes_position_ids=False, takes_token_types=False),
    "classifier": TextLayout(kind=CLASSIFIER, answer=CLASSES, outputs=2),
}


EXAMPLES = {
    kind: synthetic_rows(layout, 9, LONGEST, vocab_size=40) for kind, layout in LAYOUTS.items()
}


def made(kind: str) -> torch.nn.Module:
    if kind != "classifier":
        return language_model(kind).double()
    torch.manual_seed(0)
    return shaken(BertForSequenceClassification(bert_config())).double()


def clipped_sum(kind: str, indices: range, layout: TextLayout, **limits: object) -> Clipped:
    """Return the sum, and all norms in order of size."""
    data = TrainingSet(examples=EXAMPLES[kind], layout=layout, device=torch.device("cpu"), **limits)
    got = clipped_batches(
        made(kind), data.micro_batches(indices), 0.05,
        layout=layout, has_units=data.units is not None, engine="book_keeping",
    )  # fmt: skip
    return replace(got, norms=got.norms.sort().values)


@pytest.mark.slow
@pytest.mark.parametrize("by_unit", slow_but([True], [False, True]))
@pytest.mark.parametrize("kind", slow_but(["roberta"], LAYOUTS))
def test_tokens_and_length_buckets_change_no_norm_and_no_sum(kind, by_unit):
    model, units = made(kind), UNITS if by_unit else [[record] for record in range(9)]
    gradients = []
    for unit in filter(None, units):
        batch = LAYOUTS[kind].collate([EXAMPLES[kind][record] for record in unit])
        gradients.append(gradient_of(model, per_example_losses(model, batch).sum()))
    expected = UnitGradients(sorted(gradients, key=total_norm), torch.empty(0))
    padded = replace(LAYOUTS[kind], pad_to_multiple_of=8, max_length=LONGEST)
    limits = {"micro_batch_size": 100, "micro_batch_tokens": 3 * LONGEST}
    got = clipped_sum(kind, range(len(units)), padded, units=units if by_unit else None, **limits)
    assert distance(got, expected, 0.05) <= 1e-8


@pytest.mark.slow
def test_an_empty_draw_adds_nothing():
    padded = replace(LAYOUTS["gpt2"], pad_to_multiple_of=8)
    got = clipped_sum("gpt2", range(0), padded, micro_batch_size=4, micro_batch_tokens=80)
    assert len(got.norms) == 0 and not any(bool(g.any()) for g in got.gradients.values())
