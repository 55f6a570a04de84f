"""T5's Adafactor: transformers' optimizer with T5X's rule for small matrices.

Shazeer and Stern 2018 (arXiv 1804.04235), Algorithm 4, keeps of a matrix's second moments the sums
of its rows and columns. transformers' does so of every matrix. T5X (``t5x/adafactor.py``) keeps a
small matrix's second moments whole, as it does a vector's: there is little memory to save.

transformers' optimizer brings peft, and peft every library that quantizes, so that this module is
imported by a run that uses it, and by no other.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from transformers.optimization import Adafactor as TransformersAdafactor


def is_factored(shape: Sequence[int], min_dim_size_to_factor: int) -> bool:
    """Return whether second moments are kept by rows and columns instead of whole.

    >>> is_factored((128, 512), 128), is_factored((32, 512), 128), is_factored((512,), 1)
    (True, False, False)

    Args:
        shape: The parameter's; its last two dimensions are rows and columns.
        min_dim_size_to_factor: The least size of both; 1: every matrix is factored.
    """
    return len(shape) >= 2 and min(shape[-2:]) >= min_dim_size_to_factor


class T5Adafactor(TransformersAdafactor):
    """transformers' Adafactor, with T5X's rule of which matrices are factored."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, min_dim_size_to_factor: int, **settings: Any
    ) -> None:
        """Make the optimizer."""
        super().__init__(parameters, **settings)
        for group in self.param_groups:
            group["min_dim_size_to_factor"] = min_dim_size_to_factor

    @staticmethod
    def _get_options(param_group: dict[str, Any], param_shape: Sequence[int]) -> tuple[bool, bool]:
        """Return whether to factor, and whether there is momentum, of a parameter."""
        factored = is_factored(param_shape, param_group["min_dim_size_to_factor"])
        return factored, param_group["beta1"] is not None
