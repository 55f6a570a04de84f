"""A convolution whose filters are standardized before use (Qiao et al. 2019, arXiv 1903.10520).

It stands alone because the models that have it and the clipper that knows it share no room.
"""

import torch
from torch import Tensor, nn

EPSILON = 1e-6
"""Added to a filter's variance."""


class StandardizedConv2d(nn.Conv2d):
    """A Conv2d that convolves with its weight standardized: each filter to mean 0 and variance 1.

    The parameter is the weight before it is standardized, as in an ordinary Conv2d: a checkpoint
    of one is a checkpoint of the other.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Returns the convolution of ``input``, shape (b, in_channels, height, width)."""
        outputs: Tensor = self._conv_forward(input, standardized(self.weight), self.bias)
        return outputs


def standardized(weight: Tensor) -> Tensor:
    """Returns a weight, shape (filters, ...), each filter shifted and scaled."""
    filters = weight.flatten(1)
    variance, mean = torch.var_mean(filters, 1, correction=0, keepdim=True)
    form: Tensor = (filters - mean) * (variance + EPSILON).rsqrt()
    return form.view_as(weight)


def pulled_back(weight: Tensor, gradients: Tensor) -> Tensor:
    """Returns gradients with respect to a weight from those with respect to its standardized form.

    What is standardized does not depend on the input, so each example's gradient goes through the
    same linear map: with w a filter standardized, s its scale and g the gradient of w,
    ``s (g - mean(g) - w mean(g w))``.

    Args:
        weight: Before it is standardized, shape (filters, ...).
        gradients: With respect to ``standardized(weight)``, shape (b, filters, ...).
    """
    filters = weight.detach().flatten(1).to(gradients.dtype)
    scale = (filters.var(1, correction=0, keepdim=True) + EPSILON).rsqrt()
    form = (filters - filters.mean(1, keepdim=True)) * scale
    rows = gradients.flatten(2)
    along = (rows * form).mean(2, keepdim=True)
    return (scale * (rows - rows.mean(2, keepdim=True) - form * along)).view_as(gradients)
