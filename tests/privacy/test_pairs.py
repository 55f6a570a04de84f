"""A preference pair is one unit of two rows: exact losses and clipped gradients."""

import itertools
from dataclasses import replace

import pytest
import torch

from dpft.data.batches import collated_units
from dpft.data.preference_loss import PreferenceLoss
from dpft.data.preference_rows import PairLayout, TokenizedPair
from dpft.data.tokenization import TokenizedExample
from dpft.methods.base import METHODS
from dpft.models.losses import per_example_losses, token_nll
from tests.clipped_batches import clipped_batches
from tests.privacy.clipping.oracle import TOLERANCE, distance, gradient_of, unit_gradients
from tests.slowness import slow_but
from tests.training.toy import VOCABULARY, tiny_model

LENGTHS = ((9, 4), (3, 12), (7, 7), (12, 5))
"""Tokens of the chosen and the rejected row of each pair."""


def row(length: int, generator: torch.Generator) -> TokenizedExample:
    ids = torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()
    return TokenizedExample(input_ids=ids, labels=[-100, -100, *ids[2:]])


def pairs() -> list[TokenizedPair]:
    generator = torch.Generator().manual_seed(7)
    return [
        TokenizedPair(
            chosen=row(chosen, generator), rejected=row(rejected, generator),
            references=(-2.5 * chosen, -2.0 * rejected),
        )
        for chosen, rejected in LENGTHS
    ]  # fmt: skip


def layout_of(objective: str) -> PairLayout:
    return PairLayout(pad_token_id=0, loss=PreferenceLoss(objective=objective, beta=0.3))


def model_of(method: str):
    model = METHODS.named(method)(name=method).prepare(tiny_model(), frozenset()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("objective", ["dpo", "ipo", "orpo"])
def test_losses_and_gradients_are_those_of_rows_that_run_separately_and_unpadded(
    objective: str,
) -> None:
    layout, model = layout_of(objective), model_of("full").double()
    batch = layout.collate(pairs())
    losses = per_example_losses(model, batch)
    assert (losses[1::2] == 0).all()
    for number, pair in enumerate(pairs()):
        sums, counts = [], []
        for one in (pair.chosen, pair.rejected):
            logits = model(input_ids=torch.tensor([one.input_ids])).logits[0]
            ids = torch.tensor(one.input_ids[2:])
            sums.append(-logits[1:-1].log_softmax(dim=-1)[range(len(ids)), ids].sum())
            counts.append(len(ids))
        references = torch.tensor(pair.references, dtype=torch.float64)
        expected = layout.loss(torch.stack(sums), torch.tensor(counts), references)[0]
        assert losses[2 * number].item() == pytest.approx(expected.item(), rel=1e-6)
        actual = gradient_of(model, losses[2 * number], retain_graph=True)
        for name, gradient in gradient_of(model, expected).items():
            assert (actual[name] - gradient).abs().max() <= 1e-6 * max(1, gradient.abs().max())


@pytest.mark.parametrize(
    ("objective", "method", "engine"),
    slow_but(
        [("dpo", "full", "book_keeping")],
        itertools.product(("dpo", "ipo", "orpo"), ("full", "lora", "bitfit"),
                          ("book_keeping", "rows", "auto")),
    ),
)  # fmt: skip
def test_the_clipped_sum_is_that_of_single_example_execution(
    objective: str, method: str, engine: str
) -> None:
    layout, model = layout_of(objective), model_of(method)
    batch = collated_units([[pair] for pair in pairs()], layout)
    assert (len(batch), batch.rows_per_unit) == (8, 2)
    alone = [layout.collate([pair]) for pair in pairs()]
    expected = unit_gradients(model, per_example_losses, batch, 2, alone)
    norm = expected.median_norm()
    got = clipped_batches(model, [batch], norm, layout=layout, engine=engine)
    assert distance(got, expected, norm) <= TOLERANCE


def test_the_pairs_of_a_person_are_one_unit() -> None:
    layout, model = layout_of("dpo"), model_of("full")
    first, second, third, fourth = pairs()
    batch = collated_units([[first, second, third], [fourth]], layout)
    assert (len(batch), batch.rows_per_unit) == (12, 6)
    assert batch.is_filler.tolist() == [False] * 8 + [True] * 4
    alone = [replace(layout.collate(unit), rows_per_unit=2 * len(unit))
             for unit in ([first, second, third], [fourth])]  # fmt: skip
    expected = unit_gradients(model, per_example_losses, batch, 6, alone)
    norm = expected.median_norm()
    got = clipped_batches(model, [batch], norm, layout=layout, has_units=True)
    assert distance(got, expected, norm) <= TOLERANCE


def test_likelihoods_of_a_batch_of_pairs_alternate() -> None:
    layout, model = layout_of("dpo"), model_of("full")
    sums, counts = token_nll(model, layout.collate(pairs()))
    assert counts.tolist() == [length - 2 for pair in LENGTHS for length in pair]
    alone, _ = token_nll(model, layout.collate(pairs()[1:2]))
    assert torch.allclose(sums[2:4], alone, atol=1e-5)
