"""Quantized base models: exact clips over them, weights that stay, and what is refused."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.pytorch_utils import Conv1D

from dpft.config.load import from_values
from dpft.config.schema import check_quantization
from dpft.constants import CAUSAL, Head
from dpft.methods.base import METHODS, Method
from dpft.models import loading
from dpft.models.architecture import read_architecture
from dpft.models.loading import dequantize, load_model, meta_model
from dpft.models.quantization import FrozenLinear, bits_config
from dpft.models.source import ModelConfig
from dpft.parallel.parallel_config import ParallelConfig
from dpft.privacy.release_guard import digests_of
from tests.privacy.clipping.models import SYNTHETIC, losses_of, records
from tests.privacy.clipping.oracle import (
    ENGINES,
    TOLERANCE,
    clipped,
    distance,
    unit_gradients,
)
from tests.rejections import rejects
from tests.slowness import slow_but

SIZES = {
    "vocab_size": 61, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
    "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
BASES: dict[str, Callable[[], hf.PreTrainedModel]] = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SIZES)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES, head_dim=16)),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=61,
            n_positions=32,
            n_embd=64,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=1,
            eos_token_id=1,
        )  # fmt: skip
    ),
}
TARGETS = {"gpt2": ("c_attn", "c_proj")}
KINDS = ("nf4", "int8")
NORM = 0.5
EVERY = [(base, kind) for base in BASES for kind in KINDS]
FAST = (("llama", "nf4"), ("gpt2", "int8"))
NF4_LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""Dettmers et al. 2023 (arXiv 2305.14314), appendix E."""

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a base's name to a folder with it, far from symmetric."""
    root = tmp_path_factory.mktemp("bases")

    def folder(base: str) -> Path:
        if not (root / base).exists():
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(0)
                model = BASES[base]()
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
                model.save_pretrained(root / base)
        return root / base

    return folder


def loaded(folder: Path, quantization: str, **settings: Any) -> hf.PreTrainedModel:
    config = ModelConfig(name="base", path=str(folder), quantization=quantization, **settings)
    return load_model(read_architecture(config), seed=0)


def adapted(base: hf.PreTrainedModel, name: str = "llama", method: str = "lora") -> nn.Module:
    """Return the base with adapters whose weights are far from their start."""
    targets = TARGETS.get(name, ("q_proj", "v_proj", "down_proj"))
    settings: Any = {"lora": {"rank": 2, "targets": targets}, "adapter": {"bottleneck": 4}}
    settings = settings.get(method, {})
    prepared = METHODS.named(method)(name=method, **settings).prepare(base)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2)
        for parameter in prepared.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return prepared.train()


def assert_exact(model: nn.Module, engine: str = "auto") -> None:
    """Assert that sums are those of examples executed separately, each longer than the norm."""
    batch = records()
    expected = unit_gradients(model, losses_of, batch, alone=batch.alone())
    assert expected.norms.min() > NORM
    got = clipped(
        model, losses_of, [batch], NORM, synthetic=SYNTHETIC,
        alone=[each.alone() for each in SYNTHETIC], engine=engine,
    )  # fmt: skip
    assert (got.choice.engine == "rows") == (engine == "rows")
    assert distance(got, expected, NORM) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "checkpointing"),
    [(*base, checkpointing) for base in EVERY for checkpointing in (False, True)],
)
def test_norms_and_sums_are_those_of_examples_executed_separately(
    folders: Callable[[str], Path], name: str, kind: str, checkpointing: bool
) -> None:
    model = adapted(loaded(folders(name), kind, gradient_checkpointing=checkpointing), name)
    for engine in ENGINES:
        assert_exact(model, engine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "method"),
    slow_but([("int8", "bitfit")], product(KINDS, ("adapter", "bitfit", "norms"))),
)
def test_other_methods_are_exact_too(folders, kind: str, method: str) -> None:
    assert_exact(adapted(loaded(folders("gpt2"), kind), "gpt2", method))


@pytest.mark.parametrize("kind", KINDS)
def test_every_linear_layer_but_the_head_is_quantized_and_frozen(folders, kind: str) -> None:
    model = loaded(folders("llama"), kind)
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    quantized = {name for name, layer in layers.items() if isinstance(layer, FrozenLinear)}
    assert set(layers) - quantized == {"lm_head"} and len(quantized) == 14
    held = {layers[name].weight.dtype for name in quantized}
    assert held == {torch.uint8 if kind == "nf4" else torch.int8}
    assert not any(layers[name].weight.requires_grad for name in quantized)
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_nf4_weights_are_the_published_levels_of_their_block(folders) -> None:
    layer = loaded(folders("llama"), "nf4").model.layers[0].mlp.up_proj
    original = hf.AutoModelForCausalLM.from_pretrained(folders("llama")).model.layers[0].mlp.up_proj
    blocks = layer.weight_in(torch.float32).reshape(-1, 64)
    level = blocks / blocks.abs().amax(1, keepdim=True)
    off = (level[..., None] - torch.tensor(NF4_LEVELS)).abs().amin(-1)
    assert len(blocks) == 64 * 128 // 64 and off.max() < 1e-6
    scales = original.weight.reshape(-1, 64).abs().amax(1)
    # The scales are held in eight bits, of the largest of their differences from the mean.
    spread = (scales - scales.mean()).abs().max()
    assert (blocks.abs().amax(1) - scales).abs().max() < 0.02 * spread


