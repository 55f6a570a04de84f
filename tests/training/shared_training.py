"""Whole training on several ranks, as a command does it."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from dpft.errors import RunError, SaidElsewhere
from dpft.methods.base import Method
from dpft.parallel.ranks import RankLost, Ranks, RankShare
from dpft.parallel.sharding import whole
from dpft.privacy.plan import ClippingPlan
from dpft.privacy.privacy_config import NoPrivacy
from dpft.training import loop as loop_module
from dpft.training.checkpoint import find_resume_point
from dpft.training.loop import TrainingSet
from dpft.training.optimizers import SGD, OptimizerConfig, SchedulerConfig
from dpft.training.training_config import TrainingConfig
from dpft.training.training_run import TrainingRun
from tests.parallel.small_steps import (
    NORM,
    Case,
    choices_of,
    plan_of,
    prepared,
    records,
    sharded,
)
from tests.training.toy import privacy, spent, train_ordinarily, train_privately

Weights = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training run, the same on every rank."""

    folder: Path
    case: Case
    dropout: float = 0.0
    broken_after: int | None = None
    """The step after whose update every rank dies."""
    goes_on: bool = False
    clips: bool = False
    """Whether a run without noise clips."""
    optimizer: OptimizerConfig = SGD(momentum=0.9)
    """Its steps are a third of AdamW's operations, each of which torch learns to shard anew."""
    changed_record: bool = False
    """Whether a record is another one than it was."""


def train_on(ranks: Ranks, run: Training) -> Weights:
    """Return a rank's weights after the last step."""
    method, model = prepared(run.case)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = run.dropout
    if run.broken_after is not None:
        die_after(run.broken_after)
    session = session_of(ranks, run, method, model)
    plan = plan_of(method, run.case)
    point = ranks.on_rank_0(find_resume_point, run.folder) if run.goes_on else None
    train_privately(session, plan, privacy(), epsilon_after=spent, resume_point=point)
    return weights_of(model)


def ended_on(ranks: Ranks, run: Training) -> tuple[str, str]:
    """Return the kind and the words of the error that training ends with on a rank."""
    try:
        train_on(ranks, run)
    except (RankLost, RunError, SaidElsewhere, SystemExit) as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def train_ordinarily_on(ranks: Ranks, run: Training) -> Weights:
    """Return a rank's weights after ordinary steps.

    They are those of SGD: some gradients are zero but for rounding (that of the keys' bias), and
    Adam makes whole steps of them.
    """
    method, model = prepared(run.case)
    session = replace(session_of(ranks, run, method, model), optimizer=SGD())
    how = clipped_of(method, run.case) if run.clips else None
    train_ordinarily(session, run.case.steps, clipped=how)
    return weights_of(model)


def clipped_of(method: Method, case: Case) -> tuple[ClippingPlan, NoPrivacy]:
    """Return how a run of a case clips without noise: what ``plan_of`` draws and clips."""
    plan = plan_of(method, case)
    shared = {name: getattr(plan, name) for name in ClippingPlan.model_fields}
    return ClippingPlan(**shared), NoPrivacy(name="none", max_grad_norm=NORM)


def die_after(step: int) -> None:
    """Kill this process when a step's weights have moved, before anything is saved."""
    check_weights = loop_module.check_weights

    def check_and_die(model: nn.Module, at: int) -> None:
        check_weights(model, at)
        if at == step:
            os._exit(1)

    loop_module.check_weights = check_and_die


def session_of(ranks: Ranks, run: Training, method: Method, model: nn.Module) -> TrainingRun:
    cut = run.case.shard_size is not None and ranks.size > 1
    shards = sharded(model, run.case, ranks) if cut else None
    return TrainingRun(
        plan=plan_of(method, run.case),
        privacy=privacy(),
        choices=choices_of(model, method, run.case, ranks, shards),
        model=model,
        method=method,
        phases=method.phases(run.case.steps, lambda epochs: 1),
        training_set=replace(records_of(run), share=RankShare(ranks.rank, ranks.size)),
        settings=TrainingConfig(expected_batch_size=12, learning_rate=1e-2, checkpoint_every=2),
        optimizer=run.optimizer,
        scheduler=SchedulerConfig(name="linear"),
        folder=run.folder,
        ranks=ranks,
        shards=shards,
    )


def records_of(run: Training) -> TrainingSet:
    as_ever = records(run.case)
    if not run.changed_record:
        return as_ever
    others = [replace(each, input_ids=[9] * len(each.input_ids)) for each in as_ever.examples]
    return replace(as_ever, examples=others)


def weights_of(model: nn.Module) -> Weights:
    return {name: whole(value.detach()).clone() for name, value in model.state_dict().items()}


def check_alike(answers: list[Weights]) -> None:
    """The replicas are the same bits."""
    for answer in answers:
        assert all(torch.equal(answer[name], answers[0][name]) for name in answers[0])
