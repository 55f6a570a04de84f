"""A function that holds its batch runs on some of its rows."""

from contextlib import nullcontext
from inspect import signature

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpft.privacy.clipping.separation.row_subset import (
    MOST_ROWS,
    ModelCalls,
    RowSubset,
    Survey,
    choose_other_rows,
    choose_rows,
    is_compiled,
)

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(5)
ROWS = torch.tensor([4, 0, 2])


def on_rows(function, *, whole=(), protected=(), units=None):
    subset = RowSubset(protected, whole)
    subset.choose(ROWS, count=5, units=units)
    with subset:
        return function(), subset


def test_values_shapes_lengths_and_lists_are_those_of_the_rows():
    (values, sizes, listed), _ = on_rows(
        lambda: (X * 2, (len(X), X.shape[0], X.size(0)), [int(label) for label in LABELS])
    )
    assert torch.equal(values, X[ROWS] * 2) and sizes == (3, 3, 3) and listed == [4, 0, 2]


def test_what_was_computed_from_rows_is_not_cut_again():
    losses, _ = on_rows(lambda: (X.repeat(2, 1)[:5] + 1).sum(1))
    assert torch.allclose(losses, (X[ROWS].repeat(2, 1)[:5] + 1).sum(1))


def test_weights_are_no_rows_though_they_have_as_many():
    layer, buffer = nn.Linear(3, 5), torch.arange(5.0)
    out, _ = on_rows(lambda: (layer(X), buffer + 0), protected=[buffer])
    assert torch.allclose(out[0], layer(X)[ROWS]) and torch.equal(out[1], buffer)


def test_class_weights_can_be_left_whole():
    weights = torch.linspace(1, 2, 5)
    compute = lambda: F.cross_entropy(X @ torch.ones(3, 5), LABELS, weights, reduction="none")  # noqa: E731
    with pytest.raises(RuntimeError):
        on_rows(compute)
    losses, subset = on_rows(compute, whole=(2,))
    assert torch.allclose(losses, compute()[ROWS]) and subset.met == 3


def test_what_has_an_entry_for_each_unit_is_cut_too():
    per_unit = torch.tensor([10.0, 20.0])
    cut, _ = on_rows(lambda: per_unit + 0, units=(torch.tensor([1]), 2))
    assert cut.tolist() == [20.0]


def test_the_first_argument_of_a_model_is_its_rows():
    subset = RowSubset((), whole=(0,))
    subset.choose(ROWS, count=5)
    with pytest.raises(ValueError, match="carries the batch"):
        subset.rows_of(((X,), {"mask": LABELS}))
    subset = RowSubset((), whole=(1,))
    subset.choose(ROWS, count=5)
    (x,), options = subset.rows_of(((X,), {"mask": LABELS}))
    assert torch.equal(x, X[ROWS]) and options["mask"] is LABELS


def test_asleep_it_takes_nothing():
    subset = RowSubset(())
    subset.choose(ROWS, count=5)
    with subset, subset.asleep():
        assert len(X + 1) == 5


def rows_of(count, units=None, losses=None, masks=None):
    arguments = ((torch.ones(count, 3),), {} if masks is None else {"mask": masks})
    return choose_rows(arguments, count, units, losses).tolist()


@pytest.mark.parametrize("count", [4, 5, 8, 9, 40])
def test_few_rows_are_others_than_all_and_in_another_order(count):
    rows = rows_of(count)
    assert 3 <= len(rows) <= min(count - 1, MOST_ROWS) and len(set(rows)) == len(rows)
    assert rows != sorted(rows)


def test_of_two_or_three_rows_one_comes_twice_and_one_row_is_itself():
    assert sorted(rows_of(3)) == [0, 1, 2, 2]
    assert sorted(rows_of(2)) == [0, 1, 1] and rows_of(1) == [0] and rows_of(0) == []


def test_the_rows_of_extreme_losses_and_the_fullest_are_left_out():
    masks = torch.ones(6, 4, dtype=torch.long)
    masks[[0, 1, 2, 3, 5], 3] = 0
    losses = torch.tensor([1.0, 9.0, 2.0, 3.0, 4.0, 5.0])
    assert sorted(rows_of(6, losses=losses, masks=masks)) == [2, 3, 5]


def test_rows_of_a_long_batch_are_of_every_length():
    masks = (torch.arange(64) < torch.arange(64)[:, None] + 1).long()
    lengths = [row + 1 for row in rows_of(64, masks=masks)]
    assert min(lengths) == 1 and 40 < max(lengths) < 64 and len(lengths) == MOST_ROWS


def test_the_number_of_rows_is_no_other_size():
    assert len(choose_rows(((torch.ones(20, 8, 7),), {}), 20, None)) == 6


def test_rows_of_a_unit_stay_together_and_in_their_order():
    units = torch.arange(6).repeat(2)
    rows = rows_of(12, units=units)
    assert rows == sorted(rows) and len(rows) <= MOST_ROWS
    assert all(units[rows].tolist().count(unit) == 2 for unit in units[rows].tolist())


