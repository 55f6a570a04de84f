"""What a replayed step is held against: ``private/steps.jsonl``, beside the ledger.

A run that broke off goes on from a checkpoint, and takes the steps since then once more. Those are
in the ledger already, and cost nothing more only if they release the very same noisy gradients:
the same noise on another sum would give the sum away. So each step leaves a fingerprint of its
noisy gradient here before it is in the ledger, and a replayed step must have the same.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from dpft.errors import DpftError
from dpft.files import sync_folder
from dpft.privacy.completeness import read_journal
from dpft.privacy.ledger import Ledger
from dpft.privacy.mechanisms.base import STREAM
from dpft.privacy.step_log import Released


class ReplayError(DpftError):
    """A replayed step is not what it was; nothing of it was released."""


class JournaledLedger:
    """A ledger whose steps leave fingerprints, and may be replayed."""

    def __init__(
        self, ledger: Ledger, path: Path, *, environment: Mapping[str, Any], steps_done: int
    ) -> None:
        """Opens the journal, mode 0600, and goes on in it.

        Args:
            ledger: New or reopened.
            path: The journal.
            environment: What the bits of a sum depend on: threads, device and the like.
            steps_done: Steps of the ledger that stand and are not replayed; those of the ledger
                beyond it are.
        """
        self.ledger = ledger
        self._expected = read_journal(path)
        self._environment = dict(environment)
        self.position = steps_done
        """Steps that the weights have taken; the next one is recorded, or replayed."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(descriptor, "r+", encoding="utf-8", newline="\n")
        sync_folder(path.parent)
        _end_torn_line(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def record_step(self, mechanism: Mapping[str, Any], gradients: Released) -> None:
        """Records a step, or holds a replayed one against what is recorded of it.

        Args:
            mechanism: What the ledger says of it.
            gradients: The noisy gradients, or the fingerprint of those of all ranks' shards.

        Raises:
            ReplayError: They are not those of the step that is replayed.
        """
        step, is_in_ledger = self.position + 1, self.position < self.ledger.steps
        mark = gradients if isinstance(gradients, Mapping) else _fingerprint(gradients)
        stream = {STREAM: mechanism[STREAM]} if STREAM in mechanism else {}
        entry = {"step": step, **mark, **self._environment, **stream}
        known = self._expected.get(step)
        # Also one whose ledger line a crash prevented: the same noise on another sum would give
        # that sum away to whoever sees the journal.
        if known != entry and (is_in_ledger or known is not None):
            # Not which step: how long the replay took until then would be a few steps' time.
            raise ReplayError("a step did not come out as it was; nothing of it was released")
        if known is None:
            self._write(entry)
        if not is_in_ledger:
            self.ledger.append(step, mechanism)
        self.position += 1

    def count_abandoned_step(self, mechanism: Mapping[str, Any]) -> None:
        """Records, as a step that was taken, the one that a crash kept out of the ledger.

        It is never taken again: what follows has new noise and is a step of its own. Whether it
        was a crash, or somebody cut the ledger's last line, cannot be told, so it counts.

        Args:
            mechanism: What the ledger says of it, of a stream of its own where the journal does not
                know of which it was.
        """
        step = self.ledger.steps + 1
        if step not in self._expected:
            self._write({"step": step, "abandoned": True})
        known = self._expected.get(step, {})
        mechanism = {**mechanism, **{name: known[name] for name in (STREAM,) if name in known}}
        self.ledger.append(step, mechanism)
        self.position = step

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry, sort_keys=True) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _fingerprint(gradients: Sequence[Tensor]) -> dict[str, str]:
    """Returns the sum and the sum of squares of all gradients, float64, bit for bit in hex."""
    total = torch.zeros((), dtype=torch.float64)
    squares = torch.zeros((), dtype=torch.float64)
    for gradient in gradients:
        values = gradient.detach().double()
        total += values.sum().cpu()
        squares += values.square().sum().cpu()
    return {"sum": float(total).hex(), "sum_of_squares": float(squares).hex()}


def _end_torn_line(descriptor: int) -> None:
    """Ends a line that broke off, so that the next one does not join it."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.write(descriptor, b"\n")
