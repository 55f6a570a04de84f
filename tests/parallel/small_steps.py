"""Steps of small models on any number of ranks, and what they leave for a comparison."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    ViTConfig,
    ViTForImageClassification,
)

from dpft.constants import CAUSAL, LABEL_WORDS, MASKED
from dpft.data.batches import RowView, TextLayout
from dpft.data.corpus_objectives import (
    SpanCorruption,
)
from dpft.data.images import ImageLayout, RandomView
from dpft.data.pixels import ImageForm
from dpft.methods.base import METHODS, Method
from dpft.models.losses import per_example_losses
from dpft.parallel.ranks import Ranks, RankShare, make_grid
from dpft.parallel.sharding import repeated_blocks, whole
from dpft.parallel.shards import ShardedModel, UnshardedSums
from dpft.privacy.clipping.clipper import ClippingChoice, ClippingOptions
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.ledger import NoLedger
from dpft.privacy.mechanisms.banded import Banded
from dpft.privacy.mechanisms.base import Mechanism
from dpft.privacy.mechanisms.dp_sgd import DPSGD
from dpft.privacy.plan import Phase, PrivacyPlan
from dpft.privacy.randomness import Randomness, make_randomness, restore_randomness
from dpft.training.loop import TrainingSet, compute_gradient
from dpft.training.training_config import autocast_dtype
from dpft.training.training_run import gathered
from tests.privacy.test_methods_twin import BERT, IDS, RECIPES, SHAPES, WORDS, Shape, row
from tests.self_checks import checked_phases

NORM = 0.05
LLAMA = IDS | {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA |= {"intermediate_size": 12, "max_position_embeddings": 32, "tie_word_embeddings": True}
VIT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 2}
VIT |= {"intermediate_size": 12, "image_size": 8, "patch_size": 4}
IMAGES = ImageLayout(
    form=ImageForm(channels=3, height=8, width=8), mean=(0.5,) * 3, std=(0.25,) * 3, outputs=2
)
IMAGE_HEAD = frozenset({"classifier.weight", "classifier.bias"})
MODELS = {
    **SHAPES,
    "t5": SHAPES["t5-text"],
    "llama": Shape(lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)), TextLayout(kind=CAUSAL)),
    "roberta": Shape(
        lambda: RobertaForMaskedLM(RobertaConfig(**BERT)),
        TextLayout(kind=MASKED, answer=LABEL_WORDS, words=WORDS),
    ),
    "t5-spans": SHAPES["t5-text"],
    "vit": Shape(lambda: ViTForImageClassification(ViTConfig(**VIT)), IMAGES, IMAGE_HEAD),
}
VIEWS: dict[str, RowView] = {
    "t5-spans": SpanCorruption(noise_density=0.3, mean_span=2.0, sentinels=(3, 4, 5), end=2),
    "vit": RandomView(),
}
"""What is read of a record, drawn anew in each step."""
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Steps to take, the same on every rank."""

    model: str = "gpt2"
    method: str = "full"
    engine: str = "auto"
    units: bool = False
    """Whether up to three records are one unit."""
    checkpointing: bool = False
    sample_rate: float = 0.5
    micro_batch_size: int = 3
    shard_size: int | None = None
    """Into how many shards the model is cut; None: each rank has it whole."""
    accumulates_shards: bool = False
    noise_multiplier: float = 1e-7
    """So little that what is left is the clipped sum."""
    steps: int = 2
    bands: int = 1
    """Of the noise; above 1 it hangs together, and groups take turns."""
    device: str = "cpu"
    precision: str = "fp32"
    """What losses are computed in; the loss scale of fp16 is 64."""

    @property
    def mechanism(self) -> Mechanism:
        """Of the bands."""
        if self.bands == 1:
            return DPSGD()
        return Banded(bands=self.bands, coefficients=(0.7, *[0.4] * (self.bands - 1)))

    @property
    def shape(self) -> Shape:
        """The kind of model."""
        return MODELS[self.model]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the steps of a case left on a rank."""

    gradients: list[dict[str, Tensor]]
    """Of each step."""
    norms: list[list[float]]
    """Of each step's units on all ranks, in ascending order."""
    own_units: list[int]
    """How many units of each step were this rank's."""
    collectives: list[dict[str, int]]
    """Of each step, how often each kind of operation was called."""
    sent_bytes: list[int]


