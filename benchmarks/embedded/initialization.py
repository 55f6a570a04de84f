"""Initial weights with the circuit that copies, so that pre-training need not discover it.

An induction head (Olsson et al. 2022, arXiv 2209.11895) continues a text the way it went on
before: a first head leaves at each token a note on the token before it; a later head looks for
the note that fits the current token and copies the token it stands at. Found by training alone
this takes most of a small budget; written down at the start, and trained from there, echoing
random tokens takes 200 steps instead of well over 1000.
"""

import math
from typing import cast

import torch
from transformers import GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

FASTEST = 3.0
"""Largest frequency of the position sinusoids, in radians per token."""
SLOWEST = 0.003
"""Smallest frequency of the position sinusoids."""
POSITION_SHARPNESS = 1.2
NOTE_SCALE = 0.3
MATCH_SCALE = 1.8
COPY_SCALE = 0.3
COPYING_HEADS = 2


@torch.no_grad()
def start_near_copying(model: GPT2LMHeadModel) -> None:
    """Write position sinusoids, one previous-token head and the copying heads into a model.

    The rest of the weights stays as it was. Random projections come from torch's generator.

    Args:
        model: Two layers or more, of even head width; changed in place.
    """
    width = model.config.n_embd
    head = width // model.config.n_head
    frequencies = _frequencies(width)
    _write_positions(model, frequencies)
    content = torch.randn(width, head) / math.sqrt(width)
    note = torch.randn(head, width) / math.sqrt(width)
    first, second = (cast(GPT2Block, block).attn for block in model.transformer.h[:2])

    query, key, value = first.c_attn.weight.chunk(3, dim=1)
    query[:, :head], key[:, :head] = _previous_token(frequencies, width, head)
    value[:, :head] = content
    first.c_proj.weight[:head] = NOTE_SCALE * note

    query, key, value = second.c_attn.weight.chunk(3, dim=1)
    for start in range(0, min(COPYING_HEADS, model.config.n_head) * head, head):
        at = slice(start, start + head)
        query[:, at] = MATCH_SCALE * content
        key[:, at] = MATCH_SCALE * note.T
        value[:, at] = torch.randn(width, head) / math.sqrt(width)
        second.c_proj.weight[at] = COPY_SCALE * value[:, at].T


def _frequencies(width: int) -> torch.Tensor:
    count = width // 2
    return FASTEST * (SLOWEST / FASTEST) ** (torch.arange(count) / count)


def _write_positions(model: GPT2LMHeadModel, frequencies: torch.Tensor) -> None:
    angles = torch.arange(model.config.n_positions)[:, None] * frequencies
    sinusoids = torch.cat([angles.sin(), angles.cos()], dim=1)
    model.transformer.wpe.weight.copy_(math.sqrt(2) * model.config.initializer_range * sinusoids)


def _previous_token(
    frequencies: torch.Tensor, width: int, head: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return query and key weights, (d, head), that agree best one position apart.

    The key reads the fastest sinusoids; the query reads the same, turned back by one position.
    """
    query, key = torch.zeros(width, head), torch.zeros(width, head)
    for i in range(head // 2):
        sine, cosine, other = i, width // 2 + i, head // 2 + i
        turn = frequencies[i].item()
        key[sine, i] = key[cosine, other] = POSITION_SHARPNESS
        query[sine, i] = query[cosine, other] = POSITION_SHARPNESS * math.cos(turn)
        query[cosine, i] = -POSITION_SHARPNESS * math.sin(turn)
        query[sine, other] = POSITION_SHARPNESS * math.sin(turn)
    return query, key
