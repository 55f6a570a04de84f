"""Planted faults: sampling."""

from tests.planted.fault import Fault

FAULTS: tuple[Fault, ...] = ()
