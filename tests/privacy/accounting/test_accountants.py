import subprocess
import sys
import textwrap

import pytest

from dpft.errors import InputError
from dpft.privacy.accounting.accountants import Accountants, headline_order
from dpft.privacy.accounting.limits import Limits
from dpft.privacy.accounting.mechanism import AccountantTimeout, SampledGaussian

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
    with pytest.raises(InputError, match="privacy.accountant must be one of prv, pld, rdp"):
        headline_order(accountant)


def test_every_accountant_answers_and_bounds_agree(accountants):
    accountants.prefetch("prv", MECHANISM)
    answers = {name: accountants.evaluate(name, MECHANISM) for name in ("rdp", "gdp", "pld", "prv")}
    assert answers["prv"].lower <= answers["pld"].upper <= answers["rdp"].upper
    assert answers["gdp"].upper is None


def test_an_answer_is_kept(accountants):
    first = accountants.evaluate("pld", MECHANISM)
    assert accountants.evaluate("pld", MECHANISM) is first
    assert accountants.evaluate("pld", MECHANISM, interval=1e-4) is not first


def test_over_the_limit_each_accountant_is_an_error_in_words():
    limits = Limits(seconds=0.05, grace=1)
    with Accountants(limits) as accountants:
        for name in ("prv", "rdp"):
            with pytest.raises(AccountantTimeout, match="timed out after 0.05 s of processor"):
                accountants.evaluate(name, MECHANISM)


def test_a_script_without_a_main_guard_may_call_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path[:0] = {sys.path!r}
            from dpft.privacy.accounting import Accountants, SampledGaussian
            mechanism = SampledGaussian(noise_multiplier=2, sample_rate=1, steps=1, delta=1e-5)
            with Accountants() as accountants:
                print(accountants.evaluate("rdp", mechanism).upper)
            heavy = {{"torch", "scipy", "dp_accounting", "prv_accountant"}}
            print(sorted(heavy & set(sys.modules)))
            """
        )
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    value, loaded = done.stdout.splitlines()
    assert float(value) > 0
    assert loaded == "[]"
