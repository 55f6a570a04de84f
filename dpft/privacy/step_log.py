"""Where the engine records a step before anybody may use its gradient."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

Released = Sequence[Tensor] | Mapping[str, str]
"""A step's noisy gradients, or the fingerprint of those of all ranks' shards."""


class StepLog(Protocol):
    """Where a noisy step is recorded before its gradient is readable."""

    def record_step(self, mechanism: Mapping[str, Any], gradients: Released) -> None:
        """Records the next step; an error means that it must not be released."""


class NoLedger:
    """The log of every rank but the first, whose ledger is the run's."""

    def record_step(self, mechanism: Mapping[str, Any], gradients: Released) -> None:
        """Records nothing."""
