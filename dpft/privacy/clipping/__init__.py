"""Exact per-example gradient clipping for PyTorch models.

The public class is ``PerExampleClipper``. It is imported on demand, because a configuration is
validated with ``options`` before torch is imported.

Terms:
    row: One example of a batch.
    unit: The privacy unit, whose gradient is clipped: one row, or several contiguous rows.
    use: The contribution of one call of a layer to the gradients of a parameter: inputs and output
    gradients.
    recording forward: A replacement of a layer's forward that returns the same outputs. In the
    backward pass, it passes the use to the recorder instead of computing a gradient for the
    parameter.
    formed gradient: A per-unit gradient that is computed as a tensor, instead of only its norm.
    single-example execution: Running each unit separately through the unmodified model.

Reading order: ``clipper``, ``engines``, ``recorder``, ``rules``, ``products``, ``styles``, ``sums``
for one call of ``accumulate``; then ``assignment``, ``probe``, ``mapped`` and ``checks`` for the
self-check. ``convolution`` contains the rules of convolutions. The other modules are small helpers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpft.privacy.clipping.clipper import ClippingChoice, PerExampleClipper

__all__ = ["ClippingChoice", "PerExampleClipper"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dpft.privacy.clipping import clipper

    return getattr(clipper, name)
