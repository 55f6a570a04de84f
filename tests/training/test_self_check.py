import pytest
import torch

from dpft.errors import RunError
from dpft.privacy.clipping.clipper import ClippingOptions
from dpft.privacy.clipping.squares import Squares
from dpft.privacy.clipping.uses import RowsUse
from dpft.training.self_check import check_clipper
from tests.slowness import slow_but
from tests.training.toy import tiny_model


def check(model, precision="fp32"):
    options = ClippingOptions(max_grad_norm=0.1)
    return check_clipper(model, options, max_length=16, precision=precision)


def test_a_sound_model_passes_in_training_mode_and_returns_to_its_own():
    model = tiny_model().eval()
    assert check(model) < 1e-5
    assert not model.training


@pytest.mark.parametrize("precision", slow_but(["bf16"], ["bf16", "fp16"]))
def test_half_precision_is_checked_as_well(precision, monkeypatch):
    assert check(tiny_model(), precision) < 1e-5

    def wrong_in_half(inputs):
        half = torch.is_autocast_enabled("cpu")
        return inputs.to(torch.get_autocast_dtype("cpu")) * 1.1 if half else inputs

    monkeypatch.setattr("dpft.privacy.clipping.rules.for_product", wrong_in_half)
    assert check(tiny_model()) < 1e-5
    with pytest.raises(RunError, match="self-check failed|cannot be exact"):
        check(tiny_model(), precision)


def test_a_missing_cross_term_stops_the_run(monkeypatch):
    nothing = Squares(torch.zeros(()), torch.zeros(()))
    monkeypatch.setattr("dpft.privacy.clipping.norms._tied_cross_term", lambda *_: nothing)
    with pytest.raises(RunError, match="self-check failed"):
        check(tiny_model())


def test_an_embedding_that_forgets_repeated_ids_stops_the_run(monkeypatch):
    def forgetful(use):
        values = use.values.square().sum((1, 2))
        return Squares(values, values)

    monkeypatch.setattr(RowsUse, "squares", forgetful)
    with pytest.raises(RunError, match="self-check failed"):
        check(tiny_model())


def test_trust_rule_3_a_model_whose_examples_mix_is_refused_though_the_loop_agrees():
    """The loop oracle runs the same batched forward, so it cannot see what mixes there."""

    class Mixing(torch.nn.Module):
        def forward(self, hidden):
            return hidden + hidden.detach().mean(0, keepdim=True)

    model = tiny_model()
    model.transformer.drop = Mixing()
    with pytest.raises(RunError, match="depends on the other examples"):
        check(model)
