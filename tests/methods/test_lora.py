import copy
import json
import math
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
)

from dpft.config.load import from_values
from dpft.methods.adapter_files import base_folder
from dpft.methods.base import count_parameters
from dpft.methods.lora import Lora, changed_layers
from tests.methods.shapes import (
    CLASSIFIER,
    NAMES,
    assert_exact,
    fresh,
    logits,
    new_of,
    no_warnings,
    prepared,
    restored,
    shaken,
    trained_names,
)
from tests.privacy.clipping.architectures import batches
from tests.privacy.clipping.architectures.zoo import (
    CAUSAL,
    CLASS,
    EVERY,
    GROUPED,
    IDS,
    LABELS,
    TEXT,
    Case,
)
from tests.rejections import rejects
from tests.slowness import slow, slow_but

QUERY_AND_VALUE = ("q_proj", "v_proj")
ATTENTION_LAST = ["linear_attention", "full_attention"]
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 8}


def decoder(config: str, **options) -> Case:
    return Case(config, CAUSAL, batches.causal, GROUPED | options, (), ("eager",))


FAMILIES = {
    "phi3": (decoder("Phi3Config"), ("qkv_proj",)),
    "smollm3": (decoder("SmolLM3Config"), QUERY_AND_VALUE),
    "cohere": (decoder("CohereConfig"), QUERY_AND_VALUE),
    "olmo2": (decoder("Olmo2Config"), QUERY_AND_VALUE),
    "glm": (decoder("GlmConfig"), QUERY_AND_VALUE),
    "starcoder2": (decoder("Starcoder2Config"), QUERY_AND_VALUE),
    "vaultgemma": (
        decoder("VaultGemmaConfig", layer_types=["sliding_attention", "full_attention"]),
        QUERY_AND_VALUE,
    ),
    "lfm2": (
        decoder("Lfm2Config", layer_types=["conv", "full_attention"], block_multiple_of=8),
        QUERY_AND_VALUE,
    ),
    "qwen3_5": (
        decoder(
            "Qwen3_5TextConfig",
            layer_types=ATTENTION_LAST,
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
        ),
        QUERY_AND_VALUE,
    ),
    "falcon_h1": (
        decoder("FalconH1Config", mamba_d_ssm=32, mamba_n_groups=1, **MAMBA),
        QUERY_AND_VALUE,
    ),
    "mamba": (EVERY["mamba"], ("in_proj",)),
    "mamba2": (
        Case(
            "Mamba2Config",
            CAUSAL,
            batches.causal_without_mask,
            IDS
            | {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "n_groups": 1}
            | {"num_heads": 4, "head_dim": 8, "chunk_size": 8},
            (),
            ("eager",),
        ),
        ("in_proj",),
    ),
    "opt": (EVERY["opt"], QUERY_AND_VALUE),
    "gpt-neox": (EVERY["gpt-neox"], ("query_key_value",)),
    "mpt": (EVERY["mpt"], ("Wqkv",)),
    "modernbert": (
        Case(
            "ModernBertConfig",
            CLASS,
            batches.classification,
            TEXT | LABELS | {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 4},
            (),
            ("eager",),
        ),
        ("Wqkv",),
    ),
    "electra": (EVERY["electra"], ("query", "value")),
    "albert": (EVERY["albert-classification"], ("query", "value")),
    "distilbert": (EVERY["distilbert-masked-lm"], ("q_lin", "v_lin")),
    "deberta-v2": (EVERY["deberta-v2-classification"], ("query_proj", "value_proj")),
}
"""By family: a small model, and the layers that LoRA changes by default."""


def lora(**settings) -> Lora:
    return Lora(name="lora", **settings)


def test_gpt2_small_trains_147456_parameters_without_storage() -> None:
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config())
    prepared = lora().prepare(model)
    # Hu et al. 2021, GPT-2 on E2E: rank 4, alpha 32; 12 layers x rank 4 x (768 in + 3 * 768 out)
    assert prepared.peft_config["default"].lora_alpha == 32
    assert count_parameters(prepared).trainable == 12 * 4 * (768 + 3 * 768) == 147_456
    assert {parameter.device.type for parameter in prepared.parameters()} == {"meta"}


@pytest.mark.parametrize("name", slow_but(("gpt2",), NAMES))
def test_only_the_adapter_trains_and_it_starts_at_the_base_model(name) -> None:
    expected = logits(fresh(name), name)
    prepared = lora().prepare(fresh(name)).eval()
    assert all("lora_" in parameter for parameter in trained_names(prepared))
    assert torch.equal(logits(prepared, name), expected)


