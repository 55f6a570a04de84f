import json
import math

import pytest
import torch
from torch import nn

from dpft.errors import RunError
from dpft.privacy.clipping.clipper import ClippingOptions
from dpft.privacy.clipping.sums import rounding_headroom
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.ledger import Ledger
from dpft.privacy.phased_clipper import PhasedClipper
from dpft.privacy.plan import Phase
from dpft.privacy.randomness import make_randomness
from dpft.privacy.sampling import PoissonSampler
from tests.privacy.noise_blocks import block_noise
from tests.privacy.test_plan import plan
from tests.self_checks import checked_rows

CPU = torch.device("cpu")
RECORDS = torch.eye(4)[[0, 1, 2, 3, 0, 1, 2, 3]] * 5


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl", plan=plan()) as ledger:
        yield ledger


PHASES = (
    Phase(method="full", steps=1, max_grad_norm=0.1, sensitivity=0.1),
    Phase(method="bitfit", steps=2, max_grad_norm=0.01, sensitivity=0.01),
)


def affine() -> nn.Module:
    model = nn.Linear(4, 1)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def linear(width: int = 4) -> nn.Module:
    model = nn.Linear(width, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def outputs_of(model, rows):
    """Take a model's output as the loss."""
    return model(rows)[:, 0]


def take_step(engine, model, records=RECORDS):
    indices = engine.draw(len(records))
    if indices:
        engine.accumulate(records[indices])
    engine.finish_step()
    return indices


def make_engine(model, ledger, seed=1, **changes) -> PrivacyEngine:
    randomness, own = make_randomness(CPU, noise_seed=seed), plan(**changes)
    width = next(model.parameters()).shape[-1]
    return PrivacyEngine(
        model,
        outputs_of,
        plan=own,
        ledger=ledger,
        randomness=randomness,
        choices=[checked_rows(model, outputs_of, width)] * len(own.phases),
    )


def test_trust_rule_1_the_sampler_draws_at_the_sample_rate_that_is_accounted_for(ledger):
    engine = make_engine(linear(), ledger, sample_rate=0.5)
    with engine:
        indices = engine.draw(1000)
    stream = make_randomness(CPU, noise_seed=1).sampling
    assert indices == PoissonSampler(0.5, stream).draw(1000, step=0)
    assert abs(len(indices) - 500) < 5 * math.sqrt(250)
    accounted = engine.plan.event().event().event.sampling_probability
    assert 0.5 < accounted <= 0.5 * (1 + 2e-9)


def test_the_private_gradient_is_the_clipped_sum_plus_noise_over_the_expected_batch_size(ledger):
    model = linear()
    engine = make_engine(model, ledger, sample_rate=1.0, expected_batch_size=40)
    noise = make_randomness(CPU, noise_seed=1).noise
    with engine:
        take_step(engine, model)
    # Eight records of norm 5, each clipped to 0.1, two along each axis.
    clipped_sum = torch.full((1, 4), 0.2) * (1 - rounding_headroom(40))
    expected = (clipped_sum + block_noise(noise, 4) * 1.5 * 0.1) / 40
    assert torch.allclose(model.weight.grad.double(), expected, rtol=1e-5, atol=1e-8)


def test_trust_rule_2_factors_leave_room_for_the_rounding_of_a_large_batch(ledger):
    """A lone record moves the sum by C less the headroom; the noise is a multiple of C itself."""
    model = linear()
    engine = make_engine(
        model, ledger, sample_rate=1.0, expected_batch_size=8192, noise_multiplier=1e-9
    )
    with engine:
        take_step(engine, model, RECORDS[:1])
    moved = float(model.weight.grad.norm()) * 8192
    assert moved == pytest.approx(0.1 * (1 - rounding_headroom(8192)), rel=1e-5)
    assert engine.plan.phases[0].sensitivity == 0.1


def test_noise_is_added_once_per_step_whatever_the_number_of_micro_batches(tmp_path):
    def gradient(pieces, path):
        model = linear()
        with Ledger(tmp_path / path, plan=plan()) as own:
            engine = make_engine(model, own, sample_rate=1.0)
            with engine:
                indices = engine.draw(8)
                for start in range(0, 8, pieces):
                    engine.accumulate(RECORDS[indices[start : start + pieces]])
                engine.finish_step()
        return model.weight.grad

    whole, parts = gradient(8, "whole"), gradient(3, "parts")
    assert torch.allclose(whole, parts, rtol=1e-5)


def test_trust_rule_5_an_empty_draw_takes_a_noisy_step(ledger):
    model = linear(1000)
    engine = make_engine(model, ledger, sample_rate=1e-9)
    with engine:
        assert take_step(engine, model, torch.ones(5, 1000)) == []
    noise_std = 1.5 * 0.1 / 10
    assert model.weight.grad.std() == pytest.approx(noise_std, rel=0.1)
    assert ledger.steps == 1


def test_if_the_ledger_cannot_be_written_the_step_ends_in_an_error(ledger):
    model = linear()
    engine = make_engine(model, ledger)
    with engine:
        engine.draw(8)
        ledger._file.close()
        with pytest.raises(ValueError, match="closed file"):
            engine.finish_step()
        assert engine.steps_taken == 0


def test_no_more_steps_are_taken_than_planned(ledger):
    with make_engine(linear(), ledger, steps=1) as engine:
        engine.draw(8)
        engine.finish_step()
        with pytest.raises(RuntimeError, match="at most 1 times"):
            engine.draw(8)


@pytest.mark.parametrize("place", [0, 1])
def test_a_phase_whose_sensitivity_is_not_its_clippers_is_refused_before_any_step(ledger, place):
    phases = list(PHASES)
    phases[place] = PHASES[place].replace(sensitivity=0.05)
    with pytest.raises(ValueError, match="sensitivity"):
        make_engine(linear(), ledger, phases=tuple(phases))


def test_each_phase_clips_and_perturbs_what_trains_in_it_at_its_own_sensitivity(ledger, tmp_path):
    """Weight and bias, then the bias alone: eight records whose bias gradients are all 1."""
    model = affine()
    engine = make_engine(model, ledger, sample_rate=1.0, expected_batch_size=40, phases=PHASES)
    noise = make_randomness(CPU, noise_seed=1).noise
    with engine:
        take_step(engine, model)
        first = [
            (block_noise(noise, count, parameter=place) * 1.5 * 0.1).float()
            for place, count in enumerate((4, 1))
        ]
        # Each gradient is 5 along an axis and 1 for the bias, clipped to 0.1 in all.
        clipped = 0.1 * (1 - rounding_headroom(40)) / 26**0.5
        expected = (torch.full((1, 4), 2 * 5 * clipped) + first[0]) / 40
        assert torch.allclose(model.weight.grad, expected, rtol=1e-5)
        assert torch.allclose(model.bias.grad, (8 * clipped + first[1]) / 40, rtol=1e-5)
        model.weight.requires_grad_(False)
        for step in (1, 2):
            take_step(engine, model)
            # The bias stands second among all parameters, though it trains alone.
            number = (block_noise(noise, 1, step=step, parameter=1) * 1.5 * 0.01).float()
            room = 1 - rounding_headroom(40)
            assert torch.allclose(model.bias.grad, (8 * 0.01 * room + number) / 40, rtol=1e-5)
            assert model.weight.grad is None
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()[1:]
    mechanisms = [json.loads(line)["mechanism"] for line in lines]
    assert [line["sensitivity"] for line in mechanisms] == [0.1, 0.01, 0.01]
    assert {line["noise_multiplier"] for line in mechanisms} == {1.5}
    assert "forward" not in vars(model)


def test_trust_rule_2_holds_in_a_later_phase_with_its_sensitivity(tmp_path):
    def gradient(records, name):
        model = affine()
        with Ledger(tmp_path / name, plan=plan()) as own:
            engine = make_engine(model, own, sample_rate=1.0, phases=PHASES)
            with engine:
                take_step(engine, model)
                model.weight.requires_grad_(False)
                take_step(engine, model, records)
        return model.bias.grad * 10

    outlier = torch.cat([RECORDS, torch.full((1, 4), 1e6)])
    moved = (gradient(outlier, "with") - gradient(RECORDS, "without")).norm()
    assert 0.009 < moved <= 0.01 * (1 + 1e-5)


def test_what_trains_may_change_between_phases_but_not_within_one(ledger):
    model = affine()
    engine = make_engine(model, ledger, phases=PHASES)
    with engine:
        take_step(engine, model)
        model.weight.requires_grad_(False)
        take_step(engine, model)
        model.weight.requires_grad_(True)
        with pytest.raises(RunError):
            engine.draw(8)
    assert ledger.steps == 2


def test_a_run_that_goes_on_in_a_later_phase_clips_at_that_phases_norm(ledger):
    model = affine()
    engine = make_engine(
        model, ledger, sample_rate=1.0, noise_multiplier=1e-6, expected_batch_size=1, phases=PHASES
    )
    engine.steps_taken = 2
    model.weight.requires_grad_(False)
    with engine:
        take_step(engine, model)
    assert model.bias.grad.item() == pytest.approx(8 * 0.01, rel=1e-4)


def test_examples_left_out_are_counted_over_all_phases(ledger):
    model = affine()
    bad = RECORDS.clone()
    bad[0] = float("nan")
    engine = make_engine(model, ledger, sample_rate=1.0, phases=PHASES)
    counts = []
    with engine:
        for _ in range(2):
            take_step(engine, model, bad)
            counts.append(engine.non_finite)
            model.weight.requires_grad_(False)
    assert counts == [1, 2]


def test_a_parameter_unfrozen_later_ends_the_run_before_it_could_move_without_noise(ledger):
    model = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Linear(1, 1, bias=False))
    model[1].requires_grad_(False)
    engine = make_engine(model, ledger)
    with engine:
        engine.draw(8)
        model[1].requires_grad_(True)
        with pytest.raises(RunError):
            engine.finish_step()


