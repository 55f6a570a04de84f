"""Losses of preference pairs: a chosen and a rejected answer to the same prompt.

A loss depends on the log-probabilities of the two answers' tokens. DPO and IPO compare them with
the log-probabilities under a reference model, which are computed once before training.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from dpft.strict_model import Positive, StrictModel

Objective = Literal["dpo", "ipo", "orpo"]
DPO: Literal["dpo"] = "dpo"
IPO: Literal["ipo"] = "ipo"
ORPO: Literal["orpo"] = "orpo"


class PreferenceLoss(StrictModel):
    """A preference objective and its constants.

    dpo: Rafailov et al. 2023 (arXiv 2305.18290), equation 7. With ``label_smoothing``, the
    conservative DPO of Mitchell 2023.
    ipo: Azar et al. 2023 (arXiv 2310.12036), equation 17, on log-probabilities per token.
    orpo: Hong et al. 2024 (arXiv 2403.07691), equations 5 to 7, with weight ``beta``.
    """

    objective: Objective = DPO
    beta: Positive = 0.1
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0

    @property
    def needs_reference(self) -> bool:
        """Whether the loss depends on a reference model."""
        return self.objective != ORPO

    def __call__(self, nll_sums: Tensor, token_counts: Tensor, references: Tensor | None) -> Tensor:
        """Return the loss of each pair, shape (b,), in nats (for ipo: squared nats).

        Args:
            nll_sums: Negative log-likelihood of each answer, summed over its tokens, shape (2b,).
                Each chosen answer is followed by its rejected answer.
            token_counts: Number of tokens of each answer, shape (2b,).
            references: Log-probability of each answer under the reference model, shape (2b,).

        Raises:
            ValueError: The objective needs ``references``, but ``references`` is None.
        """
        log_probabilities = -nll_sums
        if self.needs_reference:
            if references is None:
                raise ValueError(f"objective={self.objective} needs references.")
            log_probabilities = log_probabilities - references.to(nll_sums.dtype)
        if self.objective != DPO:
            log_probabilities = log_probabilities / token_counts.clamp(min=1)
        chosen, rejected = log_probabilities.view(-1, 2).unbind(dim=1)
        if self.objective == IPO:
            return (chosen - rejected - 1 / (2 * self.beta)).square()
        if self.objective == ORPO:
            ratio = functional.logsigmoid(_log_odds(chosen) - _log_odds(rejected))
            return -chosen - self.beta * ratio
        margin = self.beta * (chosen - rejected)
        smoothing = self.label_smoothing
        agrees, contradicts = functional.logsigmoid(margin), functional.logsigmoid(-margin)
        return -(1 - smoothing) * agrees - smoothing * contradicts


def _log_odds(log_probability: Tensor) -> Tensor:
    """Return log(p / (1 - p)), given log(p)."""
    return log_probability - torch.log(-torch.expm1(log_probability))
