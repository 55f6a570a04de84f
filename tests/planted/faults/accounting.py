"""Planted faults: accounting."""

from tests.planted.fault import Fault

FAULTS: tuple[Fault, ...] = ()
