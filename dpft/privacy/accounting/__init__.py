"""Accounting: epsilon by RDP, PLD, PRV and GDP, and the noise for a target epsilon.

This package does not import torch, and imports the library of an accountant only when needed.

Worked example: the noise of Li et al. 2022 for E2E at epsilon 3, with 410 steps, each of which a
record joins with probability 1024/42061. RDP (``rdp``) always has a bound, but a loose one. PLD
(``pld``) composes the privacy loss on a grid, which gives a tighter bound. It rounds
pessimistically, so the result is still an upper bound. PRV (``prv``) has bounds on both sides, 0.01
above and below its estimate. GDP (``gdp``) is the central limit of many steps. It is an estimate
that is below the truth here, and is never the headline.

>>> from dpft.privacy.accounting import gdp, pld, prv, rdp
>>> mechanism = SampledGaussian(
...     noise_multiplier=1.0747, sample_rate=1024 / 42061, steps=410, delta=1 / (2 * 42061)
... )
>>> round_up(rdp.epsilon(mechanism).upper, 4), round_up(pld.epsilon(mechanism).upper, 4)
(2.9999, 2.6638)
>>> answer = prv.epsilon(mechanism)
>>> round_up(answer.lower, 2), round_up(answer.estimate, 2), round_up(answer.upper, 2)
(2.66, 2.67, 2.68)
>>> round_up(gdp.epsilon(mechanism).estimate, 2)
2.33

``account`` reports the upper bound of the chosen accountant, which is prv by default, if this
accountant answers and is not looser than RDP.

>>> report = account(mechanism)
>>> report.accountant, round_up(report.epsilon, 4)
('prv', 2.6738)
"""

from dpft.privacy.accounting.accountants import evaluate
from dpft.privacy.accounting.calibration import calibrate_noise_multiplier
from dpft.privacy.accounting.mechanism import Composition, SampledGaussian
from dpft.privacy.accounting.summary import (
    AccountingReport,
    EpsilonBound,
    account,
    account_composition,
    round_up,
)

__all__ = [
    "AccountingReport",
    "Composition",
    "EpsilonBound",
    "SampledGaussian",
    "account",
    "account_composition",
    "calibrate_noise_multiplier",
    "evaluate",
    "round_up",
]
