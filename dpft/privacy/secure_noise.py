"""Gaussian noise that floating point does not give away (Mironov 2012).

A float32 sum of value and noise can only take some of the numbers nearby, and which ones tells of
the value where the noise comes from a known function of few bits. Each draw is therefore the
normalised sum of four independent float64 Gaussians, which too many inputs can give to be searched
(Holohan & Braghin 2021, arXiv 2107.10138, section 5), added in float64 and rounded once. The bits
come from ChaCha20, so that the stream cannot be continued from what is seen of it.
"""

from typing import Any, Self

import torch
from torch import Tensor

from dpft.privacy.uniform import UniformStream

SECURE_NOISE_SOURCE = (
    "ChaCha20; normalised sum of four float64 Gaussians, rounded to float32 after it is added"
)
GAUSSIANS = 4


class SecureNormalStream:
    """Standard normal float64 tensors on one device, from a cryptographic stream."""

    def __init__(self, device: torch.device, entropy: bytes, position: int = 0) -> None:
        """Keys the stream with 32 bytes, to start at its number ``position``."""
        self._device = device
        self._uniforms = UniformStream(entropy, position)

    def draw(self, shape: torch.Size, dtype: torch.dtype = torch.float64) -> Tensor:
        """Returns a standard normal float64 tensor of ``shape``, whatever ``dtype`` says.

        Add it in place to a float32 tensor as it is: torch adds in float64 and rounds the sum.
        """
        count = shape.numel()
        total = torch.zeros(count, dtype=torch.float64)
        for _ in range(GAUSSIANS):
            uniforms = torch.from_numpy(self._uniforms.draw(count))
            # Halfway between two of the 2^53 uniforms: never 0 or 1, where the inverse is infinite.
            centred = uniforms.mul_(2.0).sub_(1.0 - 2.0**-53)
            total += torch.erfinv(centred, out=centred)
        # sqrt(2) erfinv is standard normal; a sum of four has standard deviation 2.
        return total.mul_(2.0**0.5 / GAUSSIANS**0.5).view(shape).to(self._device)

    def state(self) -> dict[str, Any]:
        """Returns what ``from_state`` needs; secret."""
        return self._uniforms.state()

    @classmethod
    def from_state(cls, device: torch.device, state: dict[str, Any]) -> Self:
        """Returns the stream as it was when ``state`` was taken."""
        return cls(device, bytes.fromhex(str(state["key"])), int(state["position"]))
