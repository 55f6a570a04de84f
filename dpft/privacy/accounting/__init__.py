"""What a run costs in privacy: RDP, PLD, PRV and GDP, and the noise that meets a target.

Free of torch, and of the accountants' own libraries until one is asked: they run in processes
of their own.
"""

from dpft.privacy.accounting.accountants import Accountants
from dpft.privacy.accounting.calibration import calibrate_noise_multiplier
from dpft.privacy.accounting.mechanism import Composition, SampledGaussian
from dpft.privacy.accounting.rounding import round_up
from dpft.privacy.accounting.summary import (
    AccountingReport,
    EpsilonBound,
    account,
    account_composition,
)

__all__ = [
    "AccountingReport",
    "Accountants",
    "Composition",
    "EpsilonBound",
    "SampledGaussian",
    "account",
    "account_composition",
    "calibrate_noise_multiplier",
    "round_up",
]
