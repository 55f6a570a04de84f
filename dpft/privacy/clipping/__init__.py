"""Exact per-example gradient clipping without per-example gradients.

The public name is ``PerExampleClipper``; everything else in this room is how it is done.
"""

from dpft.privacy.clipping.clipper import PerExampleClipper

__all__ = ["PerExampleClipper"]
