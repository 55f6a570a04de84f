"""Planted faults: text."""

from tests.planted.fault import Fault

FAULTS: tuple[Fault, ...] = ()
