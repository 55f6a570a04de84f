"""Lines of ``make gpu-check`` on numbers: clipped sums, their tails in half precision, noise bits.

The reference of every clipped sum is the definition: one example at a time, alone and unpadded, in
float64 on the CPU, by autograd alone.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from benchmarks.gpu_lines import Given, Line, Verdict
from benchmarks.workload import HALF_PRECISION, SYNTHETIC_LENGTHS
from dpft.constants import CAUSAL, CLASSES, CLASSIFIER, IGNORED_LABEL, SEQ2SEQ
from dpft.data.batches import TextLayout
from dpft.data.tokenization import TokenizedExample
from dpft.errors import InputError
from dpft.methods.base import METHODS, Method
from dpft.models.loading import checkpoint_activations
from dpft.models.losses import per_example_losses
from dpft.parallel.rank_sums import Piece
from dpft.privacy.cipher import Address, Purpose, keystream
from dpft.privacy.clipping.clipper import ClippingOptions
from dpft.privacy.clipping.engines import MicroBatch
from dpft.privacy.clipping.options import ENGINE_NAMES
from dpft.privacy.clipping.sums import rounding_headroom
from dpft.privacy.gaussians import keystream_words
from dpft.privacy.noise import BLOCK, BlockNoise, add_noise
from dpft.privacy.randomness import make_randomness

VOCABULARY, CLASS_COUNT = 307, 3
IDS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LAYERS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = GPT2Config(
    **IDS, n_positions=64, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
    attn_pdrop=0.0,
)  # fmt: skip
T5 = T5Config(
    **IDS, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0,
    decoder_start_token_id=0,
)  # fmt: skip
ROBERTA = RobertaConfig(
    **IDS, **LAYERS, **NO_DROPOUT, intermediate_size=96, max_position_embeddings=70,
    num_labels=CLASS_COUNT,
)  # fmt: skip
LLAMA = LlamaConfig(**IDS, **LAYERS, num_key_value_heads=2, intermediate_size=96)
METHOD_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "lora": {"rank": 4},
    "bitfit": {},
    "rgp": {"rank": 4, "train_embeddings": True},
    "prefix": {"length": 3, "hidden": 16},
}
BATCHES = ((9, 30, 17, 23), (30, 5, 21, 12))
"""Tokens of the rows of two batches, both of which the clipper checks."""
FLOAT32, FLOAT64 = 2e-5, 1e-11
"""Most that sums and norms may be off, relative. TF32 would be off by 3e-4."""
NORMS_IN_FLOAT32 = 2e-6
"""In float64, of models whose norm layers compute in float32 whatever they are given."""
SLACK = 1e-5
"""By which rounding may take one example's share beyond the clipping norm (PerExampleClipper)."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A small model, and how its rows lie in a batch."""

    build: Callable[[], PreTrainedModel]
    layout: TextLayout
    refuses: tuple[str, ...] = ()
    """Methods that do not fit it."""
    new: frozenset[str] = frozenset()
    float64: float = FLOAT64
    """Most that float64 may be off."""


CLASSIFICATION = TextLayout(kind=CLASSIFIER, answer=CLASSES, outputs=CLASS_COUNT)
HEAD = frozenset(
    f"classifier.{name}.{kind}" for name in ("dense", "out_proj") for kind in ("weight", "bias")
)
SHAPES = {
    "gpt2": Shape(build=lambda: GPT2LMHeadModel(GPT2), layout=TextLayout(kind=CAUSAL)),
    "llama": Shape(
        build=lambda: LlamaForCausalLM(LLAMA),
        layout=TextLayout(kind=CAUSAL),
        refuses=("bitfit",),
        float64=NORMS_IN_FLOAT32,
    ),
    "t5": Shape(
        build=lambda: T5ForConditionalGeneration(T5),
        layout=TextLayout(kind=SEQ2SEQ, takes_position_ids=False),
        refuses=("bitfit",),
        float64=NORMS_IN_FLOAT32,
    ),
    "roberta": Shape(
        build=lambda: RobertaForSequenceClassification(ROBERTA),
        layout=replace(CLASSIFICATION, pad_token_id=0),
        new=HEAD,
    ),
}


