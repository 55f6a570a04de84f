"""Fine-tune Hugging Face language models under differential privacy.

    import dpft

    run = dpft.train(["task=e2e", "model=gpt2", "privacy.eps=3"])
    run.epsilon, run.delta, run.scores
    cost = dpft.account(num_examples=42061, expected_batch_size=1024, epochs=10, eps=3)
    cost.mechanism.noise_multiplier

Each function corresponds to the command of the same name. Importing ``dpft`` does not import torch
or Transformers; the first use of a function does.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dpft.errors import DpftError, InputError, RunError, StateError

if TYPE_CHECKING:
    from dpft.commands.finished_run import Run, open_run
    from dpft.commands.python_api import Generated, account, evaluate, generate, plan, train, tune
    from dpft.synthesis.command import Synthesized, synthesize

__version__ = "0.3.0"

__all__ = [
    "DpftError",
    "Generated",
    "InputError",
    "Run",
    "RunError",
    "StateError",
    "Synthesized",
    "account",
    "evaluate",
    "generate",
    "open_run",
    "plan",
    "synthesize",
    "train",
    "tune",
]

_MODULES = {
    **dict.fromkeys(
        ("Generated", "account", "evaluate", "generate", "plan", "train", "tune"),
        "dpft.commands.python_api",
    ),
    **dict.fromkeys(("Run", "open_run"), "dpft.commands.finished_run"),
    **dict.fromkeys(("Synthesized", "synthesize"), "dpft.synthesis.command"),
}
"""The module that each name is imported from when it is first used."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
