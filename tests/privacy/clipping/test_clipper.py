"""One value that makes any clipper of a run."""

import logging

import pytest
import torch
from torch import nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.clipper import ClippingOptions, self_check
from dpft.privacy.clipping.squares import Squares
from dpft.privacy.clipping.uses import OuterProduct
from tests.privacy.clipping import oracle
from tests.privacy.clipping.oracle import Clipped, Records, gpt2, one_at_a_time, records
from tests.slowness import slow

pytestmark = pytest.mark.usefixtures("self_check_once")

NORM = 0.5


@pytest.fixture
def batch() -> Records:
    return records()


def clipped_sum(model, batch, **options) -> Clipped:
    return oracle.clipped_sum(model, batch.losses(model), **options)


@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), *slow((torch.float32, 1e-5))]
)
def test_norms_and_clipped_sum_equal_one_example_at_a_time(engine, tied, dtype, tolerance, batch):
    model = gpt2(tied=tied, dtype=dtype)
    expected = one_at_a_time(model, batch, NORM)
    got = clipped_sum(model, batch, engine=engine)
    assert torch.allclose(got.norms, expected.norms, rtol=tolerance)
    assert got.distance(expected) <= tolerance
    assert expected.norms.max() > NORM, "the test must clip something"


def test_dropout_masks_are_those_of_the_loop(batch):
    model = gpt2(dropout=0.3).train()
    torch.manual_seed(5)
    expected = clipped_sum(model, batch, engine="loop")
    torch.manual_seed(5)
    assert clipped_sum(model, batch).distance(expected) <= 1e-5


def test_sequence_length_equal_to_the_batch_size_is_no_special_case():
    model, batch = gpt2(), records((6, 6, 5, 6, 4, 6))
    assert clipped_sum(model, batch).distance(one_at_a_time(model, batch, NORM)) <= 1e-5


def test_trust_rule_2_adding_one_example_moves_the_sum_by_at_most_the_sensitivity(batch):
    model = gpt2()
    everyone = clipped_sum(model, batch)
    for left_out in range(4):
        without = clipped_sum(model, batch.take([i for i in range(4) if i != left_out]))
        assert everyone.minus(without) <= NORM * (1 + 1e-5)


def test_trust_rule_3_padding_does_not_change_the_sum():
    model = gpt2()
    narrow, wide = records(width=12), records(width=20)
    assert clipped_sum(model, wide).distance(clipped_sum(model, narrow)) <= 1e-5


def test_trust_rule_3_micro_batch_size_and_order_do_not_change_the_sum(batch):
    model = gpt2()
    whole = clipped_sum(model, batch)
    model.zero_grad()
    with PerExampleClipper(model, NORM) as clip:
        for rows in ([3, 0], [2], [1]):
            clip.accumulate(batch.take(rows).losses(model))
    parts = Clipped(whole.norms, {n: p.grad for n, p in model.named_parameters()})
    assert parts.distance(whole) <= 1e-5


def test_the_sum_is_added_to_what_grad_held(batch):
    model = gpt2()
    once = clipped_sum(model, batch)
    with PerExampleClipper(model, NORM) as clip:
        clip.accumulate(batch.losses(model))
    twice = Clipped(once.norms, {n: p.grad / 2 for n, p in model.named_parameters()})
    assert twice.distance(once) <= 1e-5


def test_a_non_finite_example_contributes_exactly_zero(batch):
    model = gpt2()
    others = clipped_sum(model, batch.take([0, 2, 3]))
    model.zero_grad()
    losses = batch.losses(model)
    with PerExampleClipper(model, NORM) as clip:
        norms = clip.accumulate(lambda: losses() * torch.tensor([1, float("nan"), 1, 1]))
    assert norms[1] == 0 and clip.non_finite == 1
    got = Clipped(norms, {n: p.grad for n, p in model.named_parameters()})
    assert got.distance(others) <= 1e-6


def test_the_loop_engine_takes_a_non_finite_example_alone_and_refuses_it_among_others(batch):
    model = gpt2()
    losses = batch.losses(model)
    with (
        PerExampleClipper(model, NORM, engine="loop") as clip,
        pytest.raises(RunError, match="set `b=1`"),
    ):
        clip.accumulate(lambda: losses() * torch.tensor([1, float("nan"), 1, 1]))
    model.zero_grad()
    with PerExampleClipper(model, NORM, engine="loop") as clip:
        alone = batch.take([0]).losses(model)
        assert clip.accumulate(lambda: alone() * float("nan")).tolist() == [0]
    assert all(p.grad is None for p in model.parameters())


def test_an_infinite_gradient_under_a_finite_loss_contributes_exactly_zero():
    model = nn.Linear(1, 1, bias=False)
    inputs = torch.tensor([[1.0], [0.0]])

    def losses():
        outputs = model(inputs)[:, 0] - model.weight.detach()[0, 0] * inputs[:, 0]
        return torch.stack([outputs[0].sqrt(), model(inputs)[1, 0] + outputs[1]])

    with PerExampleClipper(model, NORM) as clip:
        norms = clip.accumulate(losses)
    assert clip.non_finite == 1 and model.weight.grad.isfinite().all() and norms[0] == 0


