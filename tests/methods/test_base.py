import pytest
from torch import nn

from dpft.errors import InputError
from dpft.methods.base import METHODS, Method, count_parameters
from dpft.methods.full import Full


def test_a_method_is_found_by_the_name_of_its_module() -> None:
    assert "full" in METHODS.entries() and "base" not in METHODS.entries()
    assert METHODS.named("full") is Full
    assert all(issubclass(METHODS.named(name), Method) for name in METHODS.entries())


def test_an_unknown_method_is_refused_with_the_list() -> None:
    with pytest.raises(InputError, match="method.name must be one of .*full.*, got 'warp'"):
        METHODS.named("warp")


def test_a_tied_parameter_counts_once_and_a_frozen_one_only_in_the_total() -> None:
    model = nn.ModuleDict({"a": nn.Embedding(7, 3), "b": nn.Linear(3, 7, bias=False)})
    model["b"].weight = model["a"].weight
    model["c"] = nn.Linear(3, 2)
    model["c"].weight.requires_grad_(False)
    counts = count_parameters(model, new=frozenset({"c.bias", "c.weight"}))
    assert (counts.trainable, counts.new, counts.total) == (21 + 2, 2, 21 + 6 + 2)


def test_a_method_that_trains_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="method must leave a parameter to train"):
        count_parameters(nn.Linear(2, 2).requires_grad_(False))
