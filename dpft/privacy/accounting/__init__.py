"""What a run costs in privacy: RDP, PLD, PRV and GDP, and the noise that meets a target.

Free of torch, and of the accountants' own libraries until one is asked: they run in processes
of their own.
"""

from dpft.privacy.accounting.accountants import Accountants
from dpft.privacy.accounting.calibration import calibrate_noise_multiplier
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.accounting.summary import AccountingReport, account, round_up

__all__ = [
    "AccountingReport",
    "Accountants",
    "SampledGaussian",
    "account",
    "calibrate_noise_multiplier",
    "round_up",
]
