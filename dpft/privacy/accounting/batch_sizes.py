"""The noise of one epsilon over batch sizes, and how a budget of tokens is best divided.

*Batch sizes* (Li et al. 2022, Figures 3 and 6). What drowns a gradient is not the noise multiplier
but the effective one, noise multiplier over sample rate: the noise on the mean gradient, in units
of the clipping norm over the number of examples (section 3.1.1). The square-root rule, noise = c *
sqrt(sample rate) at fixed epochs (Tramer and Boneh 2020, Claim D.1), gives too little noise at
small sample rates (Li et al. 2022, appendix D).

*A budget of compute.* McKenna et al. 2025 (arXiv 2501.18914) find that what private training
reaches depends on the model, the number of steps T and the noise-batch ratio, the noise multiplier
over the batch size. The ratio follows from the budgets alone: N units, epsilon, delta, and T steps
of batches of B, of which T * B * (tokens of an example) is the budget of compute. Their losses,
which they interpolate from measurements, are not here; what they conclude from them is
(``SATURATION``, their Table 2): for N and epsilon the compute beyond which more is of no use to
pre-training, and the model, steps and batch that it is best spent on.

How a smaller budget is divided follows from the best case that dpft's plans show anyway
(``interpretation``): all clipped gradients of the run over its noise, ``sqrt(T) / ratio``. It grows
with the batch at a fixed budget, less and less, and knows nothing of how many steps an optimizer
needs. So the advice is the most steps that keep ``ENOUGH`` of its most: a rule of dpft's, not of
the paper.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpft.errors import InputError, RunError
from dpft.privacy.accounting.accountants import Accountants
from dpft.privacy.accounting.calibration import calibrate_noise_multiplier
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.plan import planned_steps


@dataclass(frozen=True, kw_only=True)
class BatchSizeNoise:
    """What one batch size takes.

    Attributes:
        expected_batch_size: Mean size of a draw.
        sample_rate: Probability with which each example joins a step.
        steps: Number of noisy steps.
        noise_multiplier: The smallest for the target; None where none was found.
        accountant: Whose bound chose it.
        epsilon: The bound.
        error: Why none was found.
    """

    expected_batch_size: float
    sample_rate: float
    steps: int
    noise_multiplier: float | None = None
    accountant: str | None = None
    epsilon: float | None = None
    error: str | None = None

    @property
    def effective_noise_multiplier(self) -> float | None:
        """Noise multiplier over sample rate."""
        return None if self.noise_multiplier is None else self.noise_multiplier / self.sample_rate


def noise_over_batch_sizes(
    batch_sizes: Sequence[float],
    *,
    eps: float,
    delta: float,
    num_examples: int,
    steps: int | None = None,
    epochs: float | None = None,
    accountant: str,
    accountants: Accountants,
) -> list[BatchSizeNoise]:
    """Returns the noise for ``eps`` at each batch size, ascending.

    Args:
        batch_sizes: Expected batch sizes, each at most ``num_examples``.
        eps: Target epsilon.
        delta: Target delta.
        num_examples: Public number of examples.
        steps: Fixed number of steps, or None.
        epochs: Fixed number of epochs, where ``steps`` is None.
        accountant: Whose upper bound to hold to.
        accountants: Running accountants.

    Raises:
        InputError: delta is out of range.
    """
    found = []
    for batch in sorted(batch_sizes):
        count = steps
        if count is None:
            assert epochs is not None
            count = _steps(epochs, num_examples, batch)
        about = BatchSizeNoise(
            expected_batch_size=batch, sample_rate=batch / num_examples, steps=count
        )
        _check(about, delta)
        found.append(_calibrated(about, eps, delta, accountant, accountants))
    return found


def square_root_rule(points: Sequence[BatchSizeNoise]) -> list[float | None]:
    """Returns the effective noise multiplier that the square-root rule gives at each point.

    Its constant is fitted at the largest batch size that has a noise multiplier, where the rule
    holds best.
    """
    known = [point for point in points if point.noise_multiplier is not None]
    if not known:
        return [None] * len(points)
    largest = max(known, key=lambda point: point.sample_rate)
    assert largest.noise_multiplier is not None
    constant = largest.noise_multiplier / math.sqrt(largest.sample_rate)
    return [constant / math.sqrt(point.sample_rate) for point in points]


def _steps(epochs: float, num_examples: int, batch: float) -> int:
    return planned_steps(epochs=epochs, num_examples=num_examples, expected_batch_size=batch)


def _check(about: BatchSizeNoise, delta: float) -> None:
    """Refuses numbers that no mechanism can have, whatever its noise is."""
    SampledGaussian(
        noise_multiplier=1, sample_rate=about.sample_rate, steps=about.steps, delta=delta
    )


def _calibrated(
    about: BatchSizeNoise, eps: float, delta: float, accountant: str, accountants: Accountants
) -> BatchSizeNoise:
    noise: dict[str, float | str]
    try:
        multiplier, calibration = calibrate_noise_multiplier(
            eps=eps,
            delta=delta,
            sample_rate=about.sample_rate,
            steps=about.steps,
            accountant=accountant,
            accountants=accountants,
        )
    except (InputError, RunError) as error:
        noise = {"error": str(error).replace("privacy.", "")}
    else:
        noise = {
            "noise_multiplier": multiplier,
            "accountant": calibration.accountant,
            "epsilon": calibration.epsilon,
        }
    return BatchSizeNoise(**{**vars(about), **noise})


ENOUGH = 0.9
"""Share of the best signal to noise that the advice keeps."""
MOST_STEPS = 2**17
"""Longest run that is looked at; 128,000 steps are the most that McKenna et al. measured."""
MEASURED_STEPS, MEASURED_RATIOS = (1_000, 128_000), (2.0**-23, 2.0**-6)
"""What McKenna et al. 2025 measured, as ``dp_scaling_laws/nonparametric.py`` of google-research
says: models of 4.5 to 778 million parameters, pre-trained on 512 tokens, at delta = 1e-8."""
TOKENS_PER_PARAMETER = 20
"""Of a model that a budget is best spent on without privacy (Hoffmann et al. 2022, 2203.15556)."""
SMALLEST_MODEL = 4.5e6
"""Parameters of the smallest that McKenna et al. 2025 measured."""
SATURATION_UNITS, SATURATION_EPSILONS = (1e5, 1e6, 1e7, 1e8, 1e9), (1, 4, 16, 64)
SATURATION = (
    ((4.6e6, 1.8e3, 5.1e2), (4.6e6, 1.8e3, 4.1e3), (1.7e7, 2.7e3, 1.4e4), (2.0e7, 6.3e3, 1.9e4)),
    ((4.6e6, 2.5e3, 8.2e3), (1.9e7, 6.5e3, 2.3e4), (1.7e7, 1.4e4, 4.6e4), (4.9e7, 1.2e4, 1.9e5)),
    ((1.7e7, 9.6e3, 7.8e4), (4.9e7, 1.1e4, 2.2e5), (7.0e7, 1.2e4, 7.4e5), (3.3e8, 4.9e4, 8.8e5)),
    ((1.3e8, 5.8e4, 2.2e5), (3.3e8, 4.9e4, 8.8e5), (3.3e8, 9.3e4, 1.0e6), (3.3e8, 1.1e5, 8.8e5)),
    ((3.3e8, 9.4e4, 8.8e5), (3.3e8, 1.1e5, 8.8e5), (3.3e8, 1.1e5, 8.8e5), (3.3e8, 1.1e5, 1.1e6)),
)
"""Parameters, steps and batch size at the least compute within 1 % of the best loss that any
compute reaches, by units (rows) and epsilon: McKenna et al. 2025, Table 2. BERT, 512 tokens, delta
= 1e-8; models above 335 million parameters were not among the choices."""
SATURATION_TOKENS = 512
"""Tokens of an example there."""
BELOW = 2
"""Divisions that are shown though they have less than ``ENOUGH``; more steps have still less."""
CURVE_SHARES = (1024, 256, 64, 16, 4, 1)
"""Batch sizes of a curve, as what they are a part of the units of."""


@dataclass(frozen=True, kw_only=True)
class Division:
    """One way to spend the budget."""

    steps: int
    expected_batch_size: int
    noise_multiplier: float

    @property
    def noise_batch_ratio(self) -> float:
        """Noise multiplier over batch size."""
        return self.noise_multiplier / self.expected_batch_size

    @property
    def strength(self) -> float:
        """All clipped gradients over the noise along one direction, at best."""
        return math.sqrt(self.steps) / self.noise_batch_ratio

    @property
    def is_measured(self) -> bool:
        """Whether steps and ratio lie where McKenna et al. 2025 have measured losses."""
        (fewest, most), (least, largest) = MEASURED_STEPS, MEASURED_RATIOS
        return fewest <= self.steps <= most and least <= self.noise_batch_ratio <= largest


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What is given."""

    tokens: float
    """That all steps together may read."""
    tokens_per_example: int
    num_examples: int
    """Public number of units."""
    eps: float
    delta: float
    accountant: str

    def batch_size(self, steps: int) -> int:
        """Returns the largest batch that so many steps can have."""
        return min(self.num_examples, int(self.tokens / (steps * self.tokens_per_example)))


