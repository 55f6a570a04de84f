"""What the engines that record uses share: proof before use, and one backward pass."""

import pytest
import torch
from torch import nn

from dpft.errors import RunError
from dpft.privacy.clipping.algorithms import BookKeepingEngine
from dpft.privacy.clipping.choices import Tuning
from dpft.privacy.clipping.engine import ClipDecision, clipping_style
from dpft.privacy.clipping.recording import Rows
from dpft.privacy.clipping.uses import GradientUse, OuterProduct

X = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
STYLE = clipping_style("flat", max_grad_norm=1.0)


def installed(model, **tuning) -> BookKeepingEngine:
    engine = BookKeepingEngine(model, STYLE, tuning=Tuning(**tuning))
    engine.install()
    return engine


def calls_to(model):
    """Counts the calls of a model from now on."""
    counted = []
    model.register_forward_pre_hook(lambda *_: counted.append(1))
    return counted


def test_losses_are_proved_once_and_then_computed_once_each():
    model = nn.Linear(2, 1)
    engine, calls = installed(model), calls_to(model)
    for rows in (X, X[:2]):
        losses = engine.compute(lambda rows=rows: model(rows)[:, 0])
        assert torch.equal(losses, model(rows)[:, 0]) and losses.requires_grad
    calls.clear()
    engine.compute(lambda: model(X)[:, 0])
    assert len(calls) == 1


def test_a_proof_leaves_the_masks_that_the_model_would_have_drawn():
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5))
    engine = installed(model)
    # Two kinds of call, each proved by itself.
    for rows in (X, X[:, None]):
        with engine._patches.without():
            torch.manual_seed(0)
            expected = model(rows).flatten(1).sum(1)
            after = torch.get_rng_state()
        torch.manual_seed(0)
        got = engine.compute(lambda rows=rows: model(rows).flatten(1).sum(1))
        assert torch.equal(got, expected) and torch.equal(torch.get_rng_state(), after)


def test_losses_that_are_others_at_each_call_are_refused():
    model, batches = nn.Linear(2, 1), iter([1.0, 2.0, 3.0, 4.0, 5.0])
    engine = installed(model)
    with pytest.raises(RunError, match="must return the same losses when it is called again"):
        engine.compute(lambda: model(next(batches) * X)[:, 0])


def test_an_error_of_compute_losses_itself_is_handed_on():
    engine, attempts = installed(nn.Linear(2, 1)), []

    def losses():
        attempts.append(1)
        raise ValueError("no such batch")

    with pytest.raises(ValueError, match="no such batch"):
        engine.compute(losses)
    assert len(attempts) == 1


def test_a_submodule_called_alone_is_proved_at_every_batch():
    model = nn.Sequential(nn.Linear(2, 1))
    engine, calls = installed(model), calls_to(model[0])
    counts = []
    for _ in range(2):
        calls.clear()
        engine.compute(lambda: model[0](X)[:, 0])
        counts.append(len(calls))
    assert counts[0] == counts[1] > 1


def test_backward_hands_each_use_of_scaled_losses_over_and_forms_no_gradient():
    model = nn.Linear(2, 1)
    engine = installed(model, loss_scale=4.0)
    met = []
    engine.backward(model(X)[:, 0], lambda name, use: met.append((name, use)))
    gradients = {name: use.instantiate() for name, use in met}
    assert torch.equal(gradients["weight"], 4 * X[:, None])
    assert torch.equal(gradients["bias"], torch.full((3, 1), 4.0))
    assert model.weight.grad is None and engine.recorder.take() == {}


def test_after_a_failed_backward_the_recorder_keeps_uses_again():
    model = nn.Linear(2, 1)
    engine = installed(model)

    def refuse(name, use):
        raise RuntimeError("refused")

    with pytest.raises(RuntimeError, match="refused"):
        engine.backward(model(X)[:, 0], refuse)
    assert engine.recorder.receive == engine.recorder.keep
    with pytest.raises(RunError, match="must be left to the clipper"):
        engine.recorder.record(model, "bias", GradientUse(torch.zeros(3, 1)))


def test_a_weight_of_several_layers_is_known_as_shared():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    assert installed(model).shared == {"0.weight"}


def test_rows_of_a_unit_add_up_before_the_norm_and_take_its_factor():
    units = torch.tensor([7, 5, 7])
    rows = Rows(torch.tensor([1.0, 1.0, float("nan")]), units)
    assert rows.finite.tolist() == [True, False]
    formed = rows.fold(GradientUse(torch.tensor([[3.0], [1.0], [4.0]])))
    # Units in ascending order: 5 has row 1, and 7 rows 0 and 2.
    assert formed.values.tolist() == [[1.0], [7.0]]
    factored = OuterProduct(torch.tensor([[[3.0]], [[1.0]], [[4.0]]]), torch.ones(3, 1, 1))
    assert rows.fold(factored) is factored
    for use in (formed, factored):
        assert rows.squared_norms([use], 0.0).values.tolist() == [1.0, 49.0]
    decision = ClipDecision(
        norms=torch.tensor([1.0, 7.0]),
        factors=torch.tensor([[10.0, 100.0]]),
        finite=torch.tensor([True, True]),
        non_finite=0,
    )
    for use, shape in ((formed, (1,)), (factored, (1, 1))):
        total = torch.zeros(shape)
        total += rows.weighted_sum("weight", [use], decision, 0)
        assert total.item() == 10 * 1 + 100 * 7


def test_what_is_not_finite_adds_zero_and_is_counted():
    rows = Rows(torch.ones(2), None)
    decision = ClipDecision(
        norms=torch.tensor([2.0, 0.0]),
        factors=torch.tensor([[0.5, 1.0]]),
        finite=torch.tensor([True, False]),
        non_finite=1,
    )
    total = torch.zeros(1)
    total += rows.weighted_sum(
        "weight", [GradientUse(torch.tensor([[2.0], [float("nan")]]))], decision, 0
    )
    assert total.tolist() == [1.0]
    batch = decision.clipped_batch()
    assert batch.norms.tolist() == [2.0, 0.0] and batch.non_finite == 1
