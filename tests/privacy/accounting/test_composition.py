import math

import pytest

from dpft.privacy.accounting import rdp
from dpft.privacy.accounting.composition import RDP, SUM, RunCost, compose_runs
from dpft.privacy.accounting.mechanism import SampledGaussian

RUN = SampledGaussian(noise_multiplier=2.0, sample_rate=0.01, steps=1000, delta=1e-6)


def cost(run: SampledGaussian) -> RunCost:
    upper = rdp.epsilon(run).upper
    assert upper is not None
    return RunCost(epsilon=upper, delta=run.delta, mechanisms=(run,))


def test_many_equal_runs_cost_what_one_run_of_all_their_steps_does() -> None:
    composed = compose_runs([cost(RUN)] * 9)
    # Renyi divergences of steps add up, whatever run they are of; deltas add up to 9e-6.
    whole = SampledGaussian(noise_multiplier=2.0, sample_rate=0.01, steps=9000, delta=9e-6)
    assert composed.accountant == RDP
    assert composed.delta == pytest.approx(9e-6)
    assert composed.epsilon == pytest.approx(rdp.epsilon(whole).upper)
    assert composed.epsilon < 9 * cost(RUN).epsilon


def test_runs_of_other_noise_and_rate_compose() -> None:
    other = SampledGaussian(noise_multiplier=1.0, sample_rate=0.002, steps=3000, delta=1e-6)
    composed = compose_runs([cost(RUN), cost(other)])
    assert max(cost(RUN).epsilon, cost(other).epsilon) < composed.epsilon
    assert composed.epsilon <= cost(RUN).epsilon + cost(other).epsilon


def test_what_is_no_sampled_gaussian_counts_by_its_epsilon() -> None:
    search = RunCost(epsilon=3.0, delta=1e-6)
    assert compose_runs([search, search]).epsilon == 6
    assert compose_runs([search, search]).accountant == SUM
    mixed = compose_runs([search, *[cost(RUN)] * 9])
    assert mixed.epsilon == pytest.approx(3 + compose_runs([cost(RUN)] * 9).epsilon)


def test_a_run_alone_keeps_a_tighter_epsilon_than_rdp_has() -> None:
    alone = compose_runs([RunCost(epsilon=0.5, delta=1e-6, mechanisms=(RUN,))])
    assert (alone.epsilon, alone.accountant) == (0.5, SUM)
    assert math.isfinite(
        compose_runs([RunCost(epsilon=math.inf, delta=1e-6, mechanisms=(RUN,))]).epsilon
    )
