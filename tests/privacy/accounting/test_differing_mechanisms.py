"""Compositions of differing mechanisms by RDP and PLD."""

import pytest
from dp_accounting import get_epsilon_gaussian

from dpft.privacy.accounting.accountants import evaluate
from dpft.privacy.accounting.mechanism import AccountantError, Composition, SampledGaussian
from dpft.privacy.accounting.summary import account, account_composition


def part(noise_multiplier: float, sample_rate: float, steps: int) -> SampledGaussian:
    return SampledGaussian(
        noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=1e-5
    )


def test_differing_gaussians_cost_what_the_closed_form_says():
    # Without sampling, Gaussians of noise a and b compose to one of (1/a^2 + 1/b^2)^(-1/2), whose
    # epsilon is exact (Balle and Wang 2018, arXiv 1805.06530, Theorem 8).
    composition = Composition(parts=(part(5, 1, 2), part(8, 1, 3)))
    exact = get_epsilon_gaussian((2 / 25 + 3 / 64) ** -0.5, 1e-5)
    report = account_composition(composition)
    assert report.accountant == "pld"
    assert exact <= report.epsilon <= exact + 2e-3
    assert exact <= report.epsilons["rdp"]


@pytest.mark.slow
def test_steps_in_two_parts_cost_what_they_do_in_one():
    whole = account(part(1.2, 0.05, 70), accountant="pld")
    parts = Composition(parts=(part(1.2, 0.05, 30), part(1.2, 0.05, 40)))
    report = account_composition(parts)
    assert report.epsilon == pytest.approx(whole.epsilon, abs=1e-6)
    assert report.epsilons["rdp"] == pytest.approx(whole.epsilons["rdp"], abs=1e-9)
    assert parts.steps == 70


@pytest.mark.slow
def test_rdp_may_lead_and_prv_and_gdp_are_not_asked():
    composition = Composition(parts=(part(1, 0.1, 5), part(2, 0.1, 5)))
    report = account_composition(composition, accountant="rdp")
    assert (report.accountant, set(report.epsilons)) == ("rdp", {"rdp", "pld"})
    for name in ("prv", "gdp"):
        with pytest.raises(AccountantError, match="different mechanisms"):
            evaluate(name, composition)


def test_where_rounding_defeats_pld_rdp_answers():
    parts = tuple(
        SampledGaussian(noise_multiplier=noise, sample_rate=1e-3, steps=500_000, delta=1e-12)
        for noise in (1.0, 2.0)
    )
    report = account_composition(Composition(parts=parts))
    assert report.accountant == "rdp"
    assert any(warning.startswith("pld gave no bound") for warning in report.warnings)
