"""Planted faults: resume."""

from tests.planted.fault import Fault

FAULTS: tuple[Fault, ...] = ()