@pytest.mark.parametrize("count", [2, 3, 4, 5, 9, 40])
def test_no_row_is_in_all_three_choices_and_the_second_largest_is_beside_no_larger_one(count):
    losses = torch.randn(count, generator=torch.Generator().manual_seed(count))
    *_, second, largest = losses.argsort().tolist()
    choices = [set(rows.tolist()) for rows in choose_other_rows(count, None, losses)]
    choices.append(set(rows_of(count, losses=losses)))
    assert len(choices) == 3 and not set.intersection(*choices)
    assert all(len(rows) <= MOST_ROWS for rows in choices)
    assert any(largest in rows and second not in rows for rows in choices)
    assert any(largest not in rows for rows in choices)
    assert any(second not in rows for rows in choices)


@pytest.mark.parametrize("number", [2, 3, 4, 6])
def test_no_unit_is_in_all_three_choices(number):
    units = torch.arange(number).repeat(2)
    losses = torch.randn(2 * number, generator=torch.Generator().manual_seed(number))
    chosen = [choose_rows(((losses,), {}), len(units), units, losses)]
    chosen += choose_other_rows(len(units), units, losses)
    assert not set.intersection(*(set(units[rows].tolist()) for rows in chosen))
    assert all(len(rows) == 2 * len(units[rows].unique()) for rows in chosen)


def test_one_row_or_unit_has_no_other_choice():
    assert choose_other_rows(1, None, torch.ones(1)) == []
    assert choose_other_rows(3, torch.zeros(3, dtype=torch.long), torch.ones(3)) == []


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(3, 2)
        self.seen = []

    def forward(self, x, scale=1.0):
        self.seen.append(len(x))
        return {"out": self.dense(x) * scale}


@pytest.fixture
def watched():
    model = Model()
    calls = ModelCalls(model)
    model.forward = calls.watched(lambda *a, **k: Model.forward(model, *a, **k))
    return model, calls


def surveyed(model, calls, compute):
    with calls.training(lambda _: True, None):
        losses = compute()
    calls.survey.choose(losses)
    return losses


def test_a_call_of_a_known_kind_passes_and_shows_the_models_own_signature(watched):
    model, calls = watched
    met = []
    with calls.training(lambda arguments: bool(met.append(arguments)), None):
        assert model(X)["out"].grad_fn is not None
        with torch.no_grad():
            model(X)
    assert len(met) == 1 and calls.survey is None
    assert list(signature(model.forward).parameters) == ["x", "scale"]


def test_a_survey_answers_without_the_models_graph_but_lets_a_caller_ask_for_gradients(watched):
    model, calls = watched

    def compute():
        out = model(X)["out"]
        out.register_hook(lambda gradient: gradient)
        return out.sum(1)

    surveyed(model, calls, compute)
    survey = calls.survey
    assert survey.count == 5 and torch.equal(survey.inputs[0], X) and not survey.drawn
    with calls.training(lambda _: True, None):
        assert model(X)["out"].grad_fn is None


def test_a_survey_knows_whether_a_caller_draws(watched):
    model, calls = watched
    for compute in (
        lambda: model(X + torch.randn(5, 3))["out"].sum(1),
        lambda: model(X)["out"].sum(1) + torch.rand(5),
    ):
        surveyed(model, calls, compute)
        assert calls.survey.drawn


def test_in_a_subset_run_model_and_caller_see_few_rows(watched):
    model, calls = watched
    labels = torch.arange(5.0)
    compute = lambda: model(X)["out"].sum(1) - labels  # noqa: E731
    expected = surveyed(model, calls, compute)
    with calls.on_subset(calls.survey, lambda _: False, nullcontext):
        losses = compute()
    assert torch.allclose(losses, expected[calls.survey.rows]) and losses.requires_grad
    assert model.seen == [5, len(calls.survey.rows)]
    everyone = calls.survey.exchanged()
    assert len(everyone.rows) == 5 and set(everyone.rows.tolist()) == set(
        calls.survey.rows.tolist()
    )
    with calls.on_subset(everyone, lambda _: False, nullcontext):
        assert torch.allclose(compute(), expected[everyone.rows])
    assert model.seen[-1] == 5


def test_a_compiled_part_is_found():
    model = nn.Sequential(nn.Linear(2, 2))
    assert not is_compiled(model)
    model[0].compile(backend="eager")
    assert is_compiled(model)


@pytest.mark.parametrize("chosen", [[5], [3, 4], [3, 4, 5], [3, 4, 3, 4, 3, 4]])
def test_repeated_rows_are_as_many_as_nothing_else_is(chosen):
    """One would be stretched to any number; three are units, and six all rows."""
    units = torch.tensor([0, 0, 0, 1, 1, 2])
    found = Survey(torch.tensor(chosen), 6, units).repeated()
    if len(chosen) == 2:
        assert found is None
    else:
        assert found is not None and len(found.rows) not in (1, 3, 6)
        assert found.rows.tolist() == chosen * (len(found.rows) // len(chosen))