def test_int8_weights_are_within_half_a_level_of_their_row(folders) -> None:
    layer = loaded(folders("llama"), "int8").model.layers[0].mlp.up_proj
    original = hf.AutoModelForCausalLM.from_pretrained(folders("llama")).model.layers[0].mlp.up_proj
    level = original.weight.abs().amax(1, keepdim=True) / 127
    off = (layer.weight_in(torch.float32) - original.weight).abs() / level
    # bitsandbytes rounds the weights to 16 bits first: 127 levels of 2^-11 at most.
    assert 0.4 < off.max() < 0.5 + 127 * 2**-11


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_but(["nf4"], KINDS))
def test_the_same_checkpoint_is_quantized_to_the_same_bits(folders, kind: str) -> None:
    one, other = (digests_of(loaded(folders("qwen2"), kind)) for _ in range(2))
    assert one == other and any("q_proj" in name for name in one)
    scales = "absmax" if kind == "nf4" else "SCB"
    assert any(scales in name for name in one), "a scale is digested as its weights are"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_neither_training_nor_evaluation_writes_to_frozen_state(folders, kind: str) -> None:
    model = adapted(loaded(folders("llama"), kind))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    before, batch = digests_of(model, trained), records()
    clipped(model, losses_of, [batch], NORM, synthetic=SYNTHETIC)
    model.eval()
    with torch.no_grad():
        evaluated = losses_of(model, batch)
    assert digests_of(model, trained) == before and len(before) > 14
    assert torch.allclose(model.train() and losses_of(model, batch), evaluated, rtol=1e-6)


def test_an_example_never_changes_what_another_gets(folders) -> None:
    """The trap of LLM.int8(): a column that is large in any row is computed otherwise in all."""
    theirs = hf.AutoModelForCausalLM.from_pretrained(
        folders("llama"), quantization_config=hf.BitsAndBytesConfig(load_in_8bit=True)
    ).model.layers[0].mlp.up_proj  # fmt: skip
    ours = loaded(folders("llama"), "int8").eval().model.layers[0].mlp.up_proj
    torch.manual_seed(0)
    rows = torch.randn(2, 64)
    outlier = rows.clone()
    outlier[1, ::3] = 50.0
    with torch.no_grad():
        assert not torch.equal(theirs.eval()(rows)[0], theirs(outlier)[0]), "the trap is real"
        assert torch.equal(ours(rows)[0], ours(outlier)[0])
    assert ours.state.threshold == bits_config("int8").llm_int8_threshold == 0.0


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_frozen_layer_is_the_product_with_its_weight(folders, precision) -> None:
    layer = loaded(folders("qwen2"), "nf4").model.layers[0].self_attn.q_proj
    plain = nn.Linear(64, 64)
    plain.weight = nn.Parameter(layer.weight_in(torch.float32))
    plain.bias = nn.Parameter(layer.bias.detach().clone())
    inputs = torch.randn(3, 5, 64, requires_grad=True)
    outcomes = []
    for each in (layer, plain):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
            output = each(inputs)
        assert output.dtype == precision
        (gradient,) = torch.autograd.grad(output.float().square().sum(), inputs)
        outcomes.append((output.float(), gradient))
    tolerance = 1e-5 if precision == torch.float32 else 2e-2
    for found, expected in zip(*outcomes, strict=True):
        assert (found - expected).norm() < tolerance * expected.norm()


@pytest.mark.slow
def test_a_merged_export_is_of_the_weights_that_it_trained_on(folders) -> None:
    for name in ("llama", "gpt2"):
        settings = ModelConfig(name="base", path=str(folders(name)), quantization="nf4")
        base = load_model(read_architecture(settings), seed=0).eval()
        batch = records()
        with torch.no_grad():
            expected = losses_of(base, batch)
            plain = dequantize(base, settings)
            assert torch.allclose(losses_of(plain, batch), expected, rtol=1e-6)
        assert not any(isinstance(module, FrozenLinear) for module in plain.modules())
        assert any(isinstance(m, Conv1D) for m in plain.modules()) == (name == "gpt2")
        assert {p.dtype for p in plain.parameters()} == {torch.float32}
        plain.save_pretrained(folders(name).with_name(f"{name}-plain"))
        again = hf.AutoModelForCausalLM.from_pretrained(folders(name).with_name(f"{name}-plain"))
        with torch.no_grad():
            assert torch.allclose(losses_of(again, batch), expected, rtol=1e-6)