@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_an_example_without_labels_contributes_zero(engine, batch):
    model = gpt2()
    batch.labels[1] = -100
    got = clipped_sum(model, batch, engine=engine)
    assert got.norms[1] == 0
    assert got.distance(clipped_sum(model, batch.take([0, 2, 3]), engine=engine)) <= 1e-5


@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_a_unit_is_clipped_as_the_sum_of_its_rows(engine, batch):
    model = gpt2(dtype=torch.float64)
    units = torch.tensor([9, 4, 9, 9])
    got = clipped_sum(model, batch, engine=engine, units=units)
    totals, norms = {n: 0 for n, _ in model.named_parameters()}, []
    for rows in ([1], [0, 2, 3]):
        alone = clipped_sum(model, batch.take(rows), engine="loop", max_grad_norm=1e9)
        norm = sum(g.square().sum() for g in alone.gradients.values()).sqrt()
        norms.append(norm)
        for name, gradient in alone.gradients.items():
            totals[name] = totals[name] + gradient * min(1, NORM / norm)
    assert torch.allclose(got.norms, torch.stack(norms), rtol=1e-10)
    assert got.distance(Clipped(got.norms, totals)) <= 1e-10


def test_frozen_parameters_get_no_gradient_and_no_share_of_the_norm(batch):
    model = gpt2()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith("bias")
    got = clipped_sum(model, batch)
    assert got.distance(one_at_a_time(model, batch, NORM)) <= 1e-5
    assert model.transformer.wte.weight.grad is None


def test_a_batch_of_one_and_an_empty_batch(batch):
    model = gpt2()
    one = batch.take([2])
    assert clipped_sum(model, one).distance(one_at_a_time(model, one, NORM)) <= 1e-5
    with PerExampleClipper(model, NORM) as clip:
        assert clip.accumulate(lambda: torch.zeros(0)).shape == (0,)


def test_leaving_restores_the_model_even_after_an_exception(batch):
    model = gpt2()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    with pytest.raises(ZeroDivisionError), PerExampleClipper(model, NORM) as clip:
        clip.accumulate(lambda: 1 / 0)
    assert before == {name: set(vars(module)) for name, module in model.named_modules()}


def test_a_second_clipper_on_the_same_model_is_refused_and_the_first_stays():
    model = gpt2()
    with PerExampleClipper(model, NORM) as first:
        with pytest.raises(InputError, match="leave the other clipper first"):
            PerExampleClipper(model, NORM).__enter__()
        with pytest.raises(InputError, match="once at a time"):
            first.__enter__()
        assert "forward" in vars(model.transformer.wte)
    assert "forward" not in vars(model.transformer.wte)


def test_a_weight_used_behind_its_layers_back_is_refused_by_name():
    model = nn.Linear(3, 3)
    inputs = torch.ones(2, 3)
    with PerExampleClipper(model, NORM) as clip, pytest.raises(RunError, match="weight is used"):
        clip.accumulate(lambda: model(inputs @ model.weight).sum(1))


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (lambda model: model(torch.ones(2, 3)).mean(), "do not reduce over the batch"),
        (lambda model: model(torch.ones(2, 3)), r"got \(2, 3\)"),
        (lambda model: torch.ones(2), "without a graph"),
        (lambda model: model(torch.ones(2, 3)).sum().item(), "must be a tensor .* got float"),
        (lambda model: None, "must be a tensor .* got NoneType"),
    ],
)
def test_wrong_losses_are_refused(losses, message):
    model = nn.Linear(3, 3)
    with PerExampleClipper(model, NORM) as clip, pytest.raises(InputError, match=message):
        clip.accumulate(lambda: losses(model))


def test_units_of_the_wrong_shape_are_refused(batch):
    model = gpt2()
    with PerExampleClipper(model, NORM) as clip, pytest.raises(InputError, match=r"shape \(4,\)"):
        clip.accumulate(batch.losses(model), units=torch.tensor([1, 2]))


@pytest.mark.parametrize("norm", [0, -1.0, float("nan"), float("inf"), 1e-46, 1e30])
def test_a_clipping_norm_that_is_not_positive_and_finite_is_refused(norm):
    with pytest.raises(InputError, match="`max_grad_norm` must be positive"):
        PerExampleClipper(nn.Linear(1, 1), norm)


def test_a_parameter_unfrozen_inside_is_refused_by_name(batch):
    model = gpt2()
    model.transformer.wpe.weight.requires_grad = False
    with PerExampleClipper(model, NORM) as clip:
        model.transformer.wpe.weight.requires_grad = True
        with pytest.raises(RunError, match=r"wpe\.weight was frozen, unfrozen or replaced"):
            clip.accumulate(batch.losses(model))


