"""Planted faults: clipping."""

from tests.planted.fault import Fault

FAULTS: tuple[Fault, ...] = ()
