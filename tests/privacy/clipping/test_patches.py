"""Recording forwards: on the layers that train, and gone without a trace."""

from inspect import signature

import pytest
import torch
from torch import nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping.patches import (
    Patches,
    watch_for_unrecorded_gradients,
    with_signature,
)
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.trainable import TrainableParameters


class Model(nn.Module):
    """A dense layer, a frozen one, and a scale that no rule knows."""

    def __init__(self):
        super().__init__()
        self.dense, self.frozen = nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)
        self.scale = nn.PReLU()

    def forward(self, x, *, twice=False):
        return self.scale(self.frozen(self.dense(x))) * (2 if twice else 1)


def made():
    model = Model()
    return model, Patches(model, Recorder(TrainableParameters(model)))


def replaced(model):
    return {name for name, module in model.named_modules() if "forward" in vars(module)}


def test_what_trains_gets_another_forward_and_its_own_back():
    model, patches = made()
    patches.install()
    assert replaced(model) == {"", "dense", "scale"}
    patches.remove()
    assert replaced(model) == set()


def test_forwards_are_taken_away_for_a_while_and_put_back_after_an_error():
    model, patches = made()
    patches.install()
    with pytest.raises(ZeroDivisionError), patches.without():
        assert replaced(model) == {""}, "its calls are watched still"
        raise ZeroDivisionError
    assert replaced(model) == {"", "dense", "scale"}


def test_a_forward_that_someone_replaced_is_refused_and_nothing_stays_patched():
    model, patches = made()
    model.scale.forward = lambda x: x
    with pytest.raises(InputError, match="PReLU layer must have its own forward"):
        patches.install()
    assert replaced(model) == {"scale"}


def test_patched_and_bare_model_compute_the_same_with_the_arguments_of_its_own():
    model, patches = made()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    expected = [model(x, twice=twice) for twice in (False, True)]
    patches.install()
    assert list(signature(model.forward).parameters) == ["x", "twice"]
    found = [model(x, twice=twice) for twice in (False, True)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_wrapped_forward_shows_the_signature_of_the_modules_own():
    def own(ids, mask=None):
        raise AssertionError("only its signature is read")

    wrapped = with_signature(lambda *args, **kwargs: (args, kwargs), own)
    assert signature(wrapped) == signature(own)
    assert wrapped(1, mask=2) == ((1,), {"mask": 2})


def test_a_gradient_that_no_rule_saw_is_refused_by_name_and_leaves_none_behind():
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), 7.0)
    with (
        pytest.raises(RunError, match=r"parameter dense\.weight is used outside its layer"),
        watch_for_unrecorded_gradients({"dense.weight": weight}),
    ):
        weight.sum().backward()
    assert weight.grad.tolist() == [7.0, 7.0]
