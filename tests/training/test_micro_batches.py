"""How a draw is cut and padded changes no clipped sum: against each record alone, unpadded."""

from dataclasses import replace

import pytest
import torch
from transformers import BertForSequenceClassification

from dpft.data.batches import TextLayout, synthetic_rows
from dpft.kinds import CAUSAL, CLASSES, CLASSIFIER, LABEL_WORDS, MASKED, SEQ2SEQ
from dpft.models.losses import per_example_losses
from dpft.privacy.clipping import PerExampleClipper
from dpft.training.loop import TrainingSet
from tests.models.small import bert_config, language_model, shaken
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


def made(kind: str) -> torch.nn.Module:
    if kind != "classifier":
        return language_model(kind).double()
    torch.manual_seed(0)
    return shaken(BertForSequenceClassification(bert_config())).double()


def clipped_sum(
    kind: str, engine: str, indices: range, layout: TextLayout, **limits: object
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Returns the sum, and all norms in order of size."""
    model = made(kind)
    data = TrainingSet(
        examples=synthetic_rows(LAYOUTS[kind], 9, LONGEST, vocab_size=40),
        layout=layout, device=torch.device("cpu"), **limits,
    )  # fmt: skip
    norms = [torch.zeros(0)]
    with PerExampleClipper(model, 0.05, engine=engine) as clipper:
        for batch in data.micro_batches(indices):
            units = None if data.units is None else torch.arange(len(batch)) // batch.rows_per_unit
            norms.append(
                clipper.accumulate(lambda now=batch: per_example_losses(model, now), units)
            )
    sums = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return sums, torch.cat(norms).sort().values


@pytest.mark.parametrize("by_unit", slow_but([True], [False, True]))
@pytest.mark.parametrize("kind", slow_but(["roberta", "t5"], LAYOUTS))
def test_tokens_and_length_buckets_change_no_norm_and_no_sum(kind, by_unit):
    units = UNITS if by_unit else None
    indices = range(9 if units is None else len(UNITS))
    expected, norms = clipped_sum(
        kind, "loop", indices, LAYOUTS[kind], micro_batch_size=1, units=units
    )
    padded = replace(LAYOUTS[kind], pad_to_multiple_of=8, max_length=LONGEST)
    limits = {"micro_batch_size": 100, "micro_batch_tokens": 3 * LONGEST, "units": units}
    got, found = clipped_sum(kind, "book_keeping", indices, padded, **limits)
    assert torch.allclose(found, norms, rtol=1e-8)
    assert expected.keys() == got.keys()
    for name, total in expected.items():
        assert torch.allclose(got[name], total, rtol=1e-7, atol=1e-10), name


def test_an_empty_draw_adds_nothing():
    padded = replace(LAYOUTS["gpt2"], pad_to_multiple_of=8)
    got, norms = clipped_sum(
        "gpt2", "book_keeping", range(0), padded, micro_batch_size=4, micro_batch_tokens=80
    )
    assert got == {} and len(norms) == 0