def divisions(budget: Budget, accountants: Accountants) -> list[Division]:
    """Returns ways to spend the budget, each with twice the steps of the one before.

    The first has as many units in a batch as there are, or one step; the last ``BELOW`` keep less
    than ``ENOUGH`` of the best signal to noise, unless batches of one unit came first.

    Raises:
        InputError: The budget is not enough for a step of one unit, or epsilon is out of reach.
    """
    if budget.batch_size(1) < 1:
        raise InputError(
            f"compute must be at least the {budget.tokens_per_example} tokens of an example, got"
            f" {budget.tokens:g}; raise it."
        )
    found: list[Division] = []
    for steps in _step_counts(budget):
        best = max((division.strength for division in found), default=0.0)
        if sum(division.strength < ENOUGH * best for division in found) >= BELOW:
            break
        (point,) = _noise(budget, [budget.batch_size(steps)], steps, accountants)
        if point.noise_multiplier is not None:
            found.append(
                Division(
                    steps=steps,
                    expected_batch_size=budget.batch_size(steps),
                    noise_multiplier=point.noise_multiplier,
                )
            )
    if not found:
        raise InputError(
            f"compute={budget.tokens:g}: no noise keeps any division of it within"
            f" privacy.eps={budget.eps:g}; raise eps."
        )
    return found