@pytest.mark.parametrize(("name", "kind"), slow_but(FAST, EVERY))
def test_a_plan_counts_the_bytes_that_loading_takes(folders, name: str, kind: str) -> None:
    architecture = read_architecture(
        ModelConfig(name="base", path=str(folders(name)), quantization=kind)
    )
    planned = sum(p.nbytes for p in meta_model(architecture).parameters())
    state = load_model(architecture, seed=0).state_dict()
    # the code book, of 16 or 256 numbers, and a few words of JSON are the same for every layer
    own = {n: t for n, t in state.items() if "quant_map" not in n and "quant_state" not in n}
    tied = name == "gpt2"
    taken = sum(t.nbytes for n, t in own.items() if not (tied and n == "lm_head.weight"))
    assert planned == pytest.approx(taken, rel=0.005) and planned > 0


ONE_BILLION = {
    # config.json of meta-llama/Llama-3.2-1B and Qwen/Qwen2.5-1.5B, and how many numbers they have
    "llama": (
        hf.LlamaConfig(
            vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
            num_attention_heads=32, num_key_value_heads=8, head_dim=64, tie_word_embeddings=True,
        ),
        1_235_814_400, 128256 * 2048,
    ),
    "qwen2": (
        hf.Qwen2Config(
            vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
            num_attention_heads=12, num_key_value_heads=2, tie_word_embeddings=True,
        ),
        1_543_714_304, 151936 * 1536,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "bits", "name"),
    slow_but(
        [("nf4", 4.127, "llama")],
        [(*kind, name) for kind in (("nf4", 4.127), ("int8", 8.0)) for name in ONE_BILLION],
    ),
)
def test_a_plan_of_a_billion_weights_counts_bits_as_published(
    tmp_path: Path, name: str, kind: str, bits: float
) -> None:
    """4.127 bits a weight with scales of scales: Dettmers et al. 2023, section 3, 0.373 saved."""
    config, total, embedded = ONE_BILLION[name]
    config.architectures = [type(BASES[name]()).__name__]
    config.save_pretrained(tmp_path)
    architecture = read_architecture(
        ModelConfig(name="base", path=str(tmp_path), quantization=kind)
    )
    planned = sum(p.nbytes for p in meta_model(architecture, Head(kind=CAUSAL)).parameters())
    expected = 4 * embedded + bits / 8 * (total - embedded)
    assert planned == pytest.approx(expected, rel=0.005)


def method(name: str, **settings: Any) -> Method:
    return METHODS.named(name)(name=name, **settings)


@pytest.mark.parametrize("name", ["full", "bitfit", "rgp", "norms", "top2", "two_phase"])
def test_a_method_that_moves_the_base_is_refused(name: str) -> None:
    model = ModelConfig(name="base", hub_name="who/what", quantization="nf4")
    with rejects("model.quantization", "nf4"):
        check_quantization(method(name), model, ParallelConfig())


@pytest.mark.parametrize(
    ("own", "parallel", "key"),
    [
        ({"train_biases": True}, {}, "method.train_biases"),
        ({}, {"name": "fsdp"}, "model.quantization"),
    ],
)
def test_what_would_open_or_cut_frozen_weights_is_refused(own, parallel, key) -> None:
    model = ModelConfig(name="base", hub_name="who/what", quantization="int8")
    given = method("lora", **own), model, ParallelConfig(**parallel)
    with rejects(key):
        check_quantization(*given)
    check_quantization(method("lora"), model, ParallelConfig())


@pytest.mark.parametrize(
    "settings",
    [
        {"quantization": "int4", "hub_name": "a/b"},
        {"init": "random", "hub_name": "a/b"},
        {"embedded": True},
    ],
)
def test_a_base_that_cannot_be_quantized_is_refused(settings: dict) -> None:
    values = {"name": "base", "quantization": "nf4", **settings}
    with rejects("model.quantization", values["quantization"]):
        from_values(values, ModelConfig)


def test_a_checkpoint_that_is_quantized_already_is_refused(folders, tmp_path: Path) -> None:
    hf.AutoModelForCausalLM.from_pretrained(
        folders("llama"), quantization_config=bits_config("nf4")
    ).save_pretrained(tmp_path)
    for quantization in ("none", "nf4"):
        with rejects("model.path", str(tmp_path)):
            loaded(tmp_path, quantization)


def test_a_missing_extra_is_said(folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with rejects("model.quantization", "nf4") as faults:
        loaded(folders("llama"), "nf4")
    assert faults[0].hint == "pip install 'dpft[quantization]'"
