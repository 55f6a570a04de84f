import doctest

import pytest

from dpft.errors import InputError
from dpft.privacy.clipping import PerExampleClipper, groups
from dpft.privacy.clipping.groups import parameter_groups
from tests.privacy.clipping.oracle import gpt2


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


def test_the_examples_in_the_documentation_are_true():
    assert doctest.testmod(groups, verbose=False).failed == 0