def _step_counts(budget: Budget) -> Iterator[int]:
    steps = max(1, math.ceil(budget.tokens / (budget.tokens_per_example * budget.num_examples)))
    while steps <= MOST_STEPS and budget.batch_size(steps) >= 1:
        yield steps
        steps *= 2


def advised(found: Sequence[Division]) -> Division:
    """Returns the division of most steps that keeps ``ENOUGH`` of the best signal to noise."""
    best = max(division.strength for division in found)
    return max(
        (division for division in found if division.strength >= ENOUGH * best),
        key=lambda division: division.steps,
    )


@dataclass(frozen=True, kw_only=True)
class Saturation:
    """What private pre-training is best spent on where compute is no limit."""

    parameters: float
    steps: float
    expected_batch_size: float
    is_measured: bool
    """Whether units and epsilon lie within the table; else its edge is what is given."""

    @property
    def tokens(self) -> float:
        """That all steps read together."""
        return self.steps * self.expected_batch_size * SATURATION_TOKENS

    def parameters_for(self, tokens: float) -> tuple[float, float]:
        """Returns the least and most parameters of the model that fewer tokens are best spent on.

        The most is the size at saturation. The best number of tokens for each parameter falls with
        the compute (their Figure 3c), so that the one at saturation gives the least. No size below
        ``SMALLEST_MODEL`` was measured, so none is given.
        """
        least = self.parameters * min(1, tokens / self.tokens)
        return max(SMALLEST_MODEL, least), self.parameters


def saturation(num_examples: int, eps: float) -> Saturation:
    """Returns ``SATURATION`` between its rows and columns, on logarithmic scales."""
    units, epsilons = np.log(SATURATION_UNITS), np.log(SATURATION_EPSILONS)
    at_units = np.clip(math.log(num_examples), units[0], units[-1])
    at_eps = np.clip(math.log(eps), epsilons[0], epsilons[-1])
    table = np.log(SATURATION)
    by_units = [
        [np.interp(at_eps, epsilons, row[:, of]) for row in table] for of in range(table.shape[2])
    ]
    parameters, steps, batch = (math.exp(np.interp(at_units, units, row)) for row in by_units)
    return Saturation(
        parameters=parameters,
        steps=steps,
        expected_batch_size=batch,
        is_measured=bool(at_units == math.log(num_examples) and at_eps == math.log(eps)),
    )


def ratio_curve(budget: Budget, steps: int, accountants: Accountants) -> list[BatchSizeNoise]:
    """Returns the noise over batch sizes at a fixed number of steps, ascending.

    From where it no longer falls, larger batches cost compute and lower the noise no more: with all
    units in each step the ratio is ``sqrt(steps)`` times a constant over ``num_examples``.
    """
    sizes = {max(1, budget.num_examples // share) for share in CURVE_SHARES}
    return _noise(budget, sorted(sizes), steps, accountants)


def _noise(
    budget: Budget, batch_sizes: Sequence[float], steps: int, accountants: Accountants
) -> list[BatchSizeNoise]:
    return noise_over_batch_sizes(
        batch_sizes,
        eps=budget.eps,
        delta=budget.delta,
        num_examples=budget.num_examples,
        steps=steps,
        accountant=budget.accountant,
        accountants=accountants,
    )
