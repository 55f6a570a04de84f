"""Poisson batches and Gaussian noise for users who write their own training loop.

A private training loop has four parts that must agree in three numbers. It draws batches as the
accountant assumes, clips gradients (``dpft.privacy.clipping.PerExampleClipper``), adds noise with a
standard deviation in units of the clipping norm, and computes epsilon (``dpft.account``).
``dpft train`` does all of this. For a custom loop, for example for a model that is not a language
model, this module provides the batches and the noise. Both use the implementations of
``dpft train``, with keys from the operating system.

>>> import torch
>>> batches = PoissonBatches(num_examples=1000, expected_batch_size=100, steps=3)
>>> len(batches), [0 <= int(index) < 1000 for batch in batches for index in batch[:1]]
(3, [True, True, True])
>>> layer = torch.nn.Linear(2, 1)
>>> noise = GaussianNoise(layer.parameters(), noise_std=1.0, expected_batch_size=100)
>>> noise.privatize_gradients()
>>> layer.weight.grad.abs().max() < 1
tensor(True)
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from dpft.errors import InputError
from dpft.privacy.cipher import AgingKey, secret_key
from dpft.privacy.noise import NoiseStream, add_noise
from dpft.privacy.sampling import PoissonSampler, SamplingStream


class PoissonBatches:
    """Logical batches of a run; each example joins each batch with the same probability.

    Guarantees:
        Batches are drawn as ``dpft.account`` assumes for the same arguments. An empty batch is
        possible and still counts as a step. The size and the members of a batch are secret.
    """

    def __init__(self, *, num_examples: int, expected_batch_size: float, steps: int) -> None:
        """Take a key from the operating system, for these batches only.

        Args:
            num_examples: Public number of examples.
            expected_batch_size: Average number of examples in a batch.
            steps: Number of batches; ``dpft.account(...).steps``.

        Raises:
            InputError: A number is out of range.
        """
        if not 0 < expected_batch_size <= num_examples or steps < 1:
            raise InputError(
                "expected_batch_size must be above 0 and at most num_examples, and steps at least"
                f" 1, got expected_batch_size={expected_batch_size}, num_examples={num_examples}"
                f" and steps={steps}.",
                key="steps" if steps < 1 else "expected_batch_size",
                value=steps if steps < 1 else expected_batch_size,
            )
        self._num_examples, self._steps = num_examples, steps
        self._key = AgingKey(secret_key("sampling"))
        rate = expected_batch_size / num_examples
        self._sampler = PoissonSampler(rate, SamplingStream(self._key))
        self._drawn = 0

    def __len__(self) -> int:
        """Return the number of batches."""
        return self._steps

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the indices of each batch, ascending, shape (size,), int64; each batch once.

        Raises:
            InputError: All batches were drawn. Further batches would exceed the steps accounted
                for.
        """
        if self._drawn == self._steps:
            raise InputError(
                f"all {self._steps} batches that epsilon accounts for were drawn already. Make a"
                " new PoissonBatches for more steps, and account for all of them.",
                key="steps",
                value=self._steps,
            )
        while self._drawn < self._steps:
            drawn = self._sampler.draw(self._num_examples, step=self._drawn)
            self._drawn += 1
            self._key.forget(self._drawn)
            yield torch.tensor(drawn, dtype=torch.int64)


class GaussianNoise:
    """Noise source that turns sums of clipped gradients into private gradients, step by step.

    Guarantees:
        As for ``dpft.privacy.noise.add_noise``: the noise comes from a stream cipher with a key
        from the operating system. It is added in float64, and the sum is rounded once to a fixed
        grid. The noise of each step is independent.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, noise_std: float, expected_batch_size: float
    ) -> None:
        """Take a key from the operating system, for these parameters only.

        Args:
            parameters: All parameters of the model; those that require grad get noise.
            noise_std: ``noise_multiplier * max_grad_norm``, if one unit changes the sum by at most
                ``max_grad_norm``.
            expected_batch_size: Divisor of the sums; never the size of a draw.

        Raises:
            InputError: A number is not positive, or the parameters that require grad are not on
                exactly one device.
        """
        if not (noise_std > 0 and expected_batch_size > 0):
            raise InputError(
                "noise_std and expected_batch_size must be positive, got"
                f" {noise_std} and {expected_batch_size}.",
                key="expected_batch_size" if noise_std > 0 else "noise_std",
                value=expected_batch_size if noise_std > 0 else noise_std,
            )
        self._parameters = list(parameters)
        devices = {p.device for p in self._parameters if p.requires_grad}
        if len(devices) != 1:
            raise InputError(
                "the parameters that require grad must be on one device, got"
                f" {len(devices)} devices.",
                key="parameters",
                value=len(devices),
            )
        self._noise_std, self._divisor = noise_std, expected_batch_size
        self._stream = NoiseStream(devices.pop(), AgingKey(secret_key("noise")))
        self._step = 0

    def privatize_gradients(self) -> None:
        """End a step by turning every trainable ``grad`` into the private gradient.

        The private gradient is ``(clipped sum + N(0, noise_std^2)) / expected_batch_size``. A
        parameter without a clipped sum also gets noise.
        """
        add_noise(self._parameters, self._noise_std, self._stream, self._step)
        self._step += 1
        self._stream.key.forget(self._step)
        for parameter in self._parameters:
            if parameter.requires_grad and parameter.grad is not None:
                parameter.grad.div_(self._divisor)
