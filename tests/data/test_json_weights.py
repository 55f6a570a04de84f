"""What the tokens of JSON count: by hand, on any cut into tokens, and in clipped gradients."""

import json
import random

import pytest
import torch
from torch.nn import functional

from dpft.data.batches import TextLayout
from dpft.data.json_weights import JsonWeights
from dpft.data.tokenization import TokenizedExample
from dpft.kinds import IGNORED_LABEL
from dpft.models.losses import per_example_losses, token_nll
from dpft.privacy.clipping import PerExampleClipper
from tests.models import small


class Letters:
    """A tokenizer of pieces that are given."""

    eos_token_id = 0

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = ["<end>", *pieces]

    def decode(self, ids: list[int], **_: object) -> str:
        return self.pieces[ids[0]]


def counted(pieces: list[str], weights: tuple[float, ...]) -> list[float]:
    made = JsonWeights(weights=weights, tokenizer=Letters(pieces))  # type: ignore[arg-type]
    ids = list(range(1, len(pieces) + 1))
    return made.of([IGNORED_LABEL, *ids, 0, IGNORED_LABEL])[1:-1]


def test_each_token_counts_as_the_stretch_of_its_first_letter() -> None:
    by_hand = {
        ' "a': 2, "ge": 2, '":': 2, "4": 3, '2,"': 3, "note": 4, '":"': 4, "a, b": 5, r" \"c:": 5,
        "\\": 5, '"d': 5, '",': 5, "[1": 1, "}": 1,
    }  # fmt: skip
    assert counted([*by_hand], (2, 3, 4, 5)) == [*by_hand.values(), 1]


def test_however_it_is_cut_each_letter_of_a_row_counts_as_its_own_value() -> None:
    """Against json: a value that is put in place of another moves no other value's stretch."""
    choose = random.Random(5)
    letters = 'a,:"\\ }{][é\n'
    for _ in range(200):
        values = [
            "".join(choose.choices(letters, k=choose.randint(0, 6))) if choose.random() < 0.7
            else choose.randint(-9, 99) for _ in range(4)
        ]  # fmt: skip
        texts = [json.dumps(value, ensure_ascii=False) for value in values]
        joined = ",".join(texts)
        expected = [
            float(at + 2) for at, text in enumerate(texts) for _ in ("," if at else "") + text
        ]
        weights = tuple(float(at + 2) for at in range(4))
        assert counted(list(joined), weights)[:-1] == expected
        cuts = sorted(choose.sample(range(1, len(joined)), min(3, len(joined) - 1)))
        ends = [0, *cuts, len(joined)]
        pieces = [joined[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        assert counted(pieces, weights)[:-1] == [expected[at] for at in ends[:-1]]


@pytest.fixture(scope="module")
def layout() -> TextLayout:
    tokenizer = Letters(['"a"', ":1", ',"t"', ':"', "x", "y z", '"', "}"])
    weights = JsonWeights(weights=(1, 2, 1, 5), tokenizer=tokenizer)  # type: ignore[arg-type]
    return TextLayout(token_weights=weights)


ROWS = [[8, 1, 2, 3, 4, 5, 6, 7, 8, 0], [8, 1, 2, 8, 0], [1, 2, 3, 4, 5, 5, 5, 5, 5], [3, 3]]
"""Prompts of one token, but the last, which is all prompt."""


def rows() -> list[TokenizedExample]:
    found = []
    for number, ids in enumerate(ROWS):
        given = 1 if number < 3 else len(ids)
        labels = [IGNORED_LABEL] * given + ids[given:]
        found.append(TokenizedExample(input_ids=ids, labels=labels))
    return found


WEIGHTS = [[1, 2, 1, 5, 5, 5, 5, 5, 1], [1, 2, 2, 1], [2, 1, 5, 5, 5, 5, 5, 5], []]


def test_losses_are_means_by_weight_and_perplexity_is_of_all_alike(layout: TextLayout) -> None:
    model = small.language_model("gpt2")
    whole = layout.collate(rows())
    losses = per_example_losses(model, whole)
    sums, tokens = token_nll(model, whole)
    for at, ids in enumerate(ROWS):
        weights = torch.tensor(WEIGHTS[at], dtype=torch.float32)
        if not len(weights):
            assert losses[at] == 0
            continue
        logits = model(input_ids=torch.tensor([ids])).logits[0, -len(weights) - 1 : -1]
        each = functional.cross_entropy(
            logits, torch.tensor(ids[-len(weights) :]), reduction="none"
        )
        torch.testing.assert_close(losses[at], (each * weights).sum() / weights.sum())
        torch.testing.assert_close(sums[at], each.sum())
    assert tokens.tolist() == [9, 4, 8, 0]


@pytest.mark.parametrize("norm", [1e-2, 1.0])
def test_weighted_gradients_are_clipped_as_one_at_a_time(layout: TextLayout, norm: float) -> None:
    model = small.language_model("gpt2")
    model.eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    expected = torch.zeros(sum(p.numel() for p in parameters))
    for row in rows()[:3]:
        (loss,) = per_example_losses(model, layout.collate([row]))
        own = torch.autograd.grad(loss, parameters, allow_unused=True)
        pairs = zip(own, parameters, strict=True)
        flat = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])
        expected += flat * min(1.0, norm / float(flat.norm()))
    batch = layout.collate(rows())
    with PerExampleClipper(model, max_grad_norm=norm) as clipper:
        clipper.accumulate(lambda: per_example_losses(model, batch))
    found = torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]
    )
    assert float(expected.norm()) > 0.5 * norm
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * norm)
