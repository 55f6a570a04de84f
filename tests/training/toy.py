"""A model small enough to train in a test, and records for it."""

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.data.batches import TextLayout
from dpft.data.tokenization import TokenizedExample
from dpft.methods.full import Full
from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.privacy.plan import Phase, PrivacyPlan
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.training.loop import TrainingSet
from dpft.training.optimizers import AdamW, SchedulerConfig
from dpft.training.session import Session
from dpft.training.training_config import TrainingConfig

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


def session(folder: Path, model=None, **settings) -> Session:
    return Session(
        folder=folder,
        model=model or tiny_model(),
        method=Full(name="full"),
        phases=(),
        training_set=training_set(micro_batch_size=settings.get("micro_batch_size", 4)),
        settings=TrainingConfig(expected_batch_size=6, learning_rate=1e-2, **settings),
        optimizer=AdamW(),
        scheduler=SchedulerConfig(name="linear"),
        save_model=lambda: (folder / "model").mkdir(exist_ok=True),
        num_examples=12,
        show_diagnostics=False,
    )
