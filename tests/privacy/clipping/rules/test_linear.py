"""Dense layers and heads that give losses: their gradients, and what autocast makes of them."""

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.falcon.modeling_falcon import FalconLinear
from transformers.pytorch_utils import Conv1D

from dpft import head_losses
from dpft.data.batches import Batch, TextLayout, synthetic_rows
from dpft.head_losses import fuse_head
from dpft.kinds import CAUSAL, SEQ2SEQ
from dpft.models.losses import per_example_losses
from dpft.privacy.clipping import PerExampleClipper, norms
from dpft.privacy.clipping.rules import find_rule, for_normalization, for_product, sum_dtype
from dpft.training.training_config import autocast
from tests.privacy.clipping.oracle import gpt2
from tests.privacy.clipping.rules.oracle import (
    assert_equals_the_loop,
    assert_forward_and_input_gradient_are_the_layers_own,
)
from tests.slowness import slow_but, slow_but_each

SHAPES = [(4, 3), (4, 5, 3), (4, 2, 5, 3), (1, 40, 3)]
LAYERS = {
    "linear": lambda: nn.Linear(3, 6),
    "linear without bias": lambda: nn.Linear(3, 6, bias=False),
    "conv1d": lambda: Conv1D(6, 3),
    "falcon's": lambda: FalconLinear(3, 6),
}


def test_falcons_layer_has_a_rule_and_what_inherits_from_it_has_none():
    class Doubled(FalconLinear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    assert find_rule(FalconLinear(3, 6)) is find_rule(nn.Linear(3, 6))
    assert find_rule(Doubled(3, 6)) is None


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return LAYERS[request.param]().double()


@pytest.mark.parametrize("shape", SHAPES)
def test_norms_and_sums_equal_the_loop(layer, shape):
    inputs = torch.randn(shape, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(inputs))


@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_input_gradient_are_the_layers_own(layer, shape):
    inputs = torch.randn(shape, dtype=torch.float64)
    assert_forward_and_input_gradient_are_the_layers_own(layer, inputs)


def test_a_frozen_weight_with_a_trainable_bias():
    layer = nn.Linear(3, 6).double()
    layer.weight.requires_grad = False
    inputs = torch.randn(4, 5, 3, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(inputs))


def test_a_layer_used_twice_has_one_gradient():
    layer = nn.Linear(3, 3).double()
    inputs = torch.randn(4, 5, 3, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(layer(inputs).tanh()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("enabled", [True, False])
def test_inputs_of_a_product_are_cast_as_a_dense_layers_are(dtype, enabled):
    inputs, weight = torch.ones(2, 3, dtype=dtype), torch.ones(4, 3, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        assert for_product(inputs).dtype == F.linear(inputs, weight).dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_of_a_normalization_stay_as_they_are_on_a_cpu(dtype):
    inputs = torch.ones(2, 3, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert for_normalization(inputs) is inputs
        assert F.layer_norm(inputs, (3,)).dtype == dtype


def test_gradients_are_added_up_in_float32_or_better():
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    found = [sum_dtype(torch.ones(1, dtype=dtype)) for dtype in dtypes]
    assert found == [torch.float32, torch.float32, torch.float32, torch.float64]


VOCABULARY, ROWS, LENGTH, NORM = 61, 6, 13, 0.2
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 61}
Result = tuple[Tensor, dict[str, Tensor]]


def llama() -> nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL, intermediate_size=24))


def opt() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"ffn_dim": 24, "word_embed_proj_dim": 8, "max_position_embeddings": 32, "dropout": 0.0}
    return OPTForCausalLM(OPTConfig(**{**SMALL, "num_hidden_layers": 1}, **sizes))


def t5() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    config = T5Config(**sizes, vocab_size=VOCABULARY, dropout_rate=0.0, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config)


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "gpt2 tied": gpt2,
    "gpt2 untied": lambda: gpt2(tied=False),
    "llama": llama,
    "opt": opt,
    "t5": t5,
}


def batch_for(model: nn.Module) -> Batch:
    """Ragged, padded rows; the first positions of each carry no loss."""
    layout = TextLayout(kind=CAUSAL, takes_position_ids=type(model).__name__.startswith("GPT2"))
    if isinstance(model, T5ForConditionalGeneration):
        layout = TextLayout(kind=SEQ2SEQ, decoder_start_token_id=0)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return layout.collate(synthetic_rows(layout, ROWS, LENGTH, vocab_size=VOCABULARY))


def clipped(
    model: nn.Module,
    engine: str,
    *,
    batch: Batch | None = None,
    precision: str = "fp32",
    units: Tensor | None = None,
    norm: float = NORM,
) -> Result:
    """Norms and sums of the second of two batches, which is proved already."""
    batch = batch or batch_for(model)

    def losses() -> Tensor:
        with autocast(precision, torch.device("cpu")):
            return per_example_losses(model, batch)

    with PerExampleClipper(model, norm, engine=engine) as clipper:
        for _ in range(2):
            model.zero_grad()
            lengths = clipper.accumulate(losses, units)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return lengths, {name: p.grad.clone() for name, p in trained.items() if p.grad is not None}


def assert_same(got: Result, expected: Result, tolerance: float = 1e-5) -> None:
    lengths, sums = got
    true_norms, true_sums = expected
    assert sums.keys() == true_sums.keys()
    assert torch.allclose(lengths, true_norms, rtol=tolerance)
    assert true_norms.max() > NORM, "the test must clip something"
    whole = torch.stack([each.norm() for each in true_sums.values()]).norm()
    for name, true in true_sums.items():
        assert (sums[name] - true).norm() <= tolerance * (true.norm() + 0.1 * whole), name


