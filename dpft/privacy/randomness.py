"""The secret random streams of a run: noise, sampling, dropout and views of records.

The streams share only the current step. Each stream has its own key, which changes with each step.
Keys come from the operating system. A test seed makes all keys predictable, and the run then counts
as not private.

Dropout needs no accounting only if its masks are independent and secret. If a record joins a batch,
the masks of other records change. An attacker who knew the masks could therefore see far more than
the change of one record's gradient (docs/dev/design.md, rule 4). torch's CPU generator, MT19937, is
linear: 20,000 of its bits determine all others, and a step draws millions.

Masks therefore come from ChaCha20, with a separate key for each step. The place in the keystream at
which a mask begins is a number from torch's generator. Code that restores the state of this
generator to repeat a forward pass (gradient checkpointing, the clipper) therefore gets the same
masks. torch's generators also get a new key at each step. Masks inside fused kernels (attention,
accelerators, compiled code) and inside ``torch.func`` transforms still come from torch.
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
    "dropout masks from ChaCha20; masks inside fused kernels and other random numbers of the model"
    " from torch's generators, with a new key for each step that is derived from the key of the"
    " operating system"
)
_LEVELS = 2**16
"""Dropout rates are rounded to a multiple of 1/_LEVELS."""

# The state of torch's CPU generator is a legacy Mersenne Twister record of 64-bit fields, in this
# order: seed, left, seeded, next, 624 state words, and the value that normal_ cached.
_WORDS = 624
_STATE = 24
_SEED_BYTES = 8


class DropoutStream:
    """Secret source of a run's dropout masks."""

    def __init__(self, device: torch.device, key: AgingKey, *, rank: int = 0) -> None:
        """Draw from ``key``, which changes with each step, for a rank's model on ``device``."""
        self.device, self._key, self._rank = device, key, rank
        self._step = key.step
        self._torch_dropout = F.dropout

    def begin_step(self, step: int) -> None:
        """Switch to the masks of ``step`` and set new keys for torch's default generators.

        The generators of each rank have a separate key, so the masks of different ranks come from
        different places in the keystream.
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
        """Do the same as ``torch.nn.functional.dropout``, with a secret mask."""
        if not training or not 0 < p < 1 or _has_own_masks(input):
            return self._torch_dropout(input, p, training, inplace)
        scaled = self._kept(input, p).to(input.dtype).div_(1 - p)
        return input.mul_(scaled) if inplace else input * scaled

    def _kept(self, like: Tensor, p: float) -> Tensor:
        """Return a secret mask, bool, of the shape of ``like``; True keeps a value."""
        place = int(torch.empty((), dtype=torch.int64).random_())
        address = Address(Purpose.DROPOUT, self._step, place >> 32 & 0xFFFFFF, place & 0xFFFFFFFF)
        bits = keystream(self._key.at(self._step), address, 2 * like.numel())
        numbers = np.frombuffer(bits, dtype=np.uint16).reshape(like.shape)
        return torch.from_numpy(numbers >= round(p * _LEVELS))


@contextmanager
def private_dropout(stream: DropoutStream) -> Iterator[DropoutStream]:
    """Let every dropout layer draw from ``stream``, and restore torch's generators at the end.

    Layers look up ``torch.nn.functional.dropout`` when they are called. This function is therefore
    replaced in this process until the block ends.
    """
    with random_states_kept([stream.device]), _replaced(stream.dropout):
        yield stream


def fill_cpu_state(generator: torch.Generator, bits: bytes) -> None:
    """Set the whole 19,937-bit state of a CPU generator.

    Args:
        generator: A generator on the CPU; its state is overwritten.
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
    # This check comes first, because a compiler that traces this code cannot trace the next line.
    if torch.compiler.is_compiling() or input.device.type != "cpu":
        return True
    return torch._C._functorch.peek_interpreter_stack() is not None


_LOW = 2**32


class ViewStream:
    """Random bytes for each record at each step, from ChaCha20."""

    def __init__(self, key: AgingKey) -> None:
        """Draw from ``key``, which changes with each step."""
        self._key = key

    def bits(self, step: int, record: int, size: int) -> bytes:
        """Return ``size`` bytes for the view of a record, the same in every call.

        Args:
            step: Step of the run, counted from 0, whose key is not forgotten.
            record: Place of the record among the rows.
            size: Number of bytes.
        """
        high, low = divmod(record, _LOW)
        address = Address(Purpose.VIEWS, step, parameter=high, block=low)
        return bytes(keystream(self._key.at(step), address, size))


PURPOSES = ("sampling", "noise", "dropout", "views")


class Randomness:
    """Secret random sources of a private run.

    Attributes:
        noise: Source of the noise on sums of gradients.
        sampling: Source of the draws that decide which units join a step.
        dropout: Source of dropout masks.
        views: Source of random views of records.
        group_key: Key that assigns units to groups, the same for all steps; secret.
        reproducible: Whether a test seed made the keys, so that the run protects nothing.
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
        """Create the sources for a rank's model on ``device`` from a key for each purpose."""
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
        """Forget the keys of every step before ``step``."""
        for key in self._keys.values():
            key.forget(step)

    def state(self, step: int) -> dict[str, Any]:
        """Return the keys of a step as JSON values, for ``restore_randomness``; secret.

        The keys of earlier steps cannot be computed from them.
        """
        return {
            "step": step,
            "keys": {name: key.at(step).hex() for name, key in self._keys.items()},
            "group_key": self.group_key.hex(),
        }


def make_randomness(
    device: torch.device, noise_seed: int | None = None, *, step: int = 0, after: int = 0
) -> Randomness:
    """Return sources with fresh keys or, for tests, keys derived from ``noise_seed``.

    Args:
        device: Device on which noise is drawn.
        noise_seed: None for privacy; a number makes every source predictable.
        step: First step of the run to draw for, counted from 0.
        after: Number of noisy steps taken before. A test seed gives different keys for each number.
    """
    again = f" after {after}" if after else ""
    keys = {name: AgingKey(secret_key(name + again, noise_seed), step) for name in PURPOSES}
    group_key = secret_key("groups" + again, noise_seed)
    return Randomness(keys, device, group_key=group_key, reproducible=noise_seed is not None)


def restore_randomness(
    device: torch.device, state: Mapping[str, Any], noise_seed: int | None = None, *, rank: int = 0
) -> Randomness:
    """Restore the random sources from a value of ``Randomness.state``.

    Args:
        device: Device on which noise is drawn, of the same kind as before.
        state: Value that ``Randomness.state`` returned.
        noise_seed: As for ``make_randomness``.
        rank: Rank of the dropout source; the other sources are the same for all ranks.
    """
    step = int(state["step"])
    keys = {name: AgingKey(bytes.fromhex(state["keys"][name]), step) for name in PURPOSES}
    # A state without a group key belongs to a run whose draws have no groups.
    group_key = bytes.fromhex(state["group_key"]) if "group_key" in state else bytes(KEY_BYTES)
    return Randomness(
        keys, device, group_key=group_key, reproducible=noise_seed is not None, rank=rank
    )
