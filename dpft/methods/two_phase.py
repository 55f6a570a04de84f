"""Two-phase training, "X+BiTFiT": full fine-tuning, then the biases alone (Bu et al. 2022, 4.4).

Both phases take steps of one sampled Gaussian mechanism, so one epsilon holds over both; only what
trains, the clipping norm and the learning rate change at the switch, which is planned, not found.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dpft.errors import InputError
from dpft.methods.base import METHODS, Method, MethodPhase
from dpft.methods.bitfit import bias_names
from dpft.non_text_modules import idle_modules, is_inside
from dpft.strict_model import Positive

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


@dataclass
class _Run:
    """State of the run that a method was planned and prepared for."""

    switch: int | None = None
    """First step, counted from 0, of the second phase; None before ``phases``."""
    second: frozenset[str] = frozenset()
    """Names of the parameters that train in it."""
    idle: tuple[str, ...] = ()
    """Names of the modules that never train; see ``idle_modules``."""


@METHODS.register("two_phase")
class TwoPhase(Method):
    """Every parameter trains for ``full_epochs``, then what method=bitfit trains; the rest freezes.

    In the second phase train also what ``train_new_modules`` and ``train_embeddings`` open; in
    the first everything does.

    The optimizer keeps its moments over the switch unless ``reset_optimizer``. Most of a private
    gradient is noise, whose size per number depends on the clipping norm and not on how many
    numbers train, so what Adam knows of the biases stays right; a new Adam takes its first steps at
    the full learning rate whatever the gradient, and the second phase's is the larger. Bu et al.'s
    results are of the new one, as their code has it; it also suits a ``bitfit_max_grad_norm`` that
    changes the noise's size.

    One value serves one run: it remembers what ``phases`` planned and
    ``prepare`` found, so a resumed run asks both again.
    """

    full_epochs: Positive = 1.0
    """Epochs of full fine-tuning; at most 2 suffice (Bu et al. 2022, section 4.4)."""
    bitfit_learning_rate: Positive | None = None
    """Learning rate of the second phase; null keeps train.learning_rate. Ten times that of full
    fine-tuning is usual (Bu et al. 2022, Table 15)."""
    bitfit_max_grad_norm: Positive | None = None
    """Clipping norm of the second phase; null keeps privacy.max_grad_norm."""
    reset_optimizer: bool = False
    """Begin the second phase with an optimizer that has seen no gradient, as the authors' code
    does; false goes on with the first phase's moments."""

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model with every parameter trainable.

        Raises:
            InputError: It has nothing to train in the second phase.
        """
        biases, added = bias_names(model), set(self._also_trained(model, new))
        self._run.idle = idle_modules(model)
        names = frozenset(
            n
            for n, p in model.named_parameters()
            if (n in biases or p in added) and not is_inside(n, self._run.idle)
        )
        if not names:
            raise InputError(
                f"method={self.name} needs a bias to train in its second phase, but"
                f" {type(model).__name__} has none.",
                key="method",
                value=self.name,
                hint="method=full",
            )
        self._run.second = names
        return model.requires_grad_(True)

    def phases(
        self, steps: int, steps_of_epochs: Callable[[float], int]
    ) -> tuple[MethodPhase, ...]:
        """Return ``full`` for the steps of ``full_epochs``, then ``bitfit`` for the rest."""
        self._run.switch = switch = steps_of_epochs(self.full_epochs)
        full = MethodPhase(method="full", steps=min(switch, steps))
        if switch >= steps:
            logger.warning(
                "method=%s: the run has %d steps and method.full_epochs=%g covers %d, so all steps"
                " are full fine-tuning",
                self.name,
                steps,
                self.full_epochs,
                switch,
            )
            return (full,)
        bitfit = MethodPhase(
            method="bitfit",
            steps=steps - switch,
            max_grad_norm=self.bitfit_max_grad_norm,
            learning_rate=self.bitfit_learning_rate,
        )
        return (full, bitfit)

    def begin_step(self, model: "nn.Module", step: int) -> None:
        """Set what trains in the phase of ``step``, whatever trained before.

        Raises:
            RuntimeError: The run was not planned, or its model not prepared, by this value.
        """
        if self._run.switch is None or not self._run.second:
            raise RuntimeError("begin_step must follow phases and prepare.")
        full = step < self._run.switch
        for name, parameter in model.named_parameters():
            trains_first = full and not is_inside(name, self._run.idle)
            parameter.requires_grad_(trains_first or name in self._run.second)

    def begin_update(self, optimizer: "Optimizer", step: int) -> None:
        """Forget, where it is to, what the optimizer knows when the second phase begins."""
        if self.reset_optimizer and step == self._run.switch:
            optimizer.state.clear()

    @cached_property
    def _run(self) -> _Run:
        """Return the state of this value; not a field: no part of the configuration."""
        return _Run()
