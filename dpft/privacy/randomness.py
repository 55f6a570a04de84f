"""The secret sources of a private run, each with a key of its own that ages with the steps.

Sampling, noise, dropout and random views of records have nothing in common but the step they are
at. Keys come from the operating system; a test seed makes all of them predictable, and the run
then counts as not private.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch

from dpft.devices import has_float64
from dpft.privacy.cipher import KEY_BYTES
from dpft.privacy.dropout import DropoutStream
from dpft.privacy.keys import AgingKey, secret_key
from dpft.privacy.noise import NoiseStream
from dpft.privacy.sampling import SamplingStream
from dpft.privacy.views import ViewStream

logger = logging.getLogger(__name__)
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
        """Makes the sources of a rank's model on ``device`` from a key for each of ``PURPOSES``."""
        self.group_key = group_key
        self._keys = dict(keys)
        self.noise = NoiseStream(_where_noise_is_drawn(device), keys["noise"])
        self.sampling = SamplingStream(keys["sampling"])
        self.dropout = DropoutStream(device, keys["dropout"], rank=rank)
        self.views = ViewStream(keys["views"])
        self.reproducible = reproducible

    def forget(self, step: int) -> None:
        """Forgets what every step before ``step`` was drawn from."""
        for key in self._keys.values():
            key.forget(step)

    def state(self, step: int) -> dict[str, Any]:
        """Returns the keys of a step, ready for JSON, for ``restore_randomness``; secret.

        Nothing of an earlier step can be computed from them.
        """
        return {
            "step": step,
            "keys": {name: key.at(step).hex() for name, key in self._keys.items()},
            "group_key": self.group_key.hex(),
        }


def _where_noise_is_drawn(device: torch.device) -> torch.device:
    if has_float64(device):
        return device
    logger.warning(
        "noise is drawn and added on the CPU: a device of kind %s has no float64", device.type
    )
    return torch.device("cpu")


def make_randomness(
    device: torch.device, noise_seed: int | None = None, *, step: int = 0, after: int = 0
) -> Randomness:
    """Returns sources with fresh keys, or, for tests, derived from ``noise_seed``.

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
    device: torch.device,
    state: Mapping[str, Any],
    noise_seed: int | None = None,
    *,
    rank: int = 0,
) -> Randomness:
    """Returns the sources as they were when ``Randomness.state`` was asked.

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