@pytest.fixture(params=slow_but([4 * VOCABULARY], [2**24, 4 * VOCABULARY]), ids=str)
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_losses, "CHUNK_NUMBERS", request.param)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize(
    ("name", "engine"), slow_but_each(MODELS, ("book_keeping", "two_pass", "instantiate", "loop"))
)
def test_a_fused_head_gives_norms_and_sums_of_the_unfused_loop(name: str, engine: str) -> None:
    model = MODELS[name]().train()
    expected = clipped(model, "loop")
    assert fuse_head(model) is not None
    assert_same(clipped(model, engine), expected)


@pytest.mark.parametrize(
    ("name", "engine"), slow_but_each(["gpt2 tied", "llama"], ["book_keeping", "two_pass"])
)
def test_rows_of_one_unit_are_added_up_before_the_norm(name: str, engine: str) -> None:
    model, units = MODELS[name]().train(), torch.tensor([3, 3, 1, 1, 1, 7])
    expected = clipped(model, "loop", units=units)
    fuse_head(model)
    assert_same(clipped(model, engine, units=units), expected)


@pytest.mark.parametrize("trained", ["biases", "all but the head"])
def test_a_frozen_head_passes_its_gradient_on(trained: str) -> None:
    model = gpt2().train()
    if trained == "biases":
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name.endswith("bias")
    else:
        model.get_output_embeddings().weight.requires_grad = False
    expected = clipped(model, "loop")
    fuse_head(model)
    assert_same(clipped(model, "auto"), expected)


def test_blocks_that_are_computed_again_change_nothing() -> None:
    model = gpt2().train()
    expected = clipped(model, "loop")
    model.activation_checkpointing_enable({"use_reentrant": False})
    fuse_head(model)
    assert_same(clipped(model, "auto"), expected)


@pytest.mark.parametrize(
    ("name", "engine"), slow_but_each(["gpt2 tied", "llama"], ["book_keeping", "two_pass"])
)
def test_in_half_precision_what_is_added_has_the_norm_that_was_clipped(
    name: str, engine: str
) -> None:
    model = MODELS[name]().train()
    batch = batch_for(model)
    expected = clipped(model, "book_keeping", precision="bf16")
    fuse_head(model)
    assert_same(clipped(model, engine, precision="bf16"), expected, tolerance=2e-2)
    alone = Batch(
        inputs={key: rows[:1] for key, rows in batch.inputs.items()}, labels=batch.labels[:1]
    )
    lengths, sums = clipped(model, engine, batch=alone, precision="bf16", norm=1e3)
    length = torch.stack([each.double().square().sum() for each in sums.values()]).sum().sqrt()
    assert float(lengths[0]) == pytest.approx(float(length), rel=1e-5)


def test_an_example_that_is_not_finite_is_left_out() -> None:
    results = []
    for fuses in (False, True):
        model = llama().train()
        batch = batch_for(model)
        token = int(batch.inputs["input_ids"][0, 0])
        batch.inputs["input_ids"][1:][batch.inputs["input_ids"][1:] == token] = (token + 1) % 61
        with torch.no_grad():
            model.get_input_embeddings().weight[token] = float("nan")
        if fuses:
            fuse_head(model)
        results.append(clipped(model, "book_keeping", batch=batch))
    (lengths, sums), (true_norms, _) = results[1], results[0]
    assert true_norms[0] == 0 and torch.allclose(lengths, true_norms, rtol=1e-5)
    assert all(bool(each.isfinite().all()) for each in sums.values())
    assert_same(results[1], results[0])


def test_a_head_that_is_used_twice_is_clipped_as_one_use() -> None:
    model = gpt2().train()
    first = batch_for(model)
    second = Batch(inputs=first.inputs, labels=first.labels.flip(1))

    def both() -> Tensor:
        return per_example_losses(model, first) - 0.5 * per_example_losses(model, second)

    results = []
    for engine in ("loop", "book_keeping", "two_pass"):
        if engine != "loop":
            fuse_head(model)
        model.zero_grad()
        with PerExampleClipper(model, NORM, engine=engine) as clipper:
            lengths = clipper.accumulate(both)
        results.append((lengths, {n: p.grad.clone() for n, p in model.named_parameters()}))
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


@pytest.mark.parametrize(
    ("engine", "floor"), slow_but_each(["book_keeping", "two_pass"], [0.0, 10.0])
)
def test_norms_that_are_doubted_are_taken_with_care(
    engine: str, floor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gpt2().train()
    expected = clipped(model, "loop")
    fuse_head(model)
    careful = norms._Resolution(share=10.0, floor=floor)
    monkeypatch.setitem(norms._RESOLUTION, torch.float32, careful)
    assert_same(clipped(model, engine), expected)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("memory_mb", [0, 1])
def test_residuals_that_are_kept_give_the_same_sum(memory_mb: int) -> None:
    model = gpt2().train()
    expected = clipped(model, "loop")
    fuse_head(model)
    batch = batch_for(model)
    with PerExampleClipper(model, NORM, engine="book_keeping", memory_mb=memory_mb) as clipper:
        model.zero_grad()
        lengths = clipper.accumulate(lambda: per_example_losses(model, batch))
    sums = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert_same((lengths, sums), expected)
