import math
from dataclasses import replace

import pytest

from dpft.errors import InputError, RunError
from dpft.privacy.accounting import calibration as calibration_module
from dpft.privacy.accounting.calibration import TOLERANCE, calibrate_noise_multiplier
from dpft.privacy.accounting.mechanism import AccountantTimeout, SampledGaussian
from dpft.privacy.accounting.summary import account
from tests.slowness import slow

E2E = {"sample_rate": 1024 / 42061, "steps": 410, "delta": 1 / (2 * 42061)}


@pytest.mark.parametrize(
    ("eps", "published"),
    [(3, 1.0747), (8, 0.7116)],  # Li et al. 2022 on E2E: N = 42061, B = 1024, E = 10.
)
def test_rdp_reproduces_li(accountants, eps, published):
    noise_multiplier, calibration = calibrate_noise_multiplier(
        eps=eps, accountant="rdp", accountants=accountants, **E2E
    )
    assert noise_multiplier == pytest.approx(published, abs=1e-3)
    assert calibration.accountant == "rdp"


CIFAR = {"sample_rate": 1000 / 50_000, "delta": 1e-5}
CELEBA = {"sample_rate": 500 / 162_770, "delta": 5e-6, "steps": 3255}


@pytest.mark.parametrize(
    ("setting", "eps", "expected"),
    [
        (CIFAR | {"steps": 250}, 1, 1.57503),
        (CELEBA, 8, 0.536144),
        *slow(
            (CIFAR | {"steps": 250}, 2, 1.08340),
            (CIFAR | {"steps": 250}, 4, 0.815283),
            (CIFAR | {"steps": 250}, 8, 0.631628),
            (CIFAR | {"steps": 150}, 1, 1.38735),
            (CIFAR | {"steps": 150}, 2, 1.00946),
            (CIFAR | {"steps": 150}, 4, 0.770799),
            (CIFAR | {"steps": 150}, 8, 0.597379),
            (CELEBA, 3, 0.720139),
        ),
    ],
)
def test_the_image_recipes_have_the_noise_they_had(accountants, setting, eps, expected):
    """Bu et al. 2022, Table 11, of 5 and of 3 epochs; the paper gives no noise: a regression."""
    noise_multiplier, _ = calibrate_noise_multiplier(
        eps=eps, accountant="rdp", accountants=accountants, **setting
    )
    assert noise_multiplier == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("accountant", "eps", "setting"),
    [
        ("prv", 3, {}),
        ("rdp", 0.5, {}),
        ("pld", 0.01, {"sample_rate": 1, "steps": 100}),
        *slow(
            ("pld", 8, {}),
            ("prv", 0.05, {}),
            ("prv", 1, {"sample_rate": 1, "steps": 100}),
        ),
    ],
)
def test_the_report_gives_the_calibrated_epsilon_within_the_target(
    accountants, accountant, eps, setting
):
    setting = {**E2E, **setting}
    noise_multiplier, calibration = calibrate_noise_multiplier(
        eps=eps, accountant=accountant, accountants=accountants, **setting
    )
    mechanism = SampledGaussian(noise_multiplier=noise_multiplier, **setting)
    report = account(mechanism, accountant=accountant, accountants=accountants)
    assert calibration.accountant == report.accountant == accountant
    assert calibration.epsilon == report.epsilon
    assert eps - TOLERANCE <= report.epsilon <= eps


def test_less_noise_would_miss_the_target(accountants):
    noise_multiplier, _ = calibrate_noise_multiplier(
        eps=3, accountant="pld", accountants=accountants, **E2E
    )
    less = SampledGaussian(noise_multiplier=0.999 * noise_multiplier, **E2E)
    assert accountants.evaluate("pld", less).upper > 3


@pytest.mark.slow
def test_a_fresh_set_of_accountants_gives_the_same(accountants):
    shared = calibrate_noise_multiplier(eps=3, accountants=accountants, **E2E)
    assert calibrate_noise_multiplier(eps=3, **E2E) == shared


@pytest.mark.slow
def test_where_prv_fails_pld_calibrates_and_is_named(accountants):
    # PRV would need a mesh of millions of points.
    setting = {"sample_rate": 8192 / 5240387307, "steps": 30_000, "delta": 1e-9}
    noise_multiplier, calibration = calibrate_noise_multiplier(
        eps=8, accountants=accountants, **setting
    )
    assert calibration.accountant == "pld"
    assert 8 - TOLERANCE <= calibration.epsilon <= 8
    mechanism = SampledGaussian(noise_multiplier=noise_multiplier, **setting)
    report = account(mechanism, accountant="pld", accountants=accountants)
    assert report.epsilon == calibration.epsilon


def test_a_target_below_prvs_error_goes_to_pld(accountants):
    _, calibration = calibrate_noise_multiplier(eps=0.01, accountants=accountants, **E2E)
    assert (calibration.accountant, calibration.epsilon <= 0.01) == ("pld", True)


def test_where_rounding_defeats_pld_rdp_calibrates(accountants):
    _, calibration = calibrate_noise_multiplier(
        eps=3, delta=1e-12, sample_rate=0.1, steps=10**6, accountants=accountants
    )
    assert (calibration.accountant, calibration.epsilon <= 3) == ("rdp", True)


def test_noise_of_which_the_report_says_more_than_the_target_is_not_taken(accountants, monkeypatch):
    def says_more_by_rdp(mechanism, *, accountant, **options):
        report = account(mechanism, accountant=accountant, **options)
        return replace(report, epsilon=3.01) if accountant == "rdp" else report

    monkeypatch.setattr(calibration_module, "account", says_more_by_rdp)
    _, calibration = calibrate_noise_multiplier(
        eps=3, accountant="rdp", accountants=accountants, **E2E
    )
    assert calibration.accountant == "prv" and calibration.epsilon <= 3


@pytest.mark.parametrize("eps", [0, -1, math.inf, math.nan])
def test_an_impossible_target_is_refused_at_once(eps):
    with pytest.raises(InputError, match=f"privacy.eps must be .* got {eps}; privacy=none"):
        calibrate_noise_multiplier(eps=eps, **E2E)


def test_an_unattainable_target_is_one_sentence_with_a_way_out(accountants):
    with pytest.raises(InputError, match="privacy.eps=1e-09 is out of reach .* raise privacy.eps"):
        calibrate_noise_multiplier(
            eps=1e-9, delta=1e-30, sample_rate=1, steps=10**6, accountants=accountants
        )


def test_accountants_that_all_timed_out_say_so_and_what_to_do(accountants, monkeypatch):
    def late(name, mechanism, **options):
        raise AccountantTimeout("It timed out after 20 s of processor time.")

    monkeypatch.setattr(accountants, "evaluate", late)
    with pytest.raises(RunError) as raised:
        calibrate_noise_multiplier(eps=3, accountants=accountants, **E2E)
    assert raised.value.exit_code == 1
    assert "out of reach" not in str(raised.value)
    assert "rdp timed out" in str(raised.value)
    assert "choose another privacy.accountant" in str(raised.value)


def test_gdp_may_not_calibrate():
    with pytest.raises(InputError, match="gdp is an estimate"):
        calibrate_noise_multiplier(eps=3, accountant="gdp", **E2E)
