"""What the processes of a run tell each other before the first step and after each."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpft.errors import RunError
from dpft.parallel.local import is_cut, local
from dpft.parallel.ranks import Ranks
from dpft.training.loop import StepStatistics
from dpft.training.training_state import (
    TrainingState,
    model_state,
    optimizer_state,
    restore_optimizer,
    restore_scheduler,
)


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where all processes begin to take steps; secret, since it holds keys."""

    done: int
    """Steps that the weights have taken."""
    last_step: int
    """The step to end at."""
    secrets: Mapping[str, Any]
    """Keys of the next step, or generator states; ready for JSON."""
    goes_on: bool = False
    """Whether the checkpoint to begin with is there already."""
    stream: int = 0
    """Steps that were in the ledger when the stream of noise began which goes on."""
    history: str | None = None
    """The checkpoint that holds the noise which that of the next steps hangs together with; None:
    the stream begins."""
    loss_scale: Mapping[str, Any] | None = None
    """Where an adaptive loss scale stands; None: where it starts, or there is none."""


def share_start(start: Start | None, training_state: TrainingState, ranks: Ranks) -> Start:
    """Returns the first process's start on each, its weights and optimizer in place of their own.

    What is cut into shards stays: each rank has its own, and the moments that go with it.

    Args:
        start: The first one's; None on the others.
        training_state: Of the same model and optimizer everywhere; moments may be missing, where
            the model is whole.
        ranks: The processes.
    """
    if ranks.size == 1:
        assert start is not None
        return start
    weights = model_state(training_state.model).values()
    in_shards = any(is_cut(tensor) for tensor in weights)
    moments = {} if start is None or in_shards else optimizer_state(training_state)
    said = ranks.broadcast(
        json.dumps(
            {
                "start": None if start is None else asdict(start),
                "moments": {
                    name: [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]
                    for name, tensor in moments.items()
                },
                "schedule": training_state.scheduler.last_epoch,
            }
        ).encode()
    )
    heard = json.loads(said)
    with torch.no_grad():
        ranks.copy_first([tensor for tensor in weights if not is_cut(tensor)])
    received = _received(moments, heard["moments"], ranks)
    if not ranks.is_first and not in_shards:
        restore_optimizer(training_state, received)
        restore_scheduler(training_state, int(heard["schedule"]))
    return Start(**heard["start"])


def _received(
    own: Mapping[str, Tensor], layout: Mapping[str, tuple[list[int], str]], ranks: Ranks
) -> dict[str, Tensor]:
    """Returns the first process's tensors, in the processor's memory."""
    received = {}
    for name, (shape, dtype) in layout.items():
        blank = torch.empty(shape, dtype=getattr(torch, dtype))
        received[name] = own[name].detach().cpu() if name in own else blank
        ranks.copy_first([received[name]])
    return received


def gathered(
    statistics: StepStatistics, non_finite: int, ranks: Ranks
) -> tuple[StepStatistics, int]:
    """Returns the losses and norms of all processes, and what they left out together."""
    if ranks.size == 1:
        return statistics, non_finite
    losses, norms = _flat(statistics.losses), _flat(statistics.norms)
    counts = torch.tensor([non_finite, len(losses)], dtype=torch.float64)
    sent = torch.cat((counts, losses, norms)).numpy().tobytes()
    heard = [
        torch.frombuffer(bytearray(each), dtype=torch.float64) for each in ranks.everyones(sent)
    ]
    everyones_losses = [each[2 : 2 + int(each[1])].float() for each in heard]
    everyones_norms = [each[2 + int(each[1]) :].float() for each in heard]
    together = replace(
        statistics,
        losses=[each for each in everyones_losses if len(each)],
        norms=[each for each in everyones_norms if len(each)],
    )
    return together, sum(int(each[0]) for each in heard)


def check_equal(model: nn.Module, twins: Ranks, ranks: Ranks) -> None:
    """Ends the run where weights that should be the same bits are not.

    Args:
        model: The run's.
        twins: The ranks that have what this one has of it.
        ranks: All of the run.

    Raises:
        RunError: They differ, as where a processor or a device computes otherwise.
    """
    if twins.size == 1:
        return
    digest = hashlib.sha256()
    for tensor in model_state(model).values():
        values = local(tensor.detach()).cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(values.numpy().data)
    is_apart = len(set(twins.everyones(digest.digest()))) > 1
    with ranks.settled():
        if is_apart:
            raise RunError(
                "the weights of the run's processes are no longer the same, as where their"
                " processors or devices differ; go on from the last checkpoint on machines of one"
                " kind."
            )


def _flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0, dtype=torch.float64), *(p.double().cpu() for p in parts)])
