"""What becomes of a model's calls in training, in a survey and in a rehearsal."""

from contextlib import nullcontext
from inspect import signature

import pytest
import torch
from torch import nn

from dpft.privacy.clipping.separation.root_calls import RootCalls, is_compiled

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


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
    calls = RootCalls(model)
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


def test_in_a_rehearsal_model_and_caller_see_few_rows(watched):
    model, calls = watched
    labels = torch.arange(5.0)
    compute = lambda: model(X)["out"].sum(1) - labels  # noqa: E731
    expected = surveyed(model, calls, compute)
    with calls.rehearsing(calls.survey, lambda _: False, nullcontext):
        losses = compute()
    assert torch.allclose(losses, expected[calls.survey.rows]) and losses.requires_grad
    assert model.seen == [5, len(calls.survey.rows)]
    everyone = calls.survey.exchanged()
    assert len(everyone.rows) == 5 and set(everyone.rows.tolist()) == set(
        calls.survey.rows.tolist()
    )
    with calls.rehearsing(everyone, lambda _: False, nullcontext):
        assert torch.allclose(compute(), expected[everyone.rows])
    assert model.seen[-1] == 5


def test_a_compiled_part_is_found():
    model = nn.Sequential(nn.Linear(2, 2))
    assert not is_compiled(model)
    model[0].compile(backend="eager")
    assert is_compiled(model)