def test_leaving_restores_the_model_and_the_global_generator(ledger):
    model = linear()
    before = torch.get_rng_state()
    with make_engine(model, ledger) as engine:
        take_step(engine, model)
    assert "forward" not in vars(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_trust_rule_4_when_a_step_is_done_its_keys_are_forgotten(ledger):
    model = linear()
    engine = make_engine(model, ledger, seed=None)
    with engine:
        before = engine.state().generators
        take_step(engine, model)
        after = engine.state().generators
    assert (before["step"], after["step"]) == (0, 1)
    assert set(before["keys"].values()).isdisjoint(after["keys"].values())
    assert all(key.step == 1 for key in engine._randomness._keys.values())


def test_trust_rule_4_masks_and_torchs_generator_are_keyed_anew_for_each_step(ledger):
    """After one torch seed: what dropout layers and fused kernels draw follows the run's key."""
    drawn = []
    for seed in (1, 2, 1):
        model = linear()
        torch.manual_seed(0)
        with make_engine(model, ledger, seed=seed) as engine:
            for _ in range(2):
                engine.draw(8)
                mask = torch.nn.functional.dropout(torch.ones(64), 0.5)
                drawn.append((tuple(mask.tolist()), tuple(torch.rand(8).tolist())))
                engine.finish_step()
    assert drawn[:2] == drawn[4:]
    for masks_or_numbers in zip(*drawn[:4], strict=True):
        assert len(set(masks_or_numbers)) == 4


OPTIONS = ClippingOptions(max_grad_norm=1.0)


def test_a_result_has_losses_per_row_and_norms_per_unit():
    """Two units of two rows, the second row of the last unit with weight 0."""
    model = affine()
    weights = torch.tensor([1.0, 1.0, 1.0, 0.0])

    def losses_of(model, batch):
        rows, weights = batch
        return model(rows)[:, 0] * weights

    own = plan(phases=PHASES)
    with PhasedClipper(model, losses_of, own, step=0, options=OPTIONS) as phased:
        phased.self_check((RECORDS[:6], torch.ones(6)), rows_per_unit=2)
        phased.begin_step(0)
        result = phased.accumulate((RECORDS[:4], weights), rows_per_unit=2)
    assert torch.equal(result.losses, torch.zeros(4)) and not result.losses.requires_grad
    # Rows of norm 5 along different axes, and a bias gradient of 1 for each.
    expected = torch.tensor([2 * 25.0 + 4, 25.0 + 1]).sqrt()
    assert torch.allclose(result.norms, expected)
