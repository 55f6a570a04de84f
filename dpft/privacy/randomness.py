"""The secret random streams of a run: noise, sampling, dropout, and views of records.

They have nothing in common but the step they are at. Each has a key of its own that ages with the
steps. Keys come from the operating system; a test seed makes all of them predictable, and the run
then counts as not private.

That dropout needs no place in the accounting rests on masks that are independent and secret: the
masks of a batch shift when a record joins it, so whoever knew them could see far more than one
record's gradient move (docs/dev/design.md, rule 4). torch's CPU generator, MT19937, is linear:
20,000 of its bits give all the others, and a step draws millions.

So masks are drawn from ChaCha20 instead, under a key of their own for each step. Where in the
keystream a mask begins is a number from torch's generator, so that whatever restores that
generator's state to repeat a forward pass (gradient checkpointing, the clipper) gets the same
masks. torch's generators are themselves keyed anew at each step. Masks inside fused kernels
(attention's, an accelerator's, compiled code's) and inside ``torch.func`` transforms stay torch's.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpft.devices import has_float64, random_states_kept, seed_generator
from dpft.privacy.cipher import KEY_BYTES, Address, AgingKey, Purpose, keystream, secret_key
from dpft.privacy.noise import NoiseStream
from dpft.privacy.sampling import SamplingStream

logger = logging.getLogger(__name__)

DROPOUT_SOURCE = (
    "dropout masks from ChaCha20; those inside fused kernels and what else a model draws at random"
    " from torch's generators, keyed anew for each step from the operating system's key"
)
_LEVELS = 2**16
"""Dropout rates are rounded to a multiple of 1/_LEVELS."""

# torch's CPU generator state: a legacy Mersenne Twister record of 64-bit fields, in this order:
# seed, left, seeded, next, then 624 state words, then what normal_ cached.
_WORDS = 624
_STATE = 24
_SEED_BYTES = 8


class DropoutStream:
    """The secret source of a run's dropout masks."""

    def __init__(self, device: torch.device, key: AgingKey, *, rank: int = 0) -> None:
        """Draw from ``key``, which ages with the steps, for a rank's model on ``device``."""
        self.device, self._key, self._rank = device, key, rank
        self._step = key.step
        self._torch_dropout = F.dropout

    def begin_step(self, step: int) -> None:
        """Draw masks of another step from now on; keys torch's default generators.

        Each rank's generators have a key of their own, and so its masks places of their own.
        """
        self._step = step
        address = Address(Purpose.GENERATOR, step, self._rank)
        bits = keystream(self._key.at(step), address, 4 * _WORDS + _SEED_BYTES)
        fill_cpu_state(torch.default_generator, bytes(bits[: 4 * _WORDS]))
        if self.device.type != "cpu":
            seed = int.from_bytes(bits[4 * _WORDS :], "little", signed=True)
            seed_generator(self.device, seed)

    def dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Do what ``torch.nn.functional.dropout`` does, with a secret mask."""
        if not training or not 0 < p < 1 or _has_own_masks(input):
            return self._torch_dropout(input, p, training, inplace)
        scaled = self._kept(input, p).to(input.dtype).div_(1 - p)
        return input.mul_(scaled) if inplace else input * scaled

    def _kept(self, like: Tensor, p: float) -> Tensor:
        """Return a secret mask, True where a value is kept, bool, of the shape of ``like``."""
        place = int(torch.empty((), dtype=torch.int64).random_())
        address = Address(Purpose.DROPOUT, self._step, place >> 32 & 0xFFFFFF, place & 0xFFFFFFFF)
        bits = keystream(self._key.at(self._step), address, 2 * like.numel())
        numbers = np.frombuffer(bits, dtype=np.uint16).reshape(like.shape)
        return torch.from_numpy(numbers >= round(p * _LEVELS))


@contextmanager
def private_dropout(stream: DropoutStream) -> Iterator[DropoutStream]:
    """Let every dropout layer draw from ``stream``; restores torch's generators on leaving.

    Layers look ``torch.nn.functional.dropout`` up when they are called, so it is replaced there,
    in this process, until the block ends.
    """
    with random_states_kept([stream.device]), _replaced(stream.dropout):
        yield stream


def fill_cpu_state(generator: torch.Generator, bits: bytes) -> None:
    """Set the whole 19,937-bit state of a CPU generator.

    Args:
        generator: A generator on the CPU; whatever it held is overwritten.
        bits: 2496 secret bytes.
    """
    words = np.frombuffer(bits, dtype=np.uint32).astype(np.uint64)
    state = torch.Generator().manual_seed(0).get_state().numpy().copy()
    state[_STATE : _STATE + 8 * _WORDS] = words.view(np.uint8)
    generator.set_state(torch.from_numpy(state))


@contextmanager
def _replaced(dropout: Callable[..., Tensor]) -> Iterator[None]:
    before, F.dropout = F.dropout, dropout
    try:
        yield
    finally:
        F.dropout = before


def _has_own_masks(input: Tensor) -> bool:
    """Return whether the mask is drawn in a fused kernel or inside a transform."""
    # First, since a compiler that follows this code could not follow the rest of it.
    if torch.compiler.is_compiling() or input.device.type != "cpu":
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None


_LOW = 2**32


class ViewStream:
    """Random bytes for each record at each step, of ChaCha20."""

    def __init__(self, key: AgingKey) -> None:
        """Draw from ``key``, which ages with the steps."""
        self._key = key

    def bits(self, step: int, record: int, size: int) -> bytes:
        """Return ``size`` bytes for a record's view, the same whenever they are asked for.

        Args:
            step: The run's step, counted from 0; not forgotten.
            record: Its place among the rows.
            size: How many.
        """
        high, low = divmod(record, _LOW)
        address = Address(Purpose.VIEWS, step, parameter=high, block=low)
        return bytes(keystream(self._key.at(step), address, size))


PURPOSES = ("sampling", "noise", "dropout", "views")


class Randomness:
    """The secret sources of a private run.

    Attributes:
        noise: What is added to sums of gradients.
        sampling: What decides who joins a step.
        dropout: What dropout masks come from.
        views: What random views of records are drawn from.
        group_key: What puts units into groups, which stays the same over the steps; secret.
        reproducible: True where a test seed made the keys, so that the run protects nothing.
    """

    def __init__(
        self,
        keys: Mapping[str, AgingKey],
        device: torch.device,
        *,
        group_key: bytes,
        reproducible: bool,
        rank: int = 0,
    ) -> None:
        """Make the sources of a rank's model on ``device`` from a key for each of ``PURPOSES``."""
        self.group_key = group_key
        self._keys = dict(keys)
        noise_device = device
        if not has_float64(device):
            logger.warning(
                "noise is generated and added on the CPU, because %s does not support float64",
                device.type,
            )
            noise_device = torch.device("cpu")
        self.noise = NoiseStream(noise_device, keys["noise"])
        self.sampling = SamplingStream(keys["sampling"])
        self.dropout = DropoutStream(device, keys["dropout"], rank=rank)
        self.views = ViewStream(keys["views"])
        self.reproducible = reproducible

    def forget(self, step: int) -> None:
        """Forget what every step before ``step`` was drawn from."""
        for key in self._keys.values():
            key.forget(step)

    def state(self, step: int) -> dict[str, Any]:
        """Return the keys of a step, ready for JSON, for ``restore_randomness``; secret.

        Nothing of an earlier step can be computed from them.
        """
        return {
            "step": step,
            "keys": {name: key.at(step).hex() for name, key in self._keys.items()},
            "group_key": self.group_key.hex(),
        }


