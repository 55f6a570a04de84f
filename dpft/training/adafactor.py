"""T5's Adafactor: the optimizer of Transformers with T5X's rule for small matrices.

Adafactor (Shazeer and Stern 2018, arXiv 1804.04235, Algorithm 4) stores the second moments of a
matrix as sums over its rows and columns. Transformers does this for every matrix. T5X
(``t5x/adafactor.py``) keeps the second moments of a small matrix whole, like those of a vector,
because factoring would save little memory.

Importing the optimizer of Transformers also imports peft, and peft imports every quantization
library. Therefore only runs that use Adafactor import this module.
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
        shape: Shape of the parameter; its last two dimensions are rows and columns.
        min_dim_size_to_factor: Minimum of both dimensions for factoring; 1 factors every matrix.
    """
    return len(shape) >= 2 and min(shape[-2:]) >= min_dim_size_to_factor


class T5Adafactor(TransformersAdafactor):
    """Adafactor of Transformers with T5X's rule for which matrices are factored."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, min_dim_size_to_factor: int, **settings: Any
    ) -> None:
        """Create the optimizer."""
        super().__init__(parameters, **settings)
        for group in self.param_groups:
            group["min_dim_size_to_factor"] = min_dim_size_to_factor

    @staticmethod
    def _get_options(param_group: dict[str, Any], param_shape: Sequence[int]) -> tuple[bool, bool]:
        """Return whether a parameter's second moments are factored, and whether it has momentum."""
        factored = is_factored(param_shape, param_group["min_dim_size_to_factor"])
        return factored, param_group["beta1"] is not None
