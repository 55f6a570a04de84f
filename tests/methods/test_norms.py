import pytest

from dpft.methods.norms import Norms
from tests.methods.shapes import fresh, published, recipe, trained_names


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("gpt2", {"ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias", "ln_f.weight"}),
        ("bert-classification", {"LayerNorm.weight", "LayerNorm.bias"}),
        ("t5", {"layer_norm.weight", "final_layer_norm.weight"}),
        ("llama-untied", {"input_layernorm.weight", "post_attention_layernorm.weight"}),
        ("gemma2", {"pre_feedforward_layernorm.weight", "norm.weight"}),
    ],
)
def test_weights_and_biases_of_every_kind_of_norm_train(shape: str, expected: set) -> None:
    trained = trained_names(recipe("norms").prepare(fresh(shape)))
    assert expected <= {".".join(name.split(".")[-2:]) for name in trained}
    assert all("norm" in name.lower() or ".ln_" in name for name in trained)


def test_gpt2_has_25_norms_of_768() -> None:
    model = Norms(name="norms").prepare(published("GPT2Config", {}, "AutoModelForCausalLM"))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sum(parameter.numel() for parameter in trained) == 25 * 2 * 768


def test_a_new_norm_trains_as_new_modules_do() -> None:
    new = frozenset(
        {"cls.predictions.transform.LayerNorm.weight", "cls.predictions.transform.LayerNorm.bias"}
    )
    method = recipe("norms", train_new_modules=False)
    assert not new & trained_names(method.prepare(fresh("bert-masked-lm"), new))
    assert new <= trained_names(recipe("norms").prepare(fresh("bert-masked-lm"), new))