def make_randomness(
    device: torch.device, noise_seed: int | None = None, *, step: int = 0, after: int = 0
) -> Randomness:
    """Return sources with fresh keys, or, for tests, derived from ``noise_seed``.

    Args:
        device: Where noise is drawn.
        noise_seed: None for privacy; a number makes every source predictable.
        step: The run's first step to draw for, counted from 0.
        after: Noisy steps that were taken before: a test seed gives other keys after them.
    """
    again = f" after {after}" if after else ""
    keys = {name: AgingKey(secret_key(name + again, noise_seed), step) for name in PURPOSES}
    group_key = secret_key("groups" + again, noise_seed)
    return Randomness(keys, device, group_key=group_key, reproducible=noise_seed is not None)


def restore_randomness(
    device: torch.device, state: Mapping[str, Any], noise_seed: int | None = None, *, rank: int = 0
) -> Randomness:
    """Return the sources as they were when ``Randomness.state`` was asked.

    Args:
        device: Where noise is drawn; of the kind it was.
        state: What it returned.
        noise_seed: As ``make_randomness``.
        rank: Whose dropout; the rest is the same for all.
    """
    step = int(state["step"])
    keys = {name: AgingKey(bytes.fromhex(state["keys"][name]), step) for name in PURPOSES}
    # one that has none is of a run whose draws know no groups
    group_key = bytes.fromhex(state["group_key"]) if "group_key" in state else bytes(KEY_BYTES)
    return Randomness(
        keys, device, group_key=group_key, reproducible=noise_seed is not None, rank=rank
    )
