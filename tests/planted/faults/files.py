"""Planted faults: files."""

from tests.planted.fault import Fault

FAULTS: tuple[Fault, ...] = ()
