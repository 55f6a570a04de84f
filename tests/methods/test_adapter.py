from pathlib import Path

import pytest
import torch

from dpft.methods.adapter import Adapter
from dpft.methods.adapter_files import WEIGHTS
from dpft.methods.base import count_parameters, original_name
from dpft.methods.layers import INITIAL_STD, AdaptedProjection, dense_bottleneck
from dpft.models.architecture import read_architecture
from dpft.models.loading import load_model
from dpft.models.source import EMBEDDED_MODEL, ModelConfig
from tests.methods.shapes import (
    LARGE,
    ROBERTA_BASE,
    assert_exact,
    auto_class,
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
from tests.rejections import rejects
from tests.slowness import slow_but


@pytest.mark.slow
def test_the_default_is_the_papers_share_of_roberta_base() -> None:
    # Bu et al. 2022, table 4: 1.4 %. Two adapters in each of 12 blocks, biases included, no norms.
    model = published(*ROBERTA_BASE)
    assert share(Adapter(name="adapter"), model) == pytest.approx(1.4, abs=0.05)
    each = 2 * 768 * 48 + 48 + 768
    assert count_parameters(model).trainable == 24 * each


@pytest.mark.slow
def test_trained_norms_would_be_more_than_the_papers_share_of_roberta_base() -> None:
    # 1.466 %. Of RoBERTa-large, where the table repeats 1.4 %, they are 1.37 % with the norms and
    # 1.34 % without.
    method = Adapter(name="adapter", train_norms=True)
    assert share(method, published(*ROBERTA_BASE)) == pytest.approx(1.466, abs=5e-4)
    large = published("RobertaConfig", ROBERTA_BASE[1] | LARGE)
    assert share(Adapter(name="adapter"), large) == pytest.approx(1.342, abs=5e-4)


def test_an_adapter_is_a_bottleneck_around_gelu_beside_the_identity() -> None:
    layer, hidden = dense_bottleneck(6, 2, torch.device("cpu")), torch.randn(3, 4, 6)
    middle = torch.nn.functional.gelu(hidden @ layer.down.weight.T + layer.down.bias)
    expected = hidden + middle @ layer.up.weight.T + layer.up.bias
    assert torch.allclose(layer(hidden), expected, atol=1e-7)


def test_a_fresh_adapter_is_nearly_the_identity_and_every_weight_has_a_gradient() -> None:
    torch.manual_seed(0)
    layer, hidden = dense_bottleneck(768, 48, torch.device("cpu")), torch.randn(5, 768)
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


@pytest.mark.slow
@pytest.mark.parametrize("shape", ("gpt2", "bert-classification", "t5"))
def test_adapters_and_biases_together_are_exact_and_outlive_a_save(
    shape: str, tmp_path: Path
) -> None:
    method, kind = recipe("adapter", bottleneck=4, train_biases=True), loss_of(shape)
    model = prepared(method, shape)
    own = {name for name in trained_names(model) if ".adapter." not in name}
    assert all(name.endswith("bias") for name in own) and bool(own) is (shape != "t5")
    assert_exact(model, shape)
    train(model, kind)
    assert torch.equal(logits(read_back(method, model, shape, tmp_path), kind), logits(model, kind))


def adapted_names(shape: str, **settings) -> list[str]:
    model = recipe("adapter", bottleneck=4, **settings).prepare(fresh(shape))
    return [name for name, m in model.named_modules() if isinstance(m, AdaptedProjection)]


@pytest.mark.parametrize(
    ("shape", "places"),
    [
        ("gpt2", ["transformer.h.0.attn.c_proj", "transformer.h.0.mlp.c_proj"]),
        ("opt", ["model.decoder.layers.0.self_attn.out_proj", "model.decoder.layers.0.fc2"]),
        ("llama-tied", ["model.layers.0.self_attn.o_proj", "model.layers.0.mlp.down_proj"]),
        (
            "bert-masked-lm",
            ["bert.encoder.layer.0.attention.output.dense", "bert.encoder.layer.0.output.dense"],
        ),
        (
            "distilbert-classification",
            [
                "distilbert.transformer.layer.0.attention.out_lin",
                "distilbert.transformer.layer.0.ffn.lin2",
            ],
        ),
    ],
)
def test_each_block_has_two_adapters(shape: str, places: list[str]) -> None:
    names = adapted_names(shape)
    assert names[:2] == places and len(names) == 4


@pytest.mark.parametrize("shape", ["t5", "bart"])
def test_encoder_and_decoder_have_them_and_cross_attention_has_none(shape: str) -> None:
    names = adapted_names(shape)
    assert len(names) == 2 * 2 * 2
    assert not any("EncDec" in name or "encoder_attn" in name for name in names)


def test_layers_that_share_their_weights_share_their_adapters() -> None:
    assert len(adapted_names("albert-classification")) == 2


def test_targets_lead_over_the_architectures_own() -> None:
    names = adapted_names("t5", targets=("EncDecAttention.o",))
    assert len(names) == 2 and all(name.endswith("EncDecAttention.o") for name in names)


def test_a_parameters_name_still_leads_to_its_name_in_the_model() -> None:
    own = {name for name, _ in fresh("gpt2").named_parameters()}
    model = recipe("adapter", bottleneck=4).prepare(fresh("gpt2"))
    names = {original_name(name) for name, _ in model.named_parameters()}
    assert own == {name for name in names if ".adapter." not in name}


@pytest.mark.parametrize(
    ("shape", "settings", "key", "value"),
    [
        ("gpt2", {"targets": ("attn.o_proj",)}, "method.targets", ("attn.o_proj",)),
        ("vit", {}, "method.targets", None),
        ("gpt2", {"bottleneck": 20}, "method.bottleneck", 20),
    ],
)
def test_settings_that_do_not_fit_the_model_are_rejected(
    shape: str, settings: dict, key: str, value: object
) -> None:
    model = fresh(shape)
    with rejects(key, value):
        recipe("adapter", **{"bottleneck": 4} | settings).prepare(model)
    assert not any(isinstance(module, AdaptedProjection) for module in model.modules())


def test_the_saved_settings_lead_over_those_of_the_method_that_restores(tmp_path: Path) -> None:
    method, kind = recipe("adapter", bottleneck=4, targets=("mlp.c_proj",)), loss_of("gpt2")
    model = prepared(method, "gpt2")
    method.save(model, tmp_path)
    restored = recipe("adapter").restore(fresh("gpt2"), tmp_path).eval()
    assert torch.equal(logits(restored, kind), logits(model, kind))


@pytest.mark.slow
@pytest.mark.parametrize("shape", slow_but(("gpt2",), ("gpt2", "t5")))
def test_a_random_base_is_saved_beside_under_its_own_names(shape: str, tmp_path: Path) -> None:
    method, kind = recipe("compacter", bottleneck=4, n=2), loss_of(shape)
    model = prepared(method, shape)
    train(model, kind)
    before = logits(model, kind)
    method.save(model, tmp_path)
    assert torch.equal(logits(model, kind), before)
    base = auto_class(shape).from_pretrained(tmp_path / "base")
    assert all(torch.equal(p, base.get_parameter(n)) for n, p in fresh(shape).named_parameters())
    assert torch.equal(logits(method.restore(base, tmp_path).eval(), kind), before)


@pytest.mark.slow
@pytest.mark.parametrize(("init", "held_elsewhere"), [("pretrained", True), ("random", False)])
def test_the_base_is_saved_where_no_checkpoint_holds_it(
    init: str, held_elsewhere: bool, tmp_path: Path
) -> None:
    tiny = ModelConfig(name="tiny", path=str(EMBEDDED_MODEL), init=init)
    model = load_model(read_architecture(tiny), seed=0)
    method = recipe("adapter", targets=("mlp.c_proj",))
    method.save(method.prepare(model), tmp_path)
    assert (tmp_path / "base" / "model.safetensors").is_file() is not held_elsewhere


def test_files_of_another_method_or_model_are_refused(tmp_path: Path) -> None:
    method = recipe("adapter", bottleneck=4)
    method.save(prepared(method, "gpt2"), tmp_path)
    with rejects(str(tmp_path), "adapter"):
        recipe("compacter").restore(fresh("gpt2"), tmp_path)
    with rejects(str(tmp_path / WEIGHTS)):
        method.restore(fresh("bert-masked-lm"), tmp_path)
