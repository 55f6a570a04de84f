from dataclasses import replace

import pytest

from dpft.errors import InputError
from dpft.privacy.accounting.mechanism import AccountantError, Epsilon, SampledGaussian
from dpft.privacy.accounting.over_steps import epsilon_over_steps, failures, step_grid

MECHANISM = SampledGaussian(noise_multiplier=1.5, sample_rate=0.01, steps=200, delta=1e-5)


class Fails:
    """Accountants that answer up to some numbers of steps."""

    def __init__(self, **limits):
        self.limits = limits

    def prefetch(self, name, mechanism, **options):
        pass

    def evaluate(self, name, mechanism, **options):
        if mechanism.steps > self.limits.get(name, 10**9):
            raise AccountantError(f"{mechanism.steps} steps are too many.")
        value = mechanism.steps / 100
        return Epsilon(lower=value, estimate=value, upper=None if name == "gdp" else value)


@pytest.mark.parametrize("steps", [1, 2, 15, 16, 17, 410, 10**6])
def test_the_grid_goes_from_one_step_to_all_in_at_most_seventeen_points(steps):
    grid = step_grid(steps)
    assert (grid[0], grid[-1]) == (1, steps)
    assert grid == sorted(set(grid))
    assert min(steps, 16) <= len(grid) <= 17


def test_epsilon_does_not_fall_as_steps_are_taken(accountants):
    few = replace(MECHANISM, steps=6)
    reports = epsilon_over_steps(few, accountant="pld", accountants=accountants)
    epsilons = [report.epsilon for report in reports]
    assert epsilons == sorted(epsilons)
    assert reports[-1].mechanism == few
    assert failures(reports) == []


def test_where_an_accountant_fails_another_leads_and_the_steps_are_named():
    reports = epsilon_over_steps(MECHANISM, accountant="prv", accountants=Fails(prv=175, pld=188))
    assert [report.accountant for report in reports[-3:]] == ["prv", "pld", "rdp"]
    prv, pld = failures(reports)
    assert (pld.accountant, pld.steps) == ("pld", (200,))
    assert (prv.accountant, prv.steps) == ("prv", (188, 200))
    assert prv.reason == "188 steps are too many."


def test_it_ends_where_no_accountant_goes_on_and_refuses_if_none_begins():
    reports = epsilon_over_steps(
        MECHANISM, accountant="rdp", accountants=Fails(prv=50, pld=50, rdp=50)
    )
    assert reports[-1].mechanism.steps == 50
    with pytest.raises(InputError, match="raise noise_multiplier"):
        epsilon_over_steps(MECHANISM, accountant="rdp", accountants=Fails(prv=0, pld=0, rdp=0))
