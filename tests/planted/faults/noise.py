"""Planted faults: noise."""

from tests.planted.fault import Fault

FAULTS: tuple[Fault, ...] = ()