def test_half_precision_parameters_are_refused_by_name():
    with pytest.raises(InputError, match="weight must be float32 or float64, got torch.bfloat16"):
        PerExampleClipper(nn.Linear(2, 2).bfloat16(), NORM)


def test_parameters_that_a_layers_rule_does_not_know_are_refused_where_they_hide():
    layer = torch.nn.utils.weight_norm(nn.Linear(2, 2))
    with PerExampleClipper(layer, NORM) as clip, pytest.raises(RunError, match="weight_g"):
        clip.accumulate(lambda: layer(torch.ones(3, 2)).sum(1))


def test_a_stray_backward_is_refused_and_does_not_reach_the_next_batch(batch):
    model = gpt2()
    expected = clipped_sum(model, batch)
    model.zero_grad()
    with PerExampleClipper(model, NORM) as clip:
        clip.accumulate(batch.losses(model))
        with pytest.raises(RunError, match="backward must be left to the clipper"):
            batch.losses(model)().sum().backward()
        model.zero_grad()
        clip.accumulate(batch.losses(model))
    got = Clipped(expected.norms, {n: p.grad for n, p in model.named_parameters()})
    assert got.distance(expected) <= 1e-6


def test_after_a_batch_failed_half_way_nothing_more_is_added(batch, monkeypatch):
    model = gpt2()
    with PerExampleClipper(model, NORM) as clip:
        monkeypatch.setattr(clip._engine, "accumulate", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            clip.accumulate(batch.losses(model))
        monkeypatch.undo()
        with pytest.raises(RunError, match="may hold part of it"):
            clip.accumulate(batch.losses(model))


def test_unknown_engine_style_and_nothing_trainable_are_refused():
    model = nn.Linear(1, 1)
    with pytest.raises(InputError, match=r"`engine` must be one of auto, book_keeping, two_pass"):
        PerExampleClipper(model, NORM, engine="fast")
    with pytest.raises(InputError, match="`clipping` must be one of flat"):
        PerExampleClipper(model, NORM, clipping="global")
    with pytest.raises(InputError, match="trainable"):
        PerExampleClipper(model.requires_grad_(False), NORM)


OPTIONS = ClippingOptions(
    max_grad_norm=2.0, clipping="per_layer", groups=("*",), memory_mb=1, headroom=0.25
)


def test_a_clipper_is_made_with_every_option():
    style = OPTIONS.make(nn.Linear(2, 1)).style
    assert (style.max_grad_norm, style.headroom, style.groups) == (2.0, 0.25, 1)
    with pytest.raises(InputError, match="`loss_scale` must be"):
        ClippingOptions(max_grad_norm=1.0, loss_scale=0.5).make(nn.Linear(2, 1))


def test_resolving_names_the_engine_that_auto_takes_and_logs_nothing(caplog):
    caplog.set_level(logging.INFO, logger="dpft")
    model = nn.Linear(2, 1)
    resolved = OPTIONS.resolved(model)
    assert resolved.engine == "book_keeping" and not caplog.records
    assert vars(resolved) == vars(OPTIONS) | {"engine": "book_keeping"}
    assert resolved.resolved(model) == resolved


def check(model):
    batches = [records().losses(model), records((5, 2)).losses(model)]
    return self_check(model, batches, ClippingOptions(max_grad_norm=0.5))


def test_a_sound_clipper_passes_and_the_model_is_left_alone():
    model = gpt2(dropout=0.2).train()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert check(model) < 1e-5
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_what_the_engine_has_checked_is_not_checked_again_beside_it(engine):
    asked = []
    model = gpt2()
    losses = records().losses(model)

    def oracle():
        asked.append(len(asked))
        return losses()

    options = ClippingOptions(max_grad_norm=0.5, engine=engine)
    assert self_check(model, [losses], options, oracles=[oracle]) < 1e-5
    assert len(asked) == 1
    mixed = lambda: losses() + losses().mean().detach()  # noqa: E731
    with pytest.raises(RunError, match="depends on another example's loss or inputs"):
        self_check(model, [mixed], options)


def test_gradients_that_are_not_finite_are_said_to_be_that_and_name_the_scale():
    """Not the one-at-a-time loop, which nobody chose."""
    model = gpt2()
    with torch.no_grad():
        next(model.parameters())[:] = torch.inf
    with pytest.raises(RunError, match=r"not finite at `loss_scale=1`; no private record"):
        check(model)


def test_a_rule_that_misses_part_of_the_norm_stops_the_run_and_names_a_parameter(monkeypatch):
    squares = OuterProduct.squares

    def too_small(use):
        found = squares(use)
        return Squares(0.9 * found.values, found.terms)

    monkeypatch.setattr(OuterProduct, "squares", too_small)
    with pytest.raises(RunError, match=r"self-check failed.*most in parameter"):
        check(gpt2())
