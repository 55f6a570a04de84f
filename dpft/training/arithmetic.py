"""By what processes know that they compute alike: bits of a gradient of synthetic records.

Whose share a record is changes with the records that are drawn beside it. Where ranks round
otherwise, one record more would therefore move the rounding of all the others, and the sum by more
than the sensitivity: in bfloat16 it was measured to by 3 % (docs/design.md, many processes).
"""

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from dpft.data.layout import Layout
from dpft.training.precision import autocast
from dpft.training.self_check import SHORT_LENGTH, synthetic_losses

ROWS = 3


def processor(device: torch.device) -> tuple[str, ...]:
    """Returns the names of what a process computes with, and how many threads it has."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    threads = torch.get_num_threads()
    return device.type, name, torch.backends.cpu.get_cpu_capability(), str(threads)


def bits_of_a_gradient(
    model: nn.Module,
    layout: Layout,
    *,
    max_length: int,
    precision: str,
    unsharded: Mapping[str, nn.Parameter] | None = None,
) -> str:
    """Returns a hash of losses and gradients of synthetic records, in evaluation mode.

    Args:
        model: On its device; its gradients and mode stay as they are.
        layout: How rows lie in a batch.
        max_length: Of the longest record.
        precision: What losses are computed in.
        unsharded: Of a model in shards, what bears its parameters' names while it runs.
    """
    was_training = model.training
    model.eval()
    digest = hashlib.sha256()
    now = dict(model.named_parameters()) if unsharded is None else unsharded
    trainable = [now[name] for name, p in model.named_parameters() if p.requires_grad]
    for longest in sorted({min(SHORT_LENGTH, max_length), max_length}):
        compute = synthetic_losses(model, ROWS, longest, layout=layout)
        with autocast(precision, trainable[0].device):
            losses = compute()
        gradients = torch.autograd.grad(losses.sum(), trainable, allow_unused=True)
        _add(digest, [losses.detach(), *(each for each in gradients if each is not None)])
    model.train(was_training)
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        values = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(values.numpy().data)
