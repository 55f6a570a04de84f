"""The ``privacy`` section of the configuration: private or not, and what is promised."""

import math
from dataclasses import dataclass

from dpft.errors import InputError

ACCOUNTANTS = ("prv", "pld", "rdp")


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """Base of the two choices, ``conf/privacy/<name>.yaml``."""

    name: str


@dataclass(frozen=True, kw_only=True)
class NoPrivacy(PrivacyConfig):
    """Ordinary training: no clipping, no noise, no epsilon."""

    num_examples: int | None = None
    """Number of training examples; null takes the task's."""


@dataclass(frozen=True, kw_only=True)
class DifferentialPrivacy(PrivacyConfig):
    """DP-SGD under (eps, delta); exactly one of eps and noise_multiplier is given."""

    eps: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    """Null means 1 / (2 * num_examples)."""
    num_examples: int | None = None
    """Public number of training examples; null takes the task's."""
    max_grad_norm: float = 0.1
    clipping: str = "flat"
    engine: str = "auto"
    accountant: str = "prv"
    self_check: bool = True
    """Compare the clipper with the one-at-a-time loop on synthetic data before training."""
    noise_seed: int | None = None
    """For tests: makes the run reproducible, and so not private."""
    show_diagnostics: bool = False
    """Show training losses and gradient norms, which epsilon does not cover."""
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        if (self.eps is None) == (self.noise_multiplier is None):
            got = "neither" if self.eps is None else "both"
            raise InputError(
                f"exactly one of privacy.eps and privacy.noise_multiplier must be given, got {got}."
                " Give privacy.eps=EPSILON, or choose privacy=none for a non-private run."
            )
        for name in ("eps", "noise_multiplier", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"privacy.{name} must be positive and finite, got {value}.")
        if self.num_examples is not None and self.num_examples < 1:
            raise InputError(f"privacy.num_examples must be at least 1, got {self.num_examples}.")
        if self.accountant not in ACCOUNTANTS:
            raise InputError(
                f"privacy.accountant must be one of {', '.join(ACCOUNTANTS)}, "
                f"got {self.accountant!r}."
            )


PRIVACY_CHOICES: dict[str, type[PrivacyConfig]] = {
    "dp": DifferentialPrivacy,
    "none": NoPrivacy,
}


def privacy_class(name: str) -> type[PrivacyConfig]:
    """Returns the configuration class of ``privacy=<name>``.

    Raises:
        InputError: There is no such choice.
    """
    if name not in PRIVACY_CHOICES:
        raise InputError(f"privacy must be one of {', '.join(PRIVACY_CHOICES)}, got {name!r}.")
    return PRIVACY_CHOICES[name]
