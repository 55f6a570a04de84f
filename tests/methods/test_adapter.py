from pathlib import Path

import pytest
import torch

from dpft.methods.adapter import Adapter
from dpft.methods.base import count_parameters
from dpft.methods.layers import INITIAL_STD, Bottleneck
from tests.methods.shapes import (
    LARGE,
    ROBERTA_BASE,
    fresh,
    logits,
    loss_of,
    prepared,
    published,
    read_back,
    recipe,
    share,
    train,
    trained_names,
)
from tests.privacy.clipping.architectures.batches import examples
from tests.privacy.clipping.architectures.comparison import clipped, difference
from tests.slowness import slow_but


def test_the_default_is_the_papers_share_of_roberta_base() -> None:
    # Bu et al. 2022, table 4: 1.4 %. Two adapters in each of 12 blocks, biases included, no norms.
    model = published(*ROBERTA_BASE)
    assert share(Adapter(name="adapter"), model) == pytest.approx(1.4, abs=0.05)
    each = 2 * 768 * 48 + 48 + 768
    assert count_parameters(model).trainable == 24 * each


def test_trained_norms_would_be_more_than_the_papers_share_of_roberta_base() -> None:
    # 1.466 %. Of RoBERTa-large, where the table repeats 1.4 %, they are 1.37 % with the norms and
    # 1.34 % without.
    method = Adapter(name="adapter", train_norms=True)
    assert share(method, published(*ROBERTA_BASE)) == pytest.approx(1.466, abs=5e-4)
    large = published("RobertaConfig", ROBERTA_BASE[1] | LARGE)
    assert share(Adapter(name="adapter"), large) == pytest.approx(1.342, abs=5e-4)


def test_an_adapter_is_a_bottleneck_around_gelu_beside_the_identity() -> None:
    layer, hidden = Bottleneck(6, 2, torch.device("cpu")), torch.randn(3, 4, 6)
    middle = torch.nn.functional.gelu(hidden @ layer.down.weight.T + layer.down.bias)
    expected = hidden + middle @ layer.up.weight.T + layer.up.bias
    assert torch.allclose(layer(hidden), expected, atol=1e-7)


def test_a_fresh_adapter_is_nearly_the_identity_and_every_weight_has_a_gradient() -> None:
    torch.manual_seed(0)
    layer, hidden = Bottleneck(768, 48, torch.device("cpu")), torch.randn(5, 768)
    layer(hidden).square().sum().backward()
    assert (layer(hidden) - hidden).norm() < 0.02 * hidden.norm()
    assert all(float(p.grad.norm()) > 0 for p in layer.parameters())
    assert float(layer.up.weight.detach().abs().max()) <= 2 * INITIAL_STD


def test_adapters_and_new_modules_train_and_all_else_is_frozen() -> None:
    new = frozenset({"classifier.weight", "classifier.bias"})
    model = recipe("adapter", bottleneck=4).prepare(fresh("bert-classification"), new)
    trained = trained_names(model)
    assert new <= trained
    assert all(".adapter." in name for name in trained - new)
    assert count_parameters(model, new).new == 3 * 16 + 3


def test_the_norms_train_where_asked_for() -> None:
    with_norms, without = (
        trained_names(
            recipe("adapter", bottleneck=4, train_norms=asked).prepare(fresh("bert-masked-lm"))
        )
        for asked in (True, False)
    )
    added = with_norms - without
    assert added and all("LayerNorm" in name for name in added)


@pytest.mark.parametrize("shape", slow_but(("gpt2",), ("gpt2", "bert-classification", "t5")))
def test_adapters_and_biases_together_are_exact_and_outlive_a_save(
    shape: str, tmp_path: Path
) -> None:
    method, kind = recipe("adapter", bottleneck=4, train_biases=True), loss_of(shape)
    model = prepared(method, shape)
    own = {name for name in trained_names(model) if ".adapter." not in name}
    assert all(name.endswith("bias") for name in own) and bool(own) is (shape != "t5")
    expected = clipped(model, kind, examples(), engine="loop")
    assert difference(clipped(model, kind, examples(), engine="auto"), expected) <= 1e-5
    train(model, kind)
    assert torch.equal(logits(read_back(method, model, shape, tmp_path), kind), logits(model, kind))


def test_a_model_with_adapters_generates() -> None:
    model = prepared(recipe("adapter", bottleneck=4), "gpt2")
    ids = torch.tensor([[5, 6, 7]])
    text = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert text.shape[1] > 3 and torch.equal(text[:, :3], ids)
