"""How often losses are computed, on how many rows, and what is refused before any is used."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpft.errors import RunError
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.oracle import gpt2
from tests.slowness import slow_but

ENGINES = ("book_keeping", "two_pass", "instantiate", "loop")
IDS = torch.randint(0, 61, (12, 9), generator=torch.Generator().manual_seed(0))


def counted(model, ids=IDS):
    """Losses of a causal model, and the numbers of rows that they were computed on."""
    rows = []

    def losses():
        logits = model(input_ids=ids).logits[:, :-1]
        rows.append(len(logits))
        each = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        return each.mean(1)

    return losses, rows


@pytest.mark.parametrize(
    ("engine", "dropout"), [(engine, 0.1) for engine in ENGINES] + [("book_keeping", 0.0)]
)
def test_a_first_batch_is_compared_on_three_choices_of_rows_and_proved_on_one(engine, dropout):
    model = gpt2(dropout=dropout).train()
    losses, rows = counted(model)
    with PerExampleClipper(model, 0.5, engine=engine) as clipper:
        clipper.accumulate(losses)
        assert rows == ([12, 6, 6, 8, 12] if engine == "loop" else [12, 6, 6, 8, 8, 12])


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_the_16th_batch_is_checked_again_and_others_are_computed_once(engine):
    model = gpt2(dropout=0.1).train()
    losses, rows = counted(model)
    with PerExampleClipper(model, 0.5, engine=engine) as clipper:
        clipper.accumulate(losses)
        for number in range(2, 18):
            rows.clear()
            clipper.accumulate(losses)
            assert rows == ([12, 6, 6, 8, 12] if number == 16 else [12])


class Late(nn.Module):
    """Mixes its rows, unseen by any gradient, from a certain call in training on."""

    def __init__(self, start):
        super().__init__()
        self.dense, self.start = nn.Linear(3, 1), start

    def forward(self, x):
        mixed = 0.01 * x.detach().mean() if self.start <= 0 else 0.0
        return (self.dense(x) + mixed)[:, 0]


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_what_begins_to_mix_later_is_seen_at_the_16th_batch(engine):
    model, x = Late(start=1), torch.randn(5, 3)
    with PerExampleClipper(model, 0.5, engine=engine) as clipper:
        for _ in range(15):
            clipper.accumulate(lambda: model(x))
            model.start = 0
        with pytest.raises(RunError, match="of Late for one example changes with the other"):
            clipper.accumulate(lambda: model(x))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_divided_by_the_tokens_of_its_batch_is_refused_and_adds_nothing(engine):
    model, labels = nn.Linear(3, 4), torch.tensor([0, 1, -100, 2, 3])
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))

    def losses():
        each = F.cross_entropy(model(x), labels, reduction="none")
        return each / (labels != -100).sum()

    with (
        PerExampleClipper(model, 0.5, engine=engine) as clipper,
        pytest.raises(RunError, match="count of the batch's tokens"),
    ):
        clipper.accumulate(losses)
    assert model.weight.grad is None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_norm_passes_while_it_evaluates_and_is_refused_once_it_trains(engine):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval(), torch.randn(5, 3)
    with PerExampleClipper(model, 0.5, engine=engine) as clipper:
        clipper.accumulate(lambda: model(x).square().sum(1))
        model.train()
        with pytest.raises(RunError, match="normalizes over the batch"):
            clipper.accumulate(lambda: model(x).square().sum(1))
    assert int(model[1].num_batches_tracked) == 0


def test_the_last_computation_is_the_one_that_is_used_on_all_rows():
    model, seen = nn.Linear(3, 1), []
    x = torch.randn(6, 3)

    def losses():
        seen.append(model(x)[:, 0])
        return seen[-1]

    with PerExampleClipper(model, 0.5) as clipper:
        clipper.accumulate(losses)
    assert len(seen[-1]) == 6 and seen[-1].grad_fn is not None