@dataclass(frozen=True)
class Clipped:
    """Norms, clip factors and the clipped sum of some examples; float64, on the CPU.

    Attributes:
        norms: Gradient norms before clipping, shape (b,).
        factors: The clipper's own factors, shape (b,), which its bound on rounding shortens.
        gradients: The clipped sum, by parameter.
    """

    norms: Tensor
    factors: Tensor
    gradients: Mapping[str, Tensor]

    def distance(self, each: Sequence[Mapping[str, Tensor]]) -> float:
        """Return the larger relative error, of norms or of the sum.

        Args:
            each: The gradient of each example by the definition, which is weighted by ``factors``.
        """
        expected = norms_of(each)
        norms = ((self.norms - expected).abs() / expected).max()
        total = {
            name: sum(f * g[name] for f, g in zip(self.factors.tolist(), each, strict=True))
            for name in self.gradients
        }
        apart = {name: g - total[name] for name, g in self.gradients.items()}
        return max(float(norms), length(apart) / length(total))


def norms_of(each: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Return the norm of each example's gradient, shape (b,)."""
    return torch.tensor([length(gradient) for gradient in each], dtype=torch.float64)


def length(gradients: Mapping[str, Tensor]) -> float:
    """Return the L2 norm of all of them together."""
    return float(torch.stack([g.double().square().sum() for g in gradients.values()]).sum().sqrt())


def prepared(shape: Shape, name: str, device: torch.device | str) -> tuple[Method, PreTrainedModel]:
    """Return a method and the model it trains, far from where training starts, in train mode."""
    torch.manual_seed(0)
    method = METHODS.named(name)(name=name, **METHOD_SETTINGS[name])
    model = method.prepare(shape.build(), shape.new)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model = model.to(device).train()
    method.begin_step(model, 0)
    return method, model


def rows(layout: TextLayout, lengths: Sequence[int], seed: int = 5) -> list[TokenizedExample]:
    """Return rows of random tokens, of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number, tokens in enumerate(lengths):
        ids = torch.randint(3, VOCABULARY, (tokens,), generator=generator).tolist()
        if layout.answer == CLASSES:
            labels = [float(at == number % CLASS_COUNT) for at in range(CLASS_COUNT)]
        else:
            unread = 0 if layout.kind == SEQ2SEQ else tokens // 3
            labels = [IGNORED_LABEL] * unread + ids[unread:]
        found.append(TokenizedExample(input_ids=ids, labels=labels))
    return found


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return what trains, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def one_at_a_time(
    model: nn.Module, layout: TextLayout, examples: Sequence[TokenizedExample]
) -> list[dict[str, Tensor]]:
    """Return each example's gradient by the definition, from a float64 copy on the CPU."""
    double = copy.deepcopy(model).to("cpu", torch.float64)
    named = trained(double)
    found = []
    for example in examples:
        (loss,) = per_example_losses(double, layout.collate([example]))
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        given = zip(named.items(), gradients, strict=True)
        found.append({n: torch.zeros_like(p) if g is None else g for (n, p), g in given})
    return found


def clipped_by_dpft(
    model: nn.Module,
    layout: TextLayout,
    batches: Sequence[Sequence[TokenizedExample]],
    norm: float,
    *,
    engine: str = "auto",
    precision: str = "fp32",
    loss_scale: float = 1.0,
) -> Clipped:
    """Return what a clipper makes of some batches, one after the other."""
    device = next(model.parameters()).device
    for parameter in model.parameters():
        parameter.grad = None
    options = ClippingOptions(
        max_grad_norm=norm, engine=engine, loss_scale=loss_scale,
        autocast=HALF_PRECISION.get(precision),
    )  # fmt: skip
    with options.make(model, per_example_losses) as clipper:
        synthetic = [rows(layout, lengths) for lengths in SYNTHETIC_LENGTHS]
        clipper.self_check(
            *(layout.collate(examples).to(device) for examples in synthetic),
            alone=[[layout.collate([row]).to(device) for row in each] for each in synthetic],
        )
        norms, factors = [], []
        for examples in batches:
            batch = layout.collate(examples).to(device)
            norms.append(clipper.accumulate(batch).double().cpu())
            micro_batch = MicroBatch(batch, len(examples), len(examples))
            factors.append(clipper._engine.run(micro_batch, clipper.style).factors[0].cpu())
    gradients = {
        name: torch.zeros_like(p, dtype=torch.float64, device="cpu")
        if p.grad is None
        else p.grad.double().cpu()
        for name, p in trained(model).items()
    }
    return Clipped(torch.cat(norms), torch.cat(factors), gradients)


def exactness(given: Given, *, shape: str) -> Verdict:
    """Compare every method and engine, and checkpointing, with the definition."""
    own = SHAPES[shape]
    worst: dict[str, float] = {}
    shortened = 0.0
    refused = []
    methods = [name for name in METHOD_SETTINGS if name not in own.refuses]
    methods = methods[:2] if given.quick else methods
    for name in methods:
        _, model = prepared(own, name, given.device)
        batches = [rows(own.layout, lengths, seed) for seed, lengths in enumerate(BATCHES)]
        each = one_at_a_time(model, own.layout, [row for batch in batches for row in batch])
        norm = float(norms_of(each).median())
        for case, found in _cases(own, name, model, batches, norm, quick=given.quick):
            if found is None:
                refused.append(f"{name}/{case}")
                continue
            worst[f"{name}/{case}"] = found.distance(each)
            ideal = (norm / norms_of(each)).clamp(max=1.0)
            shortened = max(shortened, float((1 - found.factors / ideal).max()))
    limits = {case: own.float64 if "float64" in case else FLOAT32 for case in worst}
    over = {case: far for case, far in worst.items() if not far <= limits[case]}
    single = {case: far for case, far in worst.items() if "float64" not in case}
    if not single or len(worst) < 2 * len(methods):
        return Verdict(False, f"too little was compared; refused: {', '.join(refused)}", worst)
    farthest = max(single, key=lambda case: single[case])
    doubles = [far for case, far in worst.items() if "float64" in case]
    seen = (
        f"{len(worst)} cases of {len(methods)} methods, farthest {single[farthest]:.1e}"
        f" ({farthest}), in float64 {max(doubles):.1e}; factors shortened by {shortened:.1e}"
    )
    seen += f"; refused: {', '.join(refused)}" if refused else ""
    if over:
        seen = f"too far: {', '.join(f'{c} {far:.1e}' for c, far in over.items())}; {seen}"
    return Verdict(not over, seen, worst)


def _cases(
    shape: Shape,
    method: str,
    model: PreTrainedModel,
    batches: Sequence[Sequence[TokenizedExample]],
    norm: float,
    *,
    quick: bool,
) -> Iterator[tuple[str, Clipped | None]]:
    """Yield what a clipper gives in each way; None where it refuses the way."""

    def by(changed: nn.Module, engine: str = "auto") -> Clipped | None:
        try:
            return clipped_by_dpft(changed, shape.layout, batches, norm, engine=engine)
        except InputError as error:
            print(f"{method}: {error}", flush=True)
            return None

    yield "float64", by(copy.deepcopy(model).double())
    yield "auto", by(model)
    for engine in ENGINE_NAMES[:1] if quick else ENGINE_NAMES:
        yield engine, by(model, engine)
    if method == "prefix":  # its prefixes are past keys, which checkpointing throws away
        return
    checkpoint_activations(model)
    yield "checkpointing", by(model)


def tails(given: Given, *, precision: str, loss_scale: float = 1.0) -> Verdict:
    """Measure what one example adds to the sum, and what its leaving moves, over the norm.

    Every gradient is longer than the norm. What the others' rounding moves with it, where kernels
    depend on the number of rows, is in the second number and not in the first.
    """
    shape = SHAPES["gpt2"]
    trials, size = (2, 4) if given.quick else (12, 16)
    most_alone = most_moved = 0.0
    compared = 0
    norm = 1e-3
    for engine in ENGINE_NAMES:
        _, model = prepared(shape, "full", given.device)
        for trial in range(trials):
            lengths = [8 + (7 * at + trial) % 40 for at in range(size - 1)] + [48]
            examples = rows(shape.layout, lengths, seed=trial)
            words = {"engine": engine, "precision": precision, "loss_scale": loss_scale}
            everyone = clipped_by_dpft(model, shape.layout, [examples], norm, **words)
            rest = clipped_by_dpft(model, shape.layout, [examples[1:]], norm, **words)
            lone = clipped_by_dpft(model, shape.layout, [examples[:1]], norm, **words)
            finite = bool(everyone.norms.isfinite().all())
            assert finite and float(everyone.norms.min()) > norm, "gradients must be clipped"
            moved = {n: g - rest.gradients[n] for n, g in everyone.gradients.items()}
            most_alone = max(most_alone, length(lone.gradients) / norm)
            most_moved = max(most_moved, length(moved) / norm)
            compared += 1
    headroom = rounding_headroom(size)
    seen = (
        f"{compared} draws of {size}: an example alone adds C x (1 {most_alone - 1:+.1e}), limit"
        f" {SLACK:g}; its leaving moves C x (1 {most_moved - 1:+.1e}), limit {headroom:.1e}"
    )
    holds = 0.99 < most_alone <= 1 + SLACK and 0.99 < most_moved <= 1 + headroom
    return Verdict(holds, seen, {"alone": most_alone, "moved": most_moved})


def noise_bits(given: Given) -> Verdict:
    """Compare keystream, Gaussians and noisy sums of the device with the CPU's, the same key."""
    device, cpu = torch.device(given.device), torch.device("cpu")
    count = 2**16 if given.quick else 2**20
    key = bytes(range(32))
    address = Address(Purpose.NOISE, 3, 5, 7)
    expected = np.frombuffer(keystream(key, address, 8 * count), dtype=np.int64)
    begun = time.monotonic()
    words = keystream_words(key, [address], [count], device)[0].cpu().numpy()
    compiling = time.monotonic() - begun
    same_words = bool((words == expected).all())
    ours, theirs = (BlockNoise(make_randomness(each, 1).noise, 0) for each in (device, cpu))
    off, ulps_off = 0.0, 0
    blocks = [Piece(1, number, 0, count) for number in range(4)]
    for pair in zip(theirs.halves(blocks), ours.halves(blocks), strict=True):
        for other, mine in zip(*pair, strict=True):
            apart = (mine.cpu() - other).abs()
            off, ulps_off = max(off, float(apart.max())), ulps_off + int((apart > 0).sum())
    sizes = (1, 7, 1000, BLOCK + 3, *(() if given.quick else (3 * BLOCK,)))
    changed, total = 0, sum(sizes)
    noisy = []
    for place in (device, device, cpu):
        parameters = [nn.Parameter(torch.zeros(size, device=place)) for size in sizes]
        for number, parameter in enumerate(parameters):
            generator = torch.Generator().manual_seed(number)
            parameter.grad = torch.randn(len(parameter), generator=generator).to(place)
        add_noise(parameters, 0.37, make_randomness(place, 1).noise, 2)
        noisy.append(torch.cat([p.grad.cpu() for p in parameters if p.grad is not None]))
    twice = bool((noisy[0] == noisy[1]).all())
    changed = int((noisy[0] != noisy[2]).sum())
    seen = (
        f"keystream {'the same bits' if same_words else 'DIFFERS'}; Gaussians off by {off:.1e}"
        f" at most ({ulps_off} of {4 * count}); noisy sums: {changed} of {total} not the"
        f" CPU's, {'none' if twice else 'SOME'} from a second draw; first {compiling:.1f} s"
    )
    holds = same_words and twice and off <= 1e-13 and changed <= total * 1e-6
    return Verdict(holds, seen, {"off": off, "changed": changed, "total": total})


EXACTNESS: Mapping[str, Line] = {
    **{
        f"exactness_{name}": Line(
            work=partial(exactness, shape=name),
            limit=150.0,
            says=f"norms and sums, {name}: at most {FLOAT32:g} off, float64 {shape.float64:g}",
        )
        for name, shape in SHAPES.items()
    },
    "noise_bits": Line(
        work=noise_bits,
        limit=90.0,
        says="noise: the keystream's bits, Gaussians within 1e-13, 1e-6 of the sums changed",
    ),
    "tails_fp32": Line(
        work=partial(tails, precision="fp32"), limit=90.0, says="sensitivity in float32"
    ),
    "tails_bf16": Line(
        work=partial(tails, precision="bf16"), limit=90.0, says="sensitivity under bf16 autocast"
    ),
    "tails_fp16": Line(
        work=partial(tails, precision="fp16", loss_scale=1024.0),
        limit=90.0,
        says="sensitivity under fp16 autocast, loss scale 1024",
    ),
}