@pytest.mark.slow
def test_the_engine_of_rows_is_exact() -> None:
    """Book-keeping is tests/methods/test_peft_method.py's."""
    assert_exact(prepared(lora(train_biases=True, train_embeddings=True), "gpt2"), "gpt2", "rows")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_plain_peft_loads_the_folder_onto_a_pretrained_base(tmp_path: Path) -> None:
    fresh("gpt2").save_pretrained(tmp_path / "pretrained")
    base = GPT2LMHeadModel.from_pretrained(tmp_path / "pretrained").eval()
    method = lora(train_biases=True, train_embeddings=True)
    model = shaken(method.prepare(base)).eval()
    method.save(model, tmp_path / "adapter")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "pretrained")
    loaded = PeftModel.from_pretrained(again, tmp_path / "adapter")
    assert torch.equal(logits(loaded, "gpt2"), logits(model, "gpt2"))
    assert again.lm_head.weight is again.transformer.wte.weight
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "pretrained")
    assert base_folder(tmp_path / "adapter") is None


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_an_adapter_of_a_random_base_finds_it_by_itself(tmp_path: Path) -> None:
    model = prepared(lora(), "gpt2")
    lora().save(model, tmp_path)
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded, "gpt2"), logits(model, "gpt2"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_random_base_is_saved_as_it_was(name, tmp_path: Path) -> None:
    original = fresh(name)
    lora().save(prepared(lora(), name, new_of(name)), tmp_path)
    folder = base_folder(tmp_path)
    assert folder == tmp_path / "base"
    base = type(original).from_pretrained(folder)
    for parameter_name, parameter in original.named_parameters():
        assert torch.equal(parameter, base.get_parameter(parameter_name))


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(("gpt2",), NAMES))
def test_a_merged_model_needs_no_peft(name, tmp_path: Path) -> None:
    method = lora(train_biases=True, train_embeddings=True)
    model = prepared(method, name, new_of(name))
    merged = method.merge(restored(method, model, name, tmp_path))
    assert type(merged) is type(fresh(name))
    merged.save_pretrained(tmp_path / "merged")
    loaded = type(merged).from_pretrained(tmp_path / "merged")
    assert torch.allclose(logits(loaded, name), logits(model, name), atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("target", ["wte", "lm_head"])
def test_a_change_of_a_tied_weight_is_not_merged_into_both_layers(target) -> None:
    method = lora(targets=(target, "c_attn"))
    model = prepared(method, "gpt2")
    assert_exact(model, "gpt2")
    with rejects("merge", True):
        method.merge(model)


def test_a_new_head_trains_unless_told_not_to_and_counts_as_new() -> None:
    name = "bert-classification"
    prepared = lora().prepare(fresh(name), CLASSIFIER)
    assert count_parameters(prepared, CLASSIFIER).new == 16 * 3 + 3
    assert {n for n in trained_names(prepared) if "classifier" in n} == {
        f"base_model.model.classifier.modules_to_save.default.{part}" for part in ("weight", "bias")
    }
    frozen = lora(train_new_modules=False).prepare(fresh(name), CLASSIFIER)
    assert all("lora_" in parameter for parameter in trained_names(frozen))


def test_the_copy_of_a_head_that_peft_never_runs_does_not_train() -> None:
    prepared = lora(train_biases=True).prepare(fresh("bert-classification"))
    assert not any("original_module" in name for name in trained_names(prepared))
    assert "base_model.model.bert.pooler.dense.bias" in trained_names(prepared)


def test_a_config_serves_one_model_only() -> None:
    method = lora()
    first, second = method.prepare(fresh("gpt2")), method.prepare(fresh("t5"))
    assert first.peft_config["default"] is not second.peft_config["default"]
    assert first.peft_config["default"].target_modules == {"c_attn"}
    assert second.peft_config["default"].target_modules == {"q", "v"}


def test_targets_alpha_and_dropout_reach_the_layers() -> None:
    settings = {"targets": ("c_attn", "mlp.c_proj"), "alpha": 6, "rank": 3, "dropout": 0.25}
    with no_warnings():
        prepared = lora(**settings).prepare(fresh("gpt2"))
    attention = prepared.get_submodule("base_model.model.transformer.h.0.attn")
    assert attention.c_attn.scaling == {"default": 2.0}
    assert attention.c_attn.lora_dropout["default"].p == 0.25
    assert not hasattr(attention.c_proj, "lora_A")
    mlp = prepared.get_submodule("base_model.model.transformer.h.0.mlp")
    assert mlp.c_proj.lora_A["default"].weight.shape == (3, 64)


@pytest.mark.parametrize(
    ("settings", "key", "value"),
    [
        ({"dropout": 1.0}, "dropout", 1.0),
        ({"targets": []}, "method.targets", ()),
        ({"rank": 17}, "method.rank", 17),
        ({"targets": ["q"]}, "method.targets", "q"),
        ({"targets": ["c_attn", "attn"]}, "method.targets", "attn"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(settings, key, value) -> None:
    with rejects(key, value):
        from_values({"name": "lora"} | settings, Lora).prepare(fresh("gpt2"))


def test_neither_a_new_head_nor_a_layer_of_a_vision_tower_is_a_target() -> None:
    with rejects("method.targets", "classifier"):
        lora(targets=("classifier",)).prepare(fresh("bert-classification"), CLASSIFIER)
    with rejects("method.targets", "fc1"):
        lora(targets=("q_proj", "fc1")).prepare(gemma3())


def test_layers_that_peft_does_not_change_are_refused_with_other_targets_as_advice() -> None:
    sizes = {"vocab_size": 40, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 1}
    model = MambaForCausalLM(MambaConfig(**sizes))
    with rejects("method", "lora"):
        Lora(name="lora", targets=("out_proj",)).prepare(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "targets"),
    [(family, targets) for family in FAMILIES for targets in (None, "all-linear")],
)
def test_the_clipped_sum_of_every_family_is_that_of_its_examples_one_at_a_time(
    family, targets
) -> None:
    case, default = FAMILIES[family]
    model = shaken(lora(rank=2, targets=targets).prepare(case.build(dtype=torch.float32))).eval()
    assert targets or model.peft_config["default"].target_modules == set(default)
    expected = assert_exact(model, case.kind)
    for name in expected.gradients[0]:
        assert any(float(gradients[name].abs().max()) > 0 for gradients in expected.gradients)


def test_a_model_type_that_nobody_knows_has_default_targets_by_the_names_of_its_layers() -> None:
    model = fresh("gpt2")
    model.config.model_type = "unheard"
    assert lora().prepare(model).peft_config["default"].target_modules == {"c_attn"}


def test_a_model_without_known_names_must_be_told_its_targets() -> None:
    with rejects("method.targets") as faults:
        lora().prepare(fresh("xlnet"))
    assert faults[0].hint == "method.targets=all-linear" and "layer_1" in faults[0].message


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("gpt2", "CAUSAL_LM"),
        ("llama-untied", "CAUSAL_LM"),
        *slow(("qwen3", "CAUSAL_LM"), ("bert-classification", "SEQ_CLS"), ("t5", "SEQ_2_SEQ_LM")),
    ],
)
def test_all_linear_changes_the_layers_that_peft_changes(name, task) -> None:
    config = LoraConfig(target_modules="all-linear", task_type=task, fan_in_fan_out=name == "gpt2")
    expected = changed_layers(get_peft_model(fresh(name), config))
    assert changed_layers(lora(targets="all-linear").prepare(fresh(name))).keys() == expected.keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("name", ["llama-tied", "gpt2", "opt"])
def test_plain_peft_loads_an_adapter_of_all_linear_layers_and_merges_it(name, tmp_path) -> None:
    method = lora(targets="all-linear", use_rslora=True)
    model = prepared(method, name)
    method.save(model, tmp_path)
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.allclose(logits(loaded, name), logits(model, name), atol=1e-6)
    merged = method.merge(restored(method, model, name, tmp_path / "merged"))
    assert torch.allclose(logits(merged, name), logits(model, name), atol=1e-5)


def test_new_heads_are_no_linear_layers_to_change() -> None:
    heads = ("classifier", "pre_classifier")
    new = frozenset(f"{head}.{part}" for head in heads for part in ("weight", "bias"))
    for known in (new, frozenset()):
        model = lora(targets="all-linear").prepare(fresh("distilbert-classification"), known)
        assert not any("classifier" in name for name in changed_layers(model))


def gemma3() -> Gemma3ForConditionalGeneration:
    """A small Gemma 3 that also sees images; its vision tower has layers named as its text's."""
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    config = Gemma3Config(
        text_config=GROUPED | {"sliding_window": 4},
        vision_config=vision | {"num_attention_heads": 2, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    )
    torch.manual_seed(0)
    return Gemma3ForConditionalGeneration(config).eval()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize(
    ("targets", "layers"), [(None, 4), (("self_attn.q_proj",), 2), ("all-linear", 14)]
)
def test_only_the_text_model_of_a_multimodal_model_is_changed(targets, layers, tmp_path) -> None:
    method, ids = lora(targets=targets), torch.tensor([[5, 6, 7]])
    gemma3().save_pretrained(tmp_path / "base")
    base = Gemma3ForConditionalGeneration.from_pretrained(tmp_path / "base").eval()
    model = shaken(method.prepare(base)).eval()
    changed = changed_layers(model)
    assert len(changed) == layers
    assert all(name.startswith("model.language_model.layers.") for name in changed)
    method.save(model, tmp_path / "adapter")
    again = Gemma3ForConditionalGeneration.from_pretrained(tmp_path / "base").eval()
    loaded = PeftModel.from_pretrained(again, tmp_path / "adapter")
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


@pytest.mark.parametrize(("rank", "alpha", "scale"), [(4, None, 8), (9, None, 16 / 3), (9, 6, 2)])
def test_rank_stabilized_lora_divides_alpha_by_the_root_of_the_rank(rank, alpha, scale) -> None:
    base = fresh("llama-untied")
    weight = copy.deepcopy(base.model.layers[0].self_attn.q_proj.weight)
    method = lora(rank=rank, alpha=alpha, use_rslora=True, targets=("q_proj",))
    model = shaken(method.prepare(base)).eval()
    layer = changed_layers(model)["model.layers.0.self_attn.q_proj"]
    # Kalajdzievski 2023
    assert layer.scaling["default"] == pytest.approx(scale)
    change = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    merged = method.merge(model).model.layers[0].self_attn.q_proj.weight
    assert torch.allclose(merged, weight + (alpha or 16) / math.sqrt(rank) * change, atol=1e-5)
