"""Exact per-example gradient clipping without per-example gradients.

The public name is ``PerExampleClipper``; everything else in this room is how it is done. It is
imported when it is asked for: the room also says what may be chosen (``choices``), which a
configuration asks before torch is imported.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpft.privacy.clipping.clipper import PerExampleClipper

__all__ = ["PerExampleClipper"]


def __getattr__(name: str) -> Any:
    if name != "PerExampleClipper":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dpft.privacy.clipping.clipper import PerExampleClipper

    return PerExampleClipper
