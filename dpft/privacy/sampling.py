"""Poisson sampling: the only sampler whose batches the accountant's event describes."""

import numpy as np

from dpft.privacy.plan import PrivacyPlan
from dpft.privacy.uniform import UniformStream


class PoissonSampler:
    """Draws each step's logical batch at the sample rate of the plan's mechanism.

    Guarantees:
        Every unit joins a step independently of all others and of other steps with
        probability ``plan.mechanism().sample_rate``, to 2**-53. A batch may be empty. Its size
        and its members are private.
    """

    def __init__(self, plan: PrivacyPlan, stream: UniformStream) -> None:
        """Binds the sampler to the plan that is accounted for."""
        self._sample_rate = plan.mechanism().sample_rate
        self._stream = stream

    def draw(self, num_units: int) -> list[int]:
        """Returns the indices of one logical batch, ascending.

        Args:
            num_units: How many units there really are; private, and it moves neither the
                sample rate nor the divisor.
        """
        uniforms = self._stream.draw(num_units)
        return [int(index) for index in np.flatnonzero(uniforms < self._sample_rate)]
