"""Two-phase training, "X+BiTFiT": full fine-tuning, then only the biases (Bu et al. 2022, 4.4).

Both phases are steps of one sampled Gaussian mechanism, so one epsilon covers both. Only the
trainable parameters, the clipping norm and the learning rate change at the switch. The switch is
planned in advance and does not depend on the training.
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
    """State of the run for which a method was planned and prepared."""

    switch: int | None = None
    """First step of the second phase, counted from 0; None before ``phases``."""
    second: frozenset[str] = frozenset()
    """Names of the parameters that train in the second phase."""
    idle: tuple[str, ...] = ()
    """Names of the modules that never train; see ``idle_modules``."""


@METHODS.register("two_phase")
class TwoPhase(Method):
    """Training of all parameters for ``full_epochs``, then only of those of method=bitfit.

    In the first phase, all parameters train. In the second phase, the biases train, and also the
    parameters that ``train_new_modules`` and ``train_embeddings`` select.

    The optimizer keeps its moments at the switch, unless ``reset_optimizer`` is set. Most of a
    private gradient is noise. The noise per parameter depends on the clipping norm and not on the
    number of trainable parameters, so Adam's moments of the biases remain valid. A new Adam takes
    its first steps at the full learning rate, however small the gradient is, and the learning rate
    of the second phase is larger. The results of Bu et al. use a new Adam, as in their code. A new
    Adam is also preferable if ``bitfit_max_grad_norm`` changes the size of the noise.

    One instance serves one run, because it stores the results of ``phases`` and ``prepare``. A
    resumed run calls both again.
    """

    full_epochs: Positive = 1.0
    """Number of epochs of full fine-tuning; at most 2 suffice (Bu et al. 2022, section 4.4)."""
    bitfit_learning_rate: Positive | None = None
    """Learning rate of the second phase; null keeps train.learning_rate. Ten times the rate of full
    fine-tuning is usual (Bu et al. 2022, Table 15)."""
    bitfit_max_grad_norm: Positive | None = None
    """Clipping norm of the second phase; null keeps privacy.max_grad_norm."""
    reset_optimizer: bool = False
    """Begin the second phase with an optimizer that has seen no gradient, as in the authors' code;
    false keeps the moments of the first phase."""

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model with every parameter trainable.

        Raises:
            InputError: The model has no parameter to train in the second phase.
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
        """Set the trainable parameters of the phase of ``step``, regardless of earlier steps.

        Raises:
            RuntimeError: This instance did not plan the run, or did not prepare its model.
        """
        if self._run.switch is None or not self._run.second:
            raise RuntimeError("begin_step must follow phases and prepare.")
        full = step < self._run.switch
        for name, parameter in model.named_parameters():
            trains_first = full and not is_inside(name, self._run.idle)
            parameter.requires_grad_(trains_first or name in self._run.second)

    def begin_update(self, optimizer: "Optimizer", step: int) -> None:
        """Clear the optimizer state when the second phase begins, if ``reset_optimizer``."""
        if self.reset_optimizer and step == self._run.switch:
            optimizer.state.clear()

    @cached_property
    def _run(self) -> _Run:
        """State of this instance; not a field, because it is not part of the configuration."""
        return _Run()