def take_steps(ranks: Ranks, case: Case) -> Outcome:
    """Return what a private engine and this rank's share of the records make of a case."""
    method, model = prepared(case)
    shards = None if case.shard_size is None or ranks.size == 1 else sharded(model, case, ranks)
    training_set = replace(records(case), share=RankShare(ranks.rank, ranks.size))
    outcome = Outcome(gradients=[], norms=[], own_units=[], collectives=[], sent_bytes=[])
    with private_engine(model, method, case, ranks, shards) as engine:
        for step in range(1, case.steps + 1):
            method.begin_step(model, step - 1)
            called, sent = ranks.traffic.collectives.copy(), ranks.traffic.sent_bytes
            statistics = compute_gradient(training_set, engine, step, ranks)
            outcome.collectives.append(dict(ranks.traffic.collectives - called))
            outcome.sent_bytes.append(ranks.traffic.sent_bytes - sent)
            outcome.own_units.append(sum(len(norms) for norms in statistics.norms))
            everyones, _ = gathered(statistics, 0, ranks)
            norms = torch.cat([torch.empty(0), *(each.cpu() for each in everyones.norms)])
            outcome.norms.append(norms.sort().values.tolist())
            outcome.gradients.append(gradients_of(model))
    return outcome


def prepared(case: Case) -> tuple[Method, nn.Module]:
    """Return a method and its model without dropout, far from where training starts."""
    method = METHODS.named(case.method)(name=case.method, **RECIPES[case.method])
    torch.manual_seed(0)
    model = case.shape.build()
    if case.checkpointing:
        model.activation_checkpointing_enable()
    model = method.prepare(model, case.shape.new)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return method, model.train(case.checkpointing).to(case.device)


def records(case: Case) -> TrainingSet:
    """Return 24 ragged records, whole on every rank."""
    generator = torch.Generator().manual_seed(5)
    layout = case.shape.layout
    if isinstance(layout, ImageLayout):
        examples = [*layout.synthetic(nn.Identity(), 24, 1)]
    else:
        examples = [row(layout, number, 3 + number * 5 % 9, generator) for number in range(24)]
    units = [[at] if at % 4 else [at, at + 1, at + 2] for at in range(0, 22)]
    return TrainingSet(
        examples=examples,
        micro_batch_size=case.micro_batch_size,
        layout=layout,
        device=torch.device(case.device),
        units=units if case.units else None,
        view=VIEWS.get(case.model),
    )


def plan_of(method: Method, case: Case) -> PrivacyPlan:
    """Return the mechanism of a case, of the method's phases."""
    phases = tuple(
        Phase(
            method=phase.method,
            steps=phase.steps,
            max_grad_norm=phase.max_grad_norm or NORM,
            sensitivity=phase.max_grad_norm or NORM,
        )
        for phase in method.phases(case.steps, lambda epochs: 1)
    )
    batch = 12 if case.bands == 1 else 6
    return PrivacyPlan(
        noise_multiplier=case.noise_multiplier,
        sample_rate=case.sample_rate if case.bands == 1 else case.mechanism.rate(batch / 24),
        steps=case.steps,
        delta=0.01,
        num_examples=24,
        expected_batch_size=batch,
        clipping="flat",
        phases=phases,
        mechanism=case.mechanism,
        sampler=case.mechanism.sampler_name,
    )


def sharded(model: nn.Module, case: Case, ranks: Ranks) -> ShardedModel:
    """Cuts a case's model into shards."""
    made = ShardedModel(
        model,
        make_grid(ranks, case.shard_size, CPU),
        ranks,
        blocks=repeated_blocks(model),
        accumulates_shards=case.accumulates_shards,
    )
    ranks.serving_other_ranks = made.serving_other_ranks
    return made


def private_engine(
    model: nn.Module,
    method: Method,
    case: Case,
    ranks: Ranks,
    shards: ShardedModel | None = None,
) -> PrivacyEngine:
    """Return the engine of a rank, its keys those of a test seed."""
    return PrivacyEngine(
        model,
        per_example_losses,
        plan=plan_of(method, case),
        ledger=NoLedger(),
        randomness=seeded(ranks.rank, torch.device(case.device)),
        options=options_of(case),
        choices=choices_of(model, method, case, ranks, shards),
        ranks=ranks,
        shards=shards,
    )


def options_of(case: Case, shards: UnshardedSums | None = None) -> ClippingOptions:
    """Return how a case clips."""
    return ClippingOptions(
        max_grad_norm=1.0,
        engine=case.engine,
        loss_scale=64.0 if case.precision == "fp16" else 1.0,
        autocast=autocast_dtype(case.precision),
        shards=shards,
    )


def choices_of(
    model: nn.Module,
    method: Method,
    case: Case,
    ranks: Ranks,
    shards: ShardedModel | None = None,
) -> Sequence[ClippingChoice]:
    """Return the results of the self-check of each phase, as a run does: every rank calls it."""
    whole_sums = None if shards is None else UnshardedSums(shards.unsharded)
    with ranks.failing_together():
        return checked_phases(
            model,
            method,
            plan_of(method, case),
            case.shape.layout,
            options=options_of(case, whole_sums),
            has_units=case.units,
        )


def seeded(rank: int = 0, device: torch.device = CPU) -> Randomness:
    """Return a rank's sources of randomness, of the test seed that all ranks share."""
    return restore_randomness(device, make_randomness(device, 1).state(0), 1, rank=rank)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every gradient there is, by name."""
    return {
        name: whole(parameter.grad).cpu().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
