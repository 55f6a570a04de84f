"""The configuration of ``dpft account``, apart from the others so that it imports no torch.

Accounting is arithmetic: it should answer in about the time its accountants take.
"""

from dataclasses import dataclass

from dpft.errors import InputError
from dpft.privacy.accounting.accountants import ORDER

OUTPUTS = ("table", "json")


@dataclass(frozen=True, kw_only=True)
class AccountConfig:
    """``dpft account``, conf/account.yaml."""

    num_examples: int | None = None
    expected_batch_size: int | None = None
    sample_rate: float | None = None
    epochs: float | None = None
    steps: int | None = None
    delta: float | None = None
    eps: float | None = None
    noise_multiplier: float | None = None
    accountant: str = "prv"
    output: str = "table"

    def __post_init__(self) -> None:
        check_output(self.output)
        check_accountant(self.accountant)
        check_exactly_one(eps=self.eps, noise_multiplier=self.noise_multiplier)
        check_exactly_one(epochs=self.epochs, steps=self.steps)
        check_exactly_one(
            expected_batch_size=self.expected_batch_size, sample_rate=self.sample_rate
        )
        check_positive(
            num_examples=self.num_examples,
            expected_batch_size=self.expected_batch_size,
            sample_rate=self.sample_rate,
            epochs=self.epochs,
            steps=self.steps,
            eps=self.eps,
            noise_multiplier=self.noise_multiplier,
        )


def check_exactly_one(**values: float | None) -> None:
    """Refuses two keys of which both or neither is given.

    Raises:
        InputError: Not exactly one of ``values`` is given.
    """
    given = [name for name, value in values.items() if value is not None]
    if len(given) != 1:
        raise InputError(
            f"exactly one of {' and '.join(values)} must be given, got "
            f"{'both; drop one of them' if given else 'neither; give one of them'}."
        )


def check_positive(**values: float | None) -> None:
    """Refuses numbers that are not positive.

    Raises:
        InputError: A given number is zero or below.
    """
    for name, value in values.items():
        if value is not None and value <= 0:
            raise InputError(f"{name} must be above 0, got {value}; raise it.")


def check_accountant(accountant: str) -> None:
    """Refuses an accountant that no guarantee may rest on.

    Raises:
        InputError: ``accountant`` is not one of prv, pld and rdp.
    """
    if accountant not in ORDER:
        raise InputError(f"accountant must be one of {', '.join(ORDER)}, got {accountant!r}.")


def check_output(output: str) -> None:
    """Refuses an output format that no subcommand writes.

    Raises:
        InputError: ``output`` is neither table nor json.
    """
    if output not in OUTPUTS:
        raise InputError(f"output must be one of {', '.join(OUTPUTS)}, got {output!r}.")
