"""The numbers of one block of a step's noise, whole."""

import torch
from torch import Tensor

from dpft.parallel.rank_sums import Piece
from dpft.privacy.noise import BlockNoise, NoiseStream


def block_noise(
    noise: NoiseStream, count: int, *, step: int = 0, parameter: int = 0, block: int = 0
) -> Tensor:
    """Return a block's numbers, standard normal, shape (count,)."""
    (halves,) = BlockNoise(noise, step).halves([Piece(parameter, block, 0, count)])
    return torch.cat(halves)[:count]
