"""Layers without a rule and uses without the batch dimension: exact, or refused by name."""

import logging

import peft
import pytest
import torch
from torch import nn

from dpft.errors import InputError
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.separation.flow import learn_flow, signature_of
from dpft.privacy.clipping.separation.proof import CheckResult
from dpft.privacy.clipping.separation.regions import Level, RegionPlanner, RegionPlans
from dpft.privacy.clipping.trainable import TrainableParameters
from tests.privacy.clipping.architectures.batches import causal_without_positions, examples
from tests.privacy.clipping.architectures.comparison import clipped, difference
from tests.privacy.clipping.architectures.zoo import EVERY
from tests.privacy.clipping.oracle import Clipped
from tests.privacy.clipping.rules.oracle import assert_equals_the_loop

INPUTS = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
IMAGES = torch.randn(4, 6, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class PlusOneNorm(nn.Module):
    """Gemma's: the weight is added to one."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((6,), 0.1))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Scaled(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids) * 3


class ReadsAValue(nn.Linear):
    """What ``vmap`` cannot run."""

    def forward(self, x):
        return super().forward(x) if float(x.detach().sum()) > 0 else -super().forward(x)


class OnePosition(nn.Module):
    """BERT's way: positions of shape (1, t), added to all examples."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(4, 6)
        self.dense = nn.Linear(6, 6)

    def forward(self, x):
        return self.dense(x + self.positions(torch.arange(x.shape[1])[None]))


class RelativeBias(nn.Module):
    """T5's way: a (t, t) look-up, which at b = t looks like one that carries the batch."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(4, 1)

    def forward(self, x):
        steps = torch.arange(x.shape[1])
        bias = self.bias((steps[:, None] - steps[None]).abs()).squeeze(-1)
        return 20 * (x @ x.mT + bias).softmax(-1) @ x


class BehindItsBack(nn.Module):
    """DeBERTa's way: an embedding whose weight is used without calling it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 6)
        self.dense = nn.Linear(6, 6)

    def forward(self, x):
        return self.dense(x) * self.dense(self.table.weight)


class ClassToken(nn.Module):
    """ViT's way."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 1, 6))
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(torch.cat([self.token.expand(len(x), -1, -1), x], 1)).cumsum(1)


LAYERS = {
    "PReLU": (nn.PReLU, INPUTS),
    "RMSNorm": (lambda: nn.RMSNorm(6), INPUTS),
    "plus-one norm": (PlusOneNorm, INPUTS),
    "GroupNorm": (lambda: nn.GroupNorm(2, 6), IMAGES),
    "GroupNorm of no image": (lambda: nn.GroupNorm(2, 6), INPUTS[:, 0]),
    "Linear subclass": (lambda: Doubled(6, 3), INPUTS),
    "Embedding subclass": (lambda: Scaled(9, 6), torch.tensor([[1, 2, 1], [0, 0, 0]])),
    "Bilinear": (lambda: Twice(), INPUTS),
    "LSTM": (lambda: First(nn.LSTM(6, 3, batch_first=True)), INPUTS),
    "one position for all": (OnePosition, INPUTS[:, :4]),
    "relative bias, b = t": (RelativeBias, INPUTS[:, :4]),
    "a weight behind its layer's back": (BehindItsBack, INPUTS),
    "class token": (ClassToken, INPUTS),
    "multi-head attention": (lambda: SelfAttention(), INPUTS),
}


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.product = nn.Bilinear(6, 6, 2)

    def forward(self, x):
        return self.product(x, x.tanh())


class First(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize(("make", "inputs"), LAYERS.values(), ids=LAYERS)
def test_norms_and_sums_equal_the_loop(make, inputs):
    torch.manual_seed(0)
    layer = make().double()
    assert_equals_the_loop(layer, lambda: layer(inputs))


def test_what_cannot_be_mapped_runs_one_example_after_another_and_is_logged_once(caplog):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = ReadsAValue(6, 3)

        def forward(self, x):
            return self.inner(x)

    caplog.set_level(logging.INFO, logger="dpft")
    layer, inputs = Holder().double(), INPUTS.abs()
    for _ in range(2):
        assert_equals_the_loop(layer, lambda: layer(inputs))
    lines = [r.message for r in caplog.records if "one example after another" in r.message]
    assert len(lines) == 1 and lines[0].startswith("clipping: ReadsAValue runs")


def test_what_was_learned_from_one_example_is_learned_anew_from_several():
    layer = OnePosition().double()
    sums = []
    for engine in ("book_keeping", "loop"):
        layer.zero_grad()
        with PerExampleClipper(layer, 0.5, engine=engine) as clipper:
            for rows in (INPUTS[:1, :4], INPUTS[1:, :4]):
                clipper.accumulate(lambda rows=rows: layer(rows).square().sum((1, 2)))
        sums.append([p.grad for p in layer.parameters()])
    for got, expected in zip(*sums, strict=True):
        assert torch.allclose(got, expected, rtol=1e-10)


class Turned(nn.Module):
    """Gives out the batch in another place."""

    def __init__(self, place):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5, 1))
        self.place = place

    def forward(self, x):
        return (x.mT.contiguous() * self.scale.T[0, 0]).movedim(0, self.place)


def test_the_batch_in_third_place_is_refused_by_name():
    layer = Turned(2).double()
    with (
        PerExampleClipper(layer, 0.5) as clipper,
        pytest.raises(InputError, match="parameter scale is used without the batch dimension"),
    ):
        clipper.accumulate(lambda: layer(INPUTS).movedim(2, 0).sum((1, 2)))


@pytest.mark.parametrize("kind", [nn.Linear, ReadsAValue])
def test_the_batch_in_second_place_is_followed_through_a_module(kind, caplog):
    class TimeMajor(nn.Module):
        def __init__(self):
            super().__init__()
            self.turned = Turned(1)
            self.layer = nn.TransformerEncoderLayer(5, 1, 7, 0.0, activation=torch.exp)
            self.last = kind(5, 3)

        def forward(self, x):
            return self.last(self.layer(self.turned(x)).exp()).transpose(0, 1)

    layer = TimeMajor().double()
    caplog.set_level(logging.INFO, logger="dpft")
    assert_equals_the_loop(layer, lambda: layer(INPUTS))
    assert "TimeMajor" not in caplog.text


def test_a_layer_run_twice_in_a_region_adds_up_before_the_norm():
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.RMSNorm(6)
            self.dense = nn.Linear(6, 6)

        def forward(self, x):
            return self.norm(self.dense(self.norm(self.dense(x))))

    layer = Again().double()
    assert_equals_the_loop(layer, lambda: layer(INPUTS))


class ScaledLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.inner(x) * self.scale


def made():
    model = ScaledLayer()
    return model, RegionPlans(model, TrainableParameters(model))


def call(plans, model, x, learned):
    def learn():
        learned.append(x.shape)
        return learn_flow(model, model.forward, ((x,), {}), dict(model.named_parameters()))

    return plans.plan_for(signature_of(model, ((x,), {})), learn)


def test_a_plan_is_learned_once_per_kind_and_anew_where_it_was_ambiguous():
    model, plans = made()
    learned = []
    for shape in ((4, 4, 3), (4, 5, 3), (2, 6, 3), (6, 6, 3)):
        call(plans, model, torch.ones(shape), learned)
    assert learned == [(4, 4, 3), (4, 5, 3)]


def test_a_proof_holds_for_its_calls_and_its_level_alone():
    model, plans = made()
    x = torch.ones(4, 5, 3)
    plans.start()
    assert not plans.saw_a_call and not plans.are_proved(graph=1)
    plan = call(plans, model, x, [])
    assert plans.saw_a_call and not plans.are_proved(graph=1)
    plans.remember_proof(CheckResult.WHOLE)
    assert plans.are_proved(graph=1) and plans.are_proved(graph=1)
    assert not plans.are_proved(graph=2)
    assert plan.level is Level.SMALL and plans.widen()
    assert not plans.are_proved(graph=1)


def test_widening_ends_with_the_whole_model_one_example_after_another():
    model, plans = made()
    plans.start()
    plan = call(plans, model, torch.ones(4, 5, 3), [])
    levels = []
    while plans.widen():
        levels.append(plan.level)
    assert levels == [Level.CARRYING, Level.WHOLE, Level.LOOPED]
    assert [region.module for region in plan.regions] == [model] and plan.regions[0].loops


def test_what_was_proved_in_part_holds_for_one_batch_or_until_their_number_doubles():
    model, plans = made()
    plans.start()
    call(plans, model, torch.ones(4, 5, 3), [])
    plans.remember_proof(CheckResult.FOR_NOW)
    assert [plans.are_proved(graph=1) for _ in range(2)] == [True, False]
    plans.remember_proof(CheckResult.PARTLY)
    proved = [plans.are_proved(graph=1) for _ in range(9)]
    assert proved == [True, False, True, False, True, True, True, False, True]


STEPS, WIDTH = 5, 3


class Positioned(nn.Module):
    """Texts and positions that are looked up once for all, ``place`` putting them together."""

    def __init__(self, place, *layers: nn.Module):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(9, WIDTH)
        self.positions = nn.Embedding(STEPS, WIDTH)
        self.behind = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, 1)
        self.place = place
        self.double()

    def forward(self, ids):
        rows = self.place(self, ids)
        return self.head(rows.tanh()).sum((1, 2))


def steps(ids):
    return torch.arange(ids.shape[1])


def as_one_row(model, ids):
    return model.tokens(ids) + model.behind(model.positions(steps(ids)[None]))


def as_one_sequence(model, ids):
    return model.tokens(ids) + model.positions(steps(ids))


def as_the_first_row(model, ids):
    """Right of one row for all, and wrong of a row for each."""
    return model.tokens(ids) + model.positions(steps(ids)[None])[0]


def repeated(model, ids):
    prompt = model.behind(model.positions(steps(ids)[None]))
    return torch.cat([prompt.repeat(len(ids), 1, 1), model.tokens(ids)], 1)


def repeated_as_four_numbers_are(model, ids):
    """The four are to be repeated also where there are four examples."""
    four = torch.arange(4, dtype=torch.float64)[:, None]
    return repeated(model, ids) * four.repeat(len(ids), 1).view(len(ids), -1, 1).sum(1, True)


def sums(model, batches, engine):
    model.zero_grad()
    with PerExampleClipper(model, 0.05, engine=engine) as clipper:
        norms = [clipper.accumulate(lambda ids=ids: model(ids)) for ids in batches]
    return Clipped(torch.cat(norms), {n: p.grad for n, p in model.named_parameters()})


def batch(count):
    return torch.randint(0, 9, (count, STEPS), generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize(
    "place",
    [as_one_row, as_one_sequence, as_the_first_row, repeated, repeated_as_four_numbers_are],
)
def test_gradients_are_the_loops_whatever_the_model_makes_of_the_rows(place):
    model = Positioned(place, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))
    if place in (as_one_sequence, as_the_first_row):
        del model.behind
    batches = [batch(count) for count in (1, 3, STEPS, 4, 1)]
    got = sums(model, batches, "book_keeping")
    assert difference(got, sums(model, batches, "loop")) < 1e-12


@pytest.mark.parametrize("place", [as_one_row, as_one_sequence, repeated])
def test_no_module_runs_example_by_example_for_it(place, caplog):
    model = Positioned(place, nn.Linear(WIDTH, WIDTH))
    if place is as_one_sequence:
        del model.behind
    with caplog.at_level(logging.INFO):
        sums(model, [batch(3)], "book_keeping")
    assert "example" not in caplog.text


def test_what_runs_without_gradients_meanwhile_sees_its_own_row():
    model = Positioned(as_one_row)
    expected = model(batch(2))
    with PerExampleClipper(model, 1.0) as clipper:
        clipper.accumulate(lambda: model(batch(4)))
        with torch.no_grad():
            assert model.positions(steps(batch(2))[None]).shape == (1, STEPS, WIDTH)
            assert torch.equal(model(batch(2)), expected)


@pytest.mark.parametrize("config", [peft.PromptTuningConfig, peft.PromptEncoderConfig])
def test_a_prompt_that_peft_looks_up_once_is_clipped_as_by_the_loop(config, caplog):
    base = EVERY["gpt2-tied"].build(dtype=torch.float32)
    model = peft.get_peft_model(base, config(task_type="CAUSAL_LM", num_virtual_tokens=4)).double()
    rows, kind = examples((5, 9, 3)), prompted
    with caplog.at_level(logging.INFO):
        got = clipped(model, kind, rows)
    assert difference(got, clipped(model, kind, rows, engine="loop")) < 1e-10
    assert "example" not in caplog.text


def prompted(model, rows):
    own = rows.ids.shape[1]

    def without_the_prompts_own_logits(**inputs):
        outputs = model(**{k: v for k, v in inputs.items() if k != "use_cache"})
        outputs.logits = outputs.logits[:, -own:]
        return outputs

    return causal_without_positions(without_the_prompts_own_logits, rows)


def test_an_embedding_that_is_looked_up_once_for_all_examples_needs_a_region():
    class Looked(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 6)

        def forward(self, x):
            return x + self.table(torch.arange(x.shape[1]))

    model = Looked()
    trainable = TrainableParameters(model)
    flow = learn_flow(model, model.forward, ((INPUTS,), {}), trainable.now())
    (region,) = RegionPlanner(model, trainable).by_flow(flow, widening=True)
    assert region.module is model
