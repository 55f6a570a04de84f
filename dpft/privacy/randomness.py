"""The generators a private run draws from, each seeded with full operating-system entropy.

Sampling, noise and dropout have generators of their own. ``torch.manual_seed`` keeps 32 bits of
its seed on the CPU, few enough to try them all, so the CPU generator's whole state is filled
instead; a CUDA generator keeps 64 bits, so there two independently keyed streams are summed.
"""

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dpft.privacy.secure_noise import SecureNormalStream
from dpft.privacy.uniform import UniformStream

ENTROPY_BYTES = 32
PURPOSES = ("sampling", "noise", "dropout")

# torch's CPU generator state: a legacy Mersenne Twister record of 64-bit fields, in this order:
# seed, left, seeded, next, then 624 state words, then what normal_ cached.
_WORDS = 624
_LEFT, _NEXT, _STATE = 8, 16, 24


def fill_cpu_state(generator: torch.Generator, entropy: bytes) -> None:
    """Sets the whole 19,937-bit state of a CPU generator from ``entropy``.

    Args:
        generator: A generator on the CPU; whatever it held is overwritten.
        entropy: At least 16 bytes; stretched over the state by SeedSequence's hash.
    """
    sequence = np.random.SeedSequence(int.from_bytes(entropy, "little"), pool_size=8)
    words = sequence.generate_state(_WORDS, np.uint32).astype(np.uint64)
    state = torch.Generator().manual_seed(0).get_state().numpy().copy()
    state[_STATE : _STATE + 8 * _WORDS] = words.view(np.uint8)
    generator.set_state(torch.from_numpy(state))


class NormalStream:
    """Standard normal float32 tensors on one device, from generators with full entropy."""

    def __init__(self, device: torch.device, entropy: bytes) -> None:
        """Keys the generators: one on the CPU, two summed on an accelerator."""
        count = 1 if device.type == "cpu" else 2
        self._generators = [torch.Generator(device) for _ in range(count)]
        for index, generator in enumerate(self._generators):
            _key_generator(generator, entropy + bytes([index]))

    def draw(self, shape: torch.Size, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns a standard normal tensor of ``shape``."""
        draws = [
            torch.randn(shape, generator=g, device=g.device, dtype=dtype) for g in self._generators
        ]
        return draws[0] if len(draws) == 1 else (draws[0] + draws[1]).mul_(0.5**0.5)

    def state(self) -> list[str]:
        """Returns the generators' states in hexadecimal; secret."""
        return [written_state(generator.get_state()) for generator in self._generators]

    @classmethod
    def from_state(cls, device: torch.device, state: list[str]) -> Self:
        """Returns the stream as it was when ``state`` was taken."""
        stream = cls(device, bytes(ENTROPY_BYTES))
        for generator, written in zip(stream._generators, state, strict=True):
            generator.set_state(read_state(written))
        return stream


@dataclass
class Randomness:
    """The three secret sources of a private run."""

    sampling: UniformStream
    noise: NormalStream | SecureNormalStream
    dropout: bytes
    """Entropy of the dropout generator, used once, by ``private_dropout``."""
    reproducible: bool
    """True where a test seed made the streams, so that the run protects nothing."""
    dropout_states: Mapping[str, str] = field(default_factory=dict)
    """States to go on with in place of ``dropout``, by kind of device; of a run that broke off."""

    def states(self, device: torch.device | None) -> dict[str, Any]:
        """Returns what ``restore_randomness`` needs, ready for JSON; secret.

        Args:
            device: Where the model is, inside ``private_dropout``; None outside.
        """
        states = {
            "sampling": self.sampling.state(),
            "noise": self.noise.state(),
            "dropout_key": self.dropout.hex(),
        }
        if device is None:
            return states
        return states | {"dropout": _dropout_states(device)}


def make_randomness(
    device: torch.device,
    noise_seed: int | None = None,
    *,
    secure_noise: bool = False,
    after: int = 0,
) -> Randomness:
    """Returns sources with fresh entropy, or, for tests, derived from ``noise_seed``.

    Args:
        device: Where noise is drawn.
        noise_seed: None for privacy; a number makes every source predictable.
        secure_noise: Whether noise comes from a cryptographic stream, in float64.
        after: Noisy steps that were taken before: a test seed gives other streams after them.
    """
    again = f" after {after}" if after else ""
    keys = {purpose: secret_key(purpose + again, noise_seed) for purpose in PURPOSES}
    return Randomness(
        sampling=UniformStream(keys["sampling"]),
        noise=(SecureNormalStream if secure_noise else NormalStream)(device, keys["noise"]),
        dropout=keys["dropout"],
        reproducible=noise_seed is not None,
    )


def restore_randomness(
    device: torch.device,
    states: Mapping[str, Any],
    noise_seed: int | None = None,
    *,
    secure_noise: bool = False,
) -> Randomness:
    """Returns the sources as they were when ``Randomness.states`` was asked.

    Args:
        device: Where noise is drawn; of the kind it was.
        states: What it returned.
        noise_seed: As ``make_randomness``.
        secure_noise: As ``make_randomness``.
    """
    return Randomness(
        sampling=UniformStream.from_state(states["sampling"]),
        noise=(SecureNormalStream if secure_noise else NormalStream).from_state(
            device, states["noise"]
        ),
        dropout=bytes.fromhex(states["dropout_key"]),
        reproducible=noise_seed is not None,
        dropout_states=states.get("dropout", {}),
    )


@contextmanager
def private_dropout(randomness: Randomness, device: torch.device) -> Iterator[None]:
    """Keys torch's default generators, which dropout reads, and restores them on leaving.

    With a known mask the joint convexity that lets dropout out of the accounting would not hold
    (DESIGN trust rule 4).
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        for number, (kind, generator) in enumerate(_default_generators(device).items()):
            if kind in randomness.dropout_states:
                generator.set_state(read_state(randomness.dropout_states[kind]))
            else:
                _key_generator(generator, randomness.dropout + bytes([number]) * bool(number))
        yield


def _default_generators(device: torch.device) -> dict[str, torch.Generator]:
    """Returns torch's own generators, which dropout reads, by kind of device."""
    generators = {"cpu": torch.default_generator}
    if device.type == "cuda":
        generators["cuda"] = torch.cuda.default_generators[device.index or 0]
    return generators


def _dropout_states(device: torch.device) -> dict[str, str]:
    generators = _default_generators(device).items()
    return {kind: written_state(generator.get_state()) for kind, generator in generators}


def written_state(state: Tensor) -> str:
    """Returns a generator's state, a byte tensor, in hexadecimal."""
    return state.cpu().numpy().tobytes().hex()


def read_state(written: str) -> Tensor:
    """Returns the state that ``written_state`` wrote."""
    return torch.frombuffer(bytearray.fromhex(written), dtype=torch.uint8).clone()


def secret_key(purpose: str, noise_seed: int | None = None) -> bytes:
    """Returns fresh entropy, or what a test seed stands for; a key for each purpose.

    Args:
        purpose: What the key is for.
        noise_seed: None for privacy; a number makes the key predictable.
    """
    if noise_seed is None:
        return secrets.token_bytes(ENTROPY_BYTES)
    return hashlib.sha256(f"dpft {purpose} {noise_seed}".encode()).digest()


def _key_generator(generator: torch.Generator, entropy: bytes) -> None:
    if generator.device.type == "cpu":
        fill_cpu_state(generator, entropy)
    else:
        digest = hashlib.sha256(entropy).digest()
        generator.manual_seed(int.from_bytes(digest[:8], "little", signed=True))
