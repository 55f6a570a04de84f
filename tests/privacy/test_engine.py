import numpy as np
import pytest
import torch
from torch import nn

from dpft.errors import RunError
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.ledger import Ledger, read_ledger
from dpft.privacy.plan import Phase
from dpft.privacy.randomness import make_randomness
from dpft.privacy.uniform import UniformStream
from tests.privacy.test_plan import plan

CPU = torch.device("cpu")
RECORDS = torch.eye(4)[[0, 1, 2, 3, 0, 1, 2, 3]] * 5


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        yield ledger


def linear(width: int = 4) -> nn.Module:
    model = nn.Linear(width, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def take_step(engine, model, records=RECORDS):
    indices = engine.draw(len(records))
    if indices:
        engine.accumulate(lambda: model(records[indices])[:, 0])
    engine.finish_step()
    return indices


def make_engine(model, ledger, seed=1, **changes) -> PrivacyEngine:
    randomness = make_randomness(CPU, noise_seed=seed)
    return PrivacyEngine(model, plan=plan(**changes), ledger=ledger, randomness=randomness)


def test_trust_rule_1_sampler_and_accountants_event_come_from_the_same_plan(ledger):
    engine = make_engine(linear(), ledger, sample_rate=0.5)
    with engine:
        indices = engine.draw(1000)
    uniforms = UniformStream(
        bytes.fromhex(make_randomness(CPU, noise_seed=1).sampling.state()["key"])
    ).draw(1000)
    assert indices == np.flatnonzero(uniforms < 0.5).tolist()
    assert engine.plan.event().event.sampling_probability == 0.5


def test_the_private_gradient_is_the_clipped_sum_plus_noise_over_the_expected_batch_size(ledger):
    model = linear()
    engine = make_engine(model, ledger, sample_rate=1.0, expected_batch_size=40)
    noise = make_randomness(CPU, noise_seed=1).noise
    with engine:
        take_step(engine, model)
    # Eight records of norm 5, each clipped to 0.1, two along each axis.
    clipped_sum = torch.full((1, 4), 0.2)
    expected = (clipped_sum + noise.draw(torch.Size([1, 4])) * 1.5 * 0.1) / 40
    assert torch.allclose(model.weight.grad, expected, rtol=1e-5)


def test_noise_is_added_once_per_step_whatever_the_number_of_micro_batches(tmp_path):
    def gradient(pieces, path):
        model = linear()
        with Ledger(tmp_path / path) as own:
            engine = make_engine(model, own, sample_rate=1.0)
            with engine:
                indices = engine.draw(8)
                for start in range(0, 8, pieces):
                    rows = RECORDS[indices[start : start + pieces]]
                    engine.accumulate(lambda rows=rows: model(rows)[:, 0])
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
    assert ledger.lines == 1


def test_the_divisor_is_public_configuration_and_never_the_drawn_size(ledger):
    model = linear()
    engine = make_engine(model, ledger, noise_multiplier=1e-6, sample_rate=1.0)
    with engine:
        take_step(engine, model)
    assert torch.allclose(model.weight.grad, torch.full((1, 4), 0.2 / 10), atol=1e-6)


def test_the_ledger_line_is_written_before_the_weights_may_move(ledger, tmp_path):
    model = linear()
    engine = make_engine(model, ledger)
    with engine:
        take_step(engine, model)
        record = read_ledger(tmp_path / "ledger.jsonl")
    assert record.steps == 1 and not record.closed
    assert record.mechanisms[0]["noise_multiplier"] == 1.5
    assert record.mechanisms[0]["sample_rate"] == 0.25
    assert torch.equal(model.weight, torch.zeros(1, 4)), "the engine moves no weight itself"


def test_if_the_ledger_cannot_be_written_the_step_ends_in_an_error(ledger):
    model = linear()
    engine = make_engine(model, ledger)
    with engine:
        engine.draw(8)
        ledger._file.close()
        with pytest.raises(ValueError, match="closed file"):
            engine.finish_step()
        assert engine.steps_taken == 0


def test_steps_must_be_finished_and_are_no_more_than_planned(ledger):
    model = linear()
    engine = make_engine(model, ledger, steps=1)
    with engine:
        engine.draw(8)
        with pytest.raises(RuntimeError, match="unfinished step"):
            engine.draw(8)
        engine.finish_step()
        with pytest.raises(RuntimeError, match="finish_step must follow draw"):
            engine.finish_step()
        with pytest.raises(RuntimeError, match="between draw and finish_step"):
            engine.accumulate(lambda: model(RECORDS)[:, 0])
        with pytest.raises(RuntimeError, match="at most 1 times"):
            engine.draw(8)


def test_trust_rule_2_one_record_moves_the_sum_before_noise_by_at_most_the_sensitivity(tmp_path):
    """Twin data sets under the same randomness: the noise cancels in the difference."""

    def gradient(records, name):
        model = linear()
        with Ledger(tmp_path / name) as own:
            engine = make_engine(model, own, sample_rate=1.0, noise_multiplier=0.5)
            with engine:
                take_step(engine, model, records)
        return model.weight.grad * 10

    outlier = torch.cat([RECORDS, torch.full((1, 4), 1e6)])
    moved = (gradient(outlier, "with") - gradient(RECORDS, "without")).norm()
    assert 0.09 < moved <= 0.1 * (1 + 1e-5)


def test_a_plan_whose_sensitivity_is_not_the_clippers_is_refused(ledger):
    phase = Phase(method="full", steps=3, max_grad_norm=0.1, sensitivity=0.05)
    with pytest.raises(ValueError, match="sensitivity"):
        make_engine(linear(), ledger, phases=(phase,))


def test_phases_of_another_sensitivity_are_refused_while_one_clipper_serves_all(ledger):
    first = Phase(method="full", steps=1, max_grad_norm=0.1, sensitivity=0.1)
    second = Phase(method="bitfit", steps=2, max_grad_norm=0.01, sensitivity=0.01)
    with pytest.raises(ValueError, match="every phase's sensitivity"):
        make_engine(linear(), ledger, phases=(first, second))


def test_a_parameter_unfrozen_later_ends_the_run_before_it_could_move_without_noise(ledger):
    model = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Linear(1, 1, bias=False))
    model[1].requires_grad_(False)
    engine = make_engine(model, ledger)
    with engine:
        engine.draw(8)
        model[1].requires_grad_(True)
        with pytest.raises(RunError, match="stay those the run began with"):
            engine.finish_step()


def test_leaving_restores_the_model_and_the_global_generator(ledger):
    model = linear()
    before = torch.get_rng_state()
    with make_engine(model, ledger):
        assert "forward" in vars(model)
    assert "forward" not in vars(model)
    assert torch.equal(torch.get_rng_state(), before)
