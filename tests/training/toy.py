"""A model small enough to train in a test, and records for it."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.data.batches import TextLayout
from dpft.data.tokenization import TokenizedExample
from dpft.errors import SaidElsewhere
from dpft.methods.full import Full
from dpft.parallel.sharding import cut_like
from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.privacy.journal import ReplayError
from dpft.privacy.plan import ClippingPlan, Phase, PrivacyPlan, StepsPlan
from dpft.privacy.privacy_config import DifferentialPrivacy, NoPrivacy, Privacy
from dpft.training import loop
from dpft.training.checkpoint import ResumePoint
from dpft.training.loop import TrainingSet
from dpft.training.optimizers import AdamW, SchedulerConfig, make_scheduler
from dpft.training.training_config import TrainingConfig
from dpft.training.training_run import TrainingRun
from dpft.training.training_state import TrainingState
from tests.self_checks import checked_phases

VOCABULARY = 17


def tiny_model(seed: int = 0) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=8, n_layer=1, n_head=2,
        bos_token_id=0, eos_token_id=0, resid_pdrop=0.2,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def training_set(count: int = 12, micro_batch_size: int = 4) -> TrainingSet:
    generator = torch.Generator().manual_seed(3)
    examples = []
    for number in range(count):
        length = 4 + number % 5
        ids = torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()
        examples.append(TokenizedExample(input_ids=ids, labels=[-100, -100, *ids[2:]]))
    return TrainingSet(
        examples=examples,
        micro_batch_size=micro_batch_size,
        layout=TextLayout(pad_token_id=0),
        device=torch.device("cpu"),
    )


def training_state(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    schedule: SchedulerConfig | None = None,
    steps: int = 10,
    factor: Callable[[int], float] | None = None,
) -> TrainingState:
    """Return a state before its first step; by default of AdamW and a linear schedule."""
    optimizer = optimizer or AdamW().make(model.parameters(), learning_rate=0.1, weight_decay=0.01)
    schedule = schedule or SchedulerConfig(name="linear")
    scheduler = make_scheduler(optimizer, schedule, steps=steps, factor=factor)
    method = Full(name="full")
    return TrainingState(model=model, method=method, optimizer=optimizer, scheduler=scheduler)


def take_steps(state: TrainingState, count: int) -> None:
    """Take steps of made-up gradients, which follow from the number of the step alone."""
    for _ in range(count):
        generator = torch.Generator().manual_seed(state.scheduler.last_epoch)
        for parameter in state.model.parameters():
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = cut_like(parameter, gradient)
        state.optimizer.step()
        state.scheduler.step()


def plan(steps: int = 5, noise_multiplier: float = 1.0) -> PrivacyPlan:
    phase = Phase(method="full", steps=steps, max_grad_norm=0.1, sensitivity=0.1)
    return PrivacyPlan(
        noise_multiplier=noise_multiplier,
        sample_rate=0.5,
        steps=steps,
        delta=0.01,
        num_examples=12,
        expected_batch_size=6,
        clipping="flat",
        phases=(phase,),
    )


def spent(steps: int) -> SpentEpsilon:
    """An epsilon that grows by one with every step."""
    return SpentEpsilon(epsilon=float(steps), accountant="prv")


def privacy(seed: int | None = 1) -> DifferentialPrivacy:
    return DifferentialPrivacy(name="dp", noise_multiplier=1.0, noise_seed=seed)


def session(folder: Path, model=None, **settings) -> TrainingRun:
    """Return a run of a small model, its folder made if need be."""
    folder.mkdir(exist_ok=True)
    model, method = model or tiny_model(), Full(name="full")
    return TrainingRun(
        folder=folder,
        plan=plan(),
        privacy=privacy(),
        model=model,
        method=method,
        choices=checked_phases(model, method, plan()),
        phases=(),
        training_set=training_set(micro_batch_size=settings.get("micro_batch_size", 4)),
        settings=TrainingConfig(expected_batch_size=6, learning_rate=1e-2, **settings),
        optimizer=AdamW(),
        scheduler=SchedulerConfig(name="linear"),
    )


def save_nothing(run: TrainingRun) -> None:
    (run.folder / "model").mkdir(exist_ok=True)


def train_privately(
    run: TrainingRun,
    plan: StepsPlan,
    privacy: Privacy,
    *,
    epsilon_after=None,
    resume_point: ResumePoint | None = None,
    save_model=save_nothing,
) -> None:
    """Take the steps of a run and close it, as ``dpft.commands.train`` does."""
    run.plan, run.privacy, run.resume_point = plan, privacy, resume_point
    run.epsilon_so_far = epsilon_after
    state = run.initial_state()
    while True:
        try:
            with run.steps(state) as engine:
                loop.train(state, run.training_set, engine, run)
                released = run.ranks.on_rank_0(save_model, run)
                run.ranks.on_rank_0(run.close, released)
            return
        except (ReplayError, SaidElsewhere) as error:
            run.reseed_after(error)


def train_ordinarily(
    run: TrainingRun,
    steps: int,
    resume_point: ResumePoint | None = None,
    *,
    clipped: tuple[ClippingPlan, NoPrivacy] | None = None,
    save_model=save_nothing,
) -> None:
    """Take steps without noise; ``clipped`` says how each gradient is clipped."""
    sizes = {
        "num_examples": run.plan.num_examples,
        "expected_batch_size": run.settings.expected_batch_size,
    }
    plan, privacy = clipped or (StepsPlan(steps=steps, **sizes), NoPrivacy(name="none"))
    train_privately(run, plan, privacy, resume_point=resume_point, save_model=save_model)
