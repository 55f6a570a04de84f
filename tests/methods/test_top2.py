import pytest

from tests.methods.shapes import fresh, published, recipe, trained_names
from tests.rejections import rejects


def top_names(shape: str, **settings) -> set[str]:
    return trained_names(recipe("top2", **settings).prepare(fresh(shape)))


def test_the_last_two_blocks_and_the_final_norm_of_gpt2_train() -> None:
    model = published("GPT2Config", {}, "AutoModelForCausalLM")
    trained = trained_names(recipe("top2").prepare(model))
    parts = {".".join(name.split(".")[:3]) for name in trained}
    assert parts == {
        "transformer.h.10",
        "transformer.h.11",
        "transformer.ln_f.weight",
        "transformer.ln_f.bias",
    }


@pytest.mark.parametrize(
    ("shape", "beginnings"),
    [
        ("bert-classification", {"bert.encoder.layer.1.", "classifier."}),
        (
            "distilbert-classification",
            {"distilbert.transformer.layer.1.", "pre_classifier.", "classifier."},
        ),
        ("t5", {"decoder.block.1.", "decoder.final_layer_norm."}),
        ("bart", {"model.decoder.layers.1."}),
        ("opt", {"model.decoder.layers.1.", "model.decoder.final_layer_norm."}),
        ("llama-tied", {"model.layers.1.", "model.norm."}),
        ("llama-untied", {"model.layers.1.", "model.norm.", "lm_head."}),
    ],
)
def test_the_top_block_the_final_norm_and_the_head_train(shape: str, beginnings: set) -> None:
    trained = top_names(shape, blocks=1)
    assert all(any(name.startswith(start) for name in trained) for start in beginnings)
    assert all(name.startswith(tuple(beginnings)) for name in trained)


def test_a_tied_head_trains_only_when_asked_for() -> None:
    assert "transformer.wte.weight" not in top_names("gpt2", blocks=1)
    assert "transformer.wte.weight" in top_names("gpt2", blocks=1, train_head=True)


def test_blocks_that_share_their_weights_count_once() -> None:
    with rejects("method.blocks", 2):
        top_names("albert-classification", blocks=2)
    assert "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight" in top_names(
        "albert-classification", blocks=1
    )


def test_a_model_without_a_list_of_blocks_is_refused() -> None:
    model = fresh("gpt2")
    model.transformer.h = model.transformer.h[0]
    with rejects("method", "top2"):
        recipe("top2").prepare(model)
