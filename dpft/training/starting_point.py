"""Where training starts: at step 0, or at a checkpoint with the same noise or new noise.

A resumed run repeats the steps since its last checkpoint. They are in the ledger already. It
replays them with the same noise, at no further epsilon, if it can be proved that each sum comes out
as it was. Otherwise it draws new noise, each repeated step is one more ledger line, and the run
ends at the last step within its budget (docs/dev/design.md, rule 9).
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
    """Where all processes begin to take steps; secret, since it holds keys."""

    done: int
    """Steps that the weights have taken."""
    last_step: int
    """The step to end at."""
    secrets: Mapping[str, Any]
    """Keys of the next step, or generator states; ready for JSON."""
    resumes: bool = False
    """Whether the checkpoint to begin with exists already."""
    stream: int = 0
    """Steps that were in the ledger when the current stream of noise began."""
    history: str | None = None
    """The checkpoint with the noise that the next steps' noise is correlated with; None: the stream
    begins."""
    loss_scale: Mapping[str, Any] | None = None
    """State of an adaptive loss scale; None: it starts, or there is none."""


def ordinary_start(resume_point: ResumePoint | None, *, steps: int) -> Start:
    """Return the start of a run without noise."""
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
        stack: Closes both files.
        folder: The run's.
        plan: What the run is bound to.
        privacy: The configuration; its test seed makes keys predictable.
        resume_point: Where the run was interrupted; None: it begins.
        clipper: How each phase's gradients are clipped, for the ledger's first line.
        environment: What the bits of a step's sum depend on.
        device: Of the model.
        reseeds: Whether repeated steps get new noise although they could be replayed.

    Raises:
        InputError: The folder has a ledger already, or the configuration was edited.
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
        # Of the ledger's steps: more than the weights' if some were repeated before.
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
    """Return why repeated steps cannot have the same noise again; empty if they can."""
    checkpoint = resume_point.checkpoint
    if checkpoint.run.environment != environment:
        return "the run goes on in another environment than it broke off in"
    if not checkpoint.has_keys:
        return "the secret keys of the checkpoint are gone"
    if not checkpoint.has_history:
        return "the noise that the checkpoint's steps hang together with is gone"
    if not checkpoint.read_keys().original:
        return "the folder is a copy of the run's, or was restored, and another may have its keys"
    return ""


def last_step_within_budget(
    plan: PrivacyPlan, done: int, streams_before: Sequence[int], steps_of_stream: int
) -> int:
    """Return the step to end at, so that all noisy steps cost at most what was planned.

    Args:
        plan: The plan.
        done: Steps that the weights have taken.
        streams_before: Steps of each stream of noise that has ended.
        steps_of_stream: Steps taken in the current stream.
    """
    mechanism = plan.mechanism
    left = mechanism.compositions((plan.steps,)) - mechanism.compositions(streams_before)
    return min(plan.steps, done + max(0, mechanism.steps_within(left) - steps_of_stream))


def share_start(start: Start | None, training_state: TrainingState, ranks: Ranks) -> Start:
    """Return rank 0's start on each rank, with its weights and optimizer in place of their own.

    Shards stay as they are: each rank has its own, and their moments. Of a whole model, moments may
    be missing on all ranks but the first.
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
