"""The point at which training starts: step 0, or a checkpoint with the same or new noise.

A resumed run repeats the steps since its last checkpoint, which are already in the ledger. The run
replays them with the same noise, at no further epsilon, if it can prove that each sum is reproduced
exactly. Otherwise the run draws new noise, and each repeated step adds a line to the ledger. The
run then ends at the last step within its budget (docs/dev/design.md, rule 9).
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dpft.parallel.ranks import Ranks
from dpft.parallel.sharding import is_cut
from dpft.privacy.journal import JournaledLedger
from dpft.privacy.ledger import ClipperChoice, Ledger
from dpft.privacy.plan import PrivacyPlan
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.privacy.randomness import make_randomness
from dpft.run_folder import JOURNAL, LEDGER, private_path
from dpft.training.checkpoint import ResumePoint, check_promises
from dpft.training.training_state import (
    TrainingState,
    model_state,
    optimizer_state,
    restore_optimizer,
    restore_scheduler,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Start:
    """The step and the random keys with which all processes start; secret."""

    done: int
    """Number of steps that the weights have taken."""
    last_step: int
    """Number of the last step to take."""
    secrets: Mapping[str, Any]
    """Keys of the next step, or generator states, as values for JSON."""
    resumes: bool = False
    """Whether the checkpoint to start from already exists."""
    stream: int = 0
    """Number of steps in the ledger when the current noise stream began."""
    history: str | None = None
    """Path of the checkpoint that stores the earlier noise with which the noise of the next steps
    is correlated; None if a new stream begins."""
    loss_scale: Mapping[str, Any] | None = None
    """State of an adaptive loss scale; None if the scale is not adaptive, or has no state yet."""


def ordinary_start(resume_point: ResumePoint | None, *, steps: int) -> Start:
    """Return the starting state of a run that adds no noise."""
    if resume_point is None:
        return Start(done=0, last_step=steps, secrets={})
    checkpoint = resume_point.checkpoint
    state = checkpoint.read_keys().content
    return Start(done=checkpoint.step, last_step=steps, secrets=state, resumes=True)


def open_ledger(
    stack: ExitStack,
    folder: Path,
    plan: PrivacyPlan,
    privacy: DifferentialPrivacy,
    resume_point: ResumePoint | None,
    *,
    clipper: tuple[ClipperChoice, ...] | None,
    environment: Mapping[str, Any],
    device: torch.device,
    reseeds: bool,
) -> tuple[JournaledLedger, Start]:
    """Open the ledger and its replay log on rank 0; return them with the start of the steps.

    Args:
        stack: Exit stack that closes both files.
        folder: Folder of the run.
        plan: The plan that the run must follow.
        privacy: The privacy configuration; a noise seed in it makes the keys predictable.
        resume_point: The point at which the run was interrupted; None for a new run.
        clipper: How the gradients of each phase are clipped, for the first line of the ledger.
        environment: All settings that affect the bits of a step's sum.
        device: Device of the model.
        reseeds: Whether repeated steps get new noise although they could be replayed.

    Raises:
        InputError: The folder already has a ledger, or the configuration was edited.
    """
    path, journal_path = folder / LEDGER, private_path(folder, JOURNAL)
    if resume_point is None:
        ledger = stack.enter_context(Ledger(path, plan=plan, clipper=clipper))
        journal = JournaledLedger(ledger, journal_path, environment=environment, steps_done=0)
        keys = make_randomness(device, privacy.noise_seed).state(0)
        start = Start(done=0, last_step=plan.steps, secrets=keys)
        return stack.enter_context(journal), start
    check_promises(resume_point, privacy)
    obstacle = "" if reseeds else obstacle_to_replay(resume_point, environment)
    if obstacle:
        logger.warning("%s", obstacle)
    record, checkpoint = resume_point.ledger, resume_point.checkpoint
    assert record is not None
    ledger = stack.enter_context(
        Ledger.reopen(path, record, plan=plan, clipper=clipper, run_id=resume_point.run_id)
    )
    done = checkpoint.step
    replays = not (obstacle or reseeds)
    if replays:
        # The position counts steps of the ledger. It exceeds the number of steps of the weights if
        # some steps were repeated before.
        position = done if checkpoint.run.ledger is None else checkpoint.run.ledger.position
    else:
        position = ledger.steps
    journal = stack.enter_context(
        JournaledLedger(ledger, journal_path, environment=environment, steps_done=position)
    )
    if replays:
        keys = dict(checkpoint.read_keys().content)
        stream, history = checkpoint.run.stream, str(checkpoint.path.absolute())
    else:
        if record.counted_steps > position:
            at = min(position, plan.steps - 1)
            journal.count_abandoned_step(plan.entry_at(at, stream=position))
            position = ledger.steps
        seed = privacy.noise_seed
        keys = make_randomness(device, seed, step=done, after=position).state(done)
        stream, history = position, None
    last = plan.steps
    if privacy.has_budget and not privacy.resume_overspend:
        last = last_step_within_budget(plan, done, ledger.streams_before(stream), position - stream)
    if not replays:
        logger.warning(
            "new noise from step %d on. The ledger already contains %d steps, so the run ends with"
            " step %d of %d.",
            done + 1, position, last, plan.steps,
        )  # fmt: skip
    return journal, Start(
        done=done,
        last_step=last,
        secrets=keys,
        resumes=True,
        loss_scale=checkpoint.run.loss_scale,
        stream=stream,
        history=history,
    )


def obstacle_to_replay(resume_point: ResumePoint, environment: Mapping[str, Any]) -> str:
    """Return why repeated steps cannot get the same noise again; empty if they can."""
    checkpoint = resume_point.checkpoint
    if checkpoint.run.environment != environment:
        return "the run is resumed in another environment"
    if not checkpoint.has_keys:
        return "the checkpoint no longer has its secret keys"
    if not checkpoint.has_history:
        return "the checkpoint no longer has the noise with which later noise is correlated"
    if not checkpoint.read_keys().original:
        return "the folder was copied or restored, so another copy may have the same secret keys"
    return ""


def last_step_within_budget(
    plan: PrivacyPlan, done: int, streams_before: Sequence[int], steps_of_stream: int
) -> int:
    """Return the step to end at, so that all noisy steps cost at most the planned amount.

    Args:
        plan: The plan.
        done: Number of steps that the weights have taken.
        streams_before: Number of steps of each noise stream that has ended.
        steps_of_stream: Number of steps taken in the current stream.
    """
    mechanism = plan.mechanism
    left = mechanism.compositions((plan.steps,)) - mechanism.compositions(streams_before)
    return min(plan.steps, done + max(0, mechanism.steps_within(left) - steps_of_stream))


def share_start(start: Start | None, training_state: TrainingState, ranks: Ranks) -> Start:
    """Return rank 0's start on each rank, and copy rank 0's weights and moments to the others.

    If the model is sharded, nothing is copied, because each rank has its own shard and the moments
    of this shard. If the model is not sharded, only rank 0 must have the moments.
    """
    if ranks.size == 1:
        assert start is not None
        return start
    weights = model_state(training_state.model).values()
    in_shards = any(is_cut(tensor) for tensor in weights)
    moments = {} if start is None or in_shards else optimizer_state(training_state)
    content = ranks.broadcast(
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
    shared = json.loads(content)
    with torch.no_grad():
        ranks.broadcast_tensors([tensor for tensor in weights if not is_cut(tensor)])
    received = {}  # on the CPU
    for name, (shape, dtype) in shared["moments"].items():
        blank = torch.empty(shape, dtype=getattr(torch, dtype))
        received[name] = moments[name].detach().cpu() if name in moments else blank
        ranks.broadcast_tensors([received[name]])
    if not ranks.is_rank_0 and not in_shards:
        restore_optimizer(training_state, received)
        restore_scheduler(training_state, int(shared["schedule"]))
    return Start(**shared["start"])
