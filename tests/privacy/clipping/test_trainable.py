"""Names stay, whatever tensors bear them: sharded models swap theirs."""

import doctest
from itertools import product

import pytest
import torch
from torch import nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping import PerExampleClipper, trainable
from dpft.privacy.clipping.algorithms import ENGINES
from dpft.privacy.clipping.trainable import TrainableParameters, parameter_groups
from tests.privacy.clipping.oracle import gpt2, records
from tests.slowness import slow_but

pytestmark = pytest.mark.usefixtures("self_check_once")


def tied():
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))
    model[1].weight = model[0].weight
    return model


def swap_every_parameter(model):
    """Puts a new object in the place of each parameter, with its values and its gradient."""
    new = {}
    for module in model.modules():
        for attribute, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if old not in new:
                new[old] = nn.Parameter(old.detach().clone(), requires_grad=old.requires_grad)
                new[old].grad = old.grad
            module._parameters[attribute] = new[old]


def test_a_tied_parameter_is_named_once_at_all_of_its_places():
    model = tied()
    found = TrainableParameters(model)
    assert found.names == ("0.weight",) and found.shared == {"0.weight"}
    assert found.name_at(model[0], "weight") == found.name_at(model[1], "weight") == "0.weight"
    assert found.within(model) == {"0.weight": "0.weight", "1.weight": "0.weight"}
    assert list(found.owners("0.weight")) == [model[0], model[1]]
    assert found.now()["0.weight"] is model[0].weight


def test_the_parameters_are_those_that_the_modules_hold_at_the_moment():
    model = tied()
    found = TrainableParameters(model)
    swap_every_parameter(model)
    assert found.first_changed() is None
    assert found.now()["0.weight"] is model[0].weight is model[1].weight


def test_one_place_of_a_tied_parameter_swapped_alone_is_a_change():
    model = tied()
    found = TrainableParameters(model)
    model[1].weight = nn.Parameter(model[0].weight.detach().clone())
    assert found.first_changed() == "1.weight"


def test_a_parameter_in_half_precision_in_the_place_of_another_is_a_change():
    model = tied()
    found = TrainableParameters(model)
    model.bfloat16()
    assert found.first_changed() == "0.weight"


@pytest.mark.parametrize(
    ("engine", "frozen"),
    slow_but([("book_keeping", False), ("two_pass", True)], product(ENGINES, [False, True])),
)
def test_swapping_every_parameter_between_two_micro_batches_changes_no_sum(engine, frozen):
    """What the additions lost is kept as well: the sums are equal to the last digit."""
    sums = []
    for swapping in (False, True):
        model = gpt2()
        model.transformer.wpe.weight.requires_grad_(not frozen)
        with PerExampleClipper(model, 0.5, engine=engine) as clipper:
            for seed in (1, 2, 3):
                clipper.accumulate(records(seed=seed).losses(model))
                if swapping:
                    swap_every_parameter(model)
        sums.append({name: p.grad for name, p in model.named_parameters()})
    for name, expected in sums[0].items():
        assert (expected is None) == (sums[1][name] is None) == (frozen and "wpe" in name)
        assert expected is None or torch.equal(sums[1][name], expected)


def test_an_untied_model_is_refused_by_the_name_that_came():
    model = gpt2()
    with PerExampleClipper(model, 0.5) as clipper:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        with pytest.raises(RunError, match=r"lm_head\.weight was frozen, unfrozen or replaced"):
            clipper.accumulate(records().losses(model))


def test_the_example_in_the_documentation_is_true():
    assert doctest.testmod(trainable, verbose=False).failed == 0


def named_groups(model, **options):
    return parameter_groups(model, per_layer=True, **options)


def test_by_default_each_layer_is_a_group_and_a_tied_weight_is_in_one():
    model = gpt2(tied=True)
    found = named_groups(model)
    assert set(found) == {name for name, _ in model.named_parameters()}
    assert found["transformer.wte.weight"] == 0 and "lm_head.weight" not in found
    first = "transformer.h.0.attn.c_attn"
    assert found[f"{first}.weight"] == found[f"{first}.bias"]
    assert len(set(found.values())) == len({name.rpartition(".")[0] for name in found})
    assert sorted(set(found.values())) == list(range(len(set(found.values()))))


def test_a_parameter_is_in_the_first_pattern_that_fits():
    found = named_groups(gpt2(), patterns=("*.attn.*", "*.h.0.*", "*"))
    assert found["transformer.h.0.attn.c_attn.weight"] == 0
    assert found["transformer.h.0.mlp.c_fc.bias"] == 1
    assert found["transformer.wte.weight"] == 2


def test_styles_without_groups_have_one():
    assert set(parameter_groups(gpt2(), per_layer=False).values()) == {0}


def test_frozen_parameters_are_in_no_group():
    model = gpt2()
    model.transformer.wte.weight.requires_grad = False
    assert "transformer.wte.weight" not in parameter_groups(model, per_layer=True)


def test_patterns_that_are_no_partition_are_refused():
    with pytest.raises(InputError, match=r"got none for transformer\.wpe\.weight; end the list"):
        parameter_groups(gpt2(), per_layer=True, patterns=("*.wte.*", "*.h.*", "*.ln_f.*"))
    with pytest.raises(InputError, match="got none for 'lm_head"):
        parameter_groups(gpt2(), per_layer=True, patterns=("lm_head.*", "*"))


def test_groups_without_per_layer_clipping_are_refused():
    with pytest.raises(InputError, match="`groups` needs `clipping='per_layer'`, got 'flat'"):
        PerExampleClipper(gpt2(), 1.0, groups=("*",))
