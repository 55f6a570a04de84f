"""The accountants under their names: answers are kept, and grids have limits."""

import subprocess
import sys
from dataclasses import replace

import pytest

from dpft.privacy.accounting import pld
from dpft.privacy.accounting.accountants import evaluate, headline_order
from dpft.privacy.accounting.mechanism import AccountantError, SampledGaussian
from tests.rejections import rejects

MECHANISM = SampledGaussian(noise_multiplier=2, sample_rate=0.01, steps=10, delta=1e-5)


@pytest.mark.parametrize(
    ("accountant", "order"),
    [
        ("prv", ("prv", "pld", "rdp")),
        ("pld", ("pld", "prv", "rdp")),
        ("rdp", ("rdp", "prv", "pld")),
    ],
)
def test_the_chosen_accountant_leads_then_the_fixed_order(accountant, order):
    assert headline_order(accountant) == order


@pytest.mark.parametrize("accountant", ["gdp", "PRV", ""])
def test_others_may_not_lead(accountant):
    with rejects("privacy.accountant", accountant):
        headline_order(accountant)


def test_every_accountant_answers_and_bounds_agree():
    answers = {name: evaluate(name, MECHANISM) for name in ("rdp", "gdp", "pld", "prv")}
    assert answers["prv"].lower <= answers["pld"].upper <= answers["rdp"].upper
    assert answers["gdp"].upper is None


@pytest.mark.parametrize("error", [MemoryError, RuntimeError, AssertionError])
def test_an_accountant_whose_library_fails_has_no_answer(monkeypatch, error):
    def fail(_):
        raise error

    monkeypatch.setattr(pld, "epsilon", fail)
    with pytest.raises(AccountantError):
        evaluate("pld", replace(MECHANISM, delta=len(error.__name__) * 1e-7))


@pytest.mark.parametrize(
    ("accountant", "mechanism"),
    [
        ("prv", SampledGaussian(noise_multiplier=0.1, sample_rate=1e-4, steps=10**6, delta=1e-5)),
        pytest.param(
            "pld",
            SampledGaussian(noise_multiplier=0.3, sample_rate=0.3, steps=10**5, delta=1e-5),
            marks=pytest.mark.slow,
        ),
        ("pld", SampledGaussian(noise_multiplier=0.002, sample_rate=0.3, steps=1, delta=1e-5)),
    ],
    ids=["mesh", "all steps", "one step"],
)
def test_a_grid_that_is_too_large_is_rejected_before_it_is_made(accountant, mechanism):
    with pytest.raises(AccountantError, match=r"It needs a (grid|mesh) of \S+ points; at most"):
        evaluate(accountant, mechanism)


@pytest.mark.slow
def test_no_library_is_imported_before_it_is_asked():
    program = """
import sys
from dpft.privacy.accounting import SampledGaussian, evaluate
evaluate("gdp", SampledGaussian(noise_multiplier=2, sample_rate=1, steps=1, delta=1e-5))
print(sorted({"torch", "scipy", "dp_accounting", "prv_accountant"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n"
