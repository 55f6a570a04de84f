"""What a model must pass before it is trained privately: no layer mixes the examples of a batch."""

from dpft.mixing import check_model

__all__ = ["check_model"]
