"""Planted faults: ledger."""

from tests.planted.fault import Fault

FAULTS: tuple[Fault, ...] = ()
