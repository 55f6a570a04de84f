"""Exact per-example gradient clipping for PyTorch models.

The public class is ``PerExampleClipper``. It is imported on demand, because a configuration is
validated with ``options`` before torch is imported.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpft.privacy.clipper66.clipper import ClippingChoice, PerExampleClipper

__all__ = ["ClippingChoice", "PerExampleClipper"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dpft.privacy.clipper66 import clipper

    return getattr(clipper, name)
