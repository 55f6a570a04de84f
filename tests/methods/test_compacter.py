import pytest
import torch
from torch import nn

from dpft.config.load import from_values
from dpft.methods.base import count_parameters
from dpft.methods.compacter import Compacter
from dpft.methods.layers import PHMLinear
from dpft.privacy.clipping.options import ENGINE_NAMES
from tests.methods.shapes import (
    ROBERTA_BASE,
    assert_exact,
    fresh,
    prepared,
    published,
    recipe,
    share,
)
from tests.rejections import rejects


def mixers(n: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(n, n, bias=False) for _ in range(n))


@pytest.mark.slow
def test_the_default_is_the_papers_share_of_roberta_base() -> None:
    # Bu et al. 2022, table 4: 0.055 %, without the norms, which are 0.031 % by themselves.
    model = published(*ROBERTA_BASE)
    assert share(Compacter(name="compacter"), model) == pytest.approx(0.055, abs=5e-5)
    # n rank-one factors are as many numbers as the layer has inputs and outputs, whatever n is.
    down, up = (768 + 184) + 184, (184 + 768) + 768
    shared = 4 * 4 * 4
    assert count_parameters(model).trainable == 24 * (down + up) + shared


def test_a_layer_is_the_sum_of_its_kronecker_products() -> None:
    torch.manual_seed(0)
    layer, hidden = PHMLinear(12, 8, mixers(4)), torch.randn(2, 5, 12)
    nn.init.normal_(layer.bias.weight)
    weight = sum(
        torch.kron(mix.weight, torch.outer(layer.left.weight[:, k], layer.right.weight[k]))
        for k, mix in enumerate(layer.mixers)
    )
    expected = hidden @ weight.T + layer.bias.weight.flatten()
    assert torch.allclose(layer(hidden), expected, atol=1e-6)
    assert torch.allclose(layer(hidden[:, 0]), expected[:, 0], atol=1e-6)


def test_a_fresh_layer_has_houlsbys_initial_size() -> None:
    torch.manual_seed(0)
    maker = Compacter(name="compacter", bottleneck=96, n=4).adapter_maker(torch.device("cpu"))
    adapter, hidden = maker(768), torch.randn(64, 768)
    # down(h) of unit h has variance 768 * 0.01 ** 2, give or take the draw of A.
    assert 0.1 < float(adapter.down(hidden).detach().std()) < 0.8
    assert (adapter(hidden) - hidden).norm() < 0.2 * hidden.norm()


def test_all_layers_share_the_mixing_matrices() -> None:
    model = recipe("compacter", bottleneck=4, n=2).prepare(fresh("gpt2"))
    layers = [module for module in model.modules() if isinstance(module, PHMLinear)]
    assert len(layers) == 2 * 2 * 2
    assert len({id(layer.mixers[0].weight) for layer in layers}) == 1
    names = [name for name, _ in model.named_parameters() if ".mixers." in name]
    assert len(names) == 2


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_matrix_that_many_layers_use_is_clipped_exactly(engine: str) -> None:
    model = prepared(recipe("compacter", bottleneck=4, n=2), "gpt2")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".mixers." in name)
    assert_exact(model, "gpt2", engine)


@pytest.mark.parametrize(
    ("bottleneck", "key", "value"), [(4, "method.bottleneck", 4), (6, "method.n", 3)]
)
def test_n_must_divide_the_bottleneck_and_the_hidden_size(
    bottleneck: int, key: str, value: int
) -> None:
    with rejects(key, value):
        values = {"name": "compacter", "bottleneck": bottleneck, "n": 3}
        from_values(values, Compacter).prepare(fresh("gpt2"))


def test_half_precision_activations_stay_so() -> None:
    layer = PHMLinear(8, 4, mixers(2))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(2, 3, 8)).dtype is torch.bfloat16
