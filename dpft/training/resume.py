"""Where a run broke off, and what of it must be the same for its steps to be taken once more.

A step that stands in the ledger has released its noisy gradient. Taking it again with the same
noise is safe where the sum comes out bit for bit as it was, and nowhere else: so the environment
that bits depend on is written down, and a replay in another one draws new noise and pays for it
(docs/design.md, rule 9).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from dpft import __version__
from dpft.devices import device_name
from dpft.errors import InputError, StateError
from dpft.files import CHECKPOINTS
from dpft.parallel.ranks import ALONE, Ranks
from dpft.parallel.shards import ShardedModel
from dpft.privacy.ledger import LedgerRecord
from dpft.privacy.noise import NOISE_SOURCE
from dpft.privacy.plan import PrivacyPlan, read_plan
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.privacy.replay_log import read_run_ledger
from dpft.privacy.sampling import SAMPLING_SOURCE
from dpft.training.checkpoint import Checkpoint, checkpoints, read_checkpoint
from dpft.training.loop import TrainingSet

version = cache(metadata.version)
"""Of an installed package, read once: its metadata are a file."""
PACKAGES = ("numpy", "peft", "transformers")
"""Packages besides torch that compute a part of a sum."""


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """Where a run that broke off goes on from; also where one that has ended stands."""

    checkpoint: Checkpoint
    """The newest one."""
    ledger: LedgerRecord | None
    """None for a run without privacy."""

    @property
    def has_ended(self) -> bool:
        """Whether its last step is taken and its secrets are gone."""
        if self.ledger is not None:
            return self.ledger.closed
        return not self.checkpoint.has_keys

    @property
    def run_id(self) -> str | None:
        """What names a private run in its ledger."""
        return self.checkpoint.run.run_id

    def plan(self) -> PrivacyPlan:
        """Returns the plan that the run was bound to.

        Raises:
            StateError: The checkpoint's is not that of the ledger, or none.
        """
        try:
            plan = read_plan(self.checkpoint.run.plan or {})
        except ValueError:
            plan = None
        bound = None if self.ledger is None else self.ledger.plan
        if not isinstance(plan, PrivacyPlan) or bound not in (None, plan):
            raise StateError(
                f"{self.checkpoint.path} must be bound to the plan in the first line of the"
                " ledger, got another; one of the two was edited. Put it back as it was."
            )
        return plan


def find_resume_point(folder: Path) -> ResumePoint:
    """Returns where the run in a folder stands.

    Raises:
        InputError: It has no checkpoint, so no step was taken; or it has an earlier version's
            noise or ledger.
        StateError: Its newest checkpoint or its ledger is damaged, or checkpoints, journal and
            ledger do not agree.
    """
    found = checkpoints(folder / CHECKPOINTS)
    if not found:
        raise InputError(
            f"resume must be the folder of a run that has taken a step, got {str(folder)!r}, which"
            " has no checkpoint; start it anew with hydra.run.dir=DIR."
        )
    checkpoint = read_checkpoint(found[-1])
    _check_noise(checkpoint)
    return ResumePoint(checkpoint=checkpoint, ledger=read_run_ledger(folder))


def environment(
    training_set: TrainingSet,
    *,
    engine: str,
    memory_mb: int,
    settings: Sequence[Any] = (),
    ranks: Ranks = ALONE,
    shards: ShardedModel | None = None,
    fused_head: bool = False,
) -> dict[str, Any]:
    """Returns what the bits of a step's sum depend on, ready for JSON.

    Args:
        training_set: How losses are computed.
        engine: Name of the clipping engine.
        memory_mb: What the clipper may spend.
        settings: What moves the weights that later sums are of: method, optimizer, learning rate.
        ranks: The processes whose sums are added up, in their order.
        shards: The model, where each of them has a shard of it.
        fused_head: Whether losses are taken of its head by chunks.
    """
    device = training_set.device
    sharding = {} if shards is None else {"sharding": shards.sharding}
    return {
        "device": f"{device.type} {device_name(device)}".strip(),
        "compile": training_set.compile,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "dpft": __version__,
        "engine": engine,
        "fused_head": fused_head,
        "memory_mb": memory_mb,
        "micro_batch_size": training_set.micro_batch_size,
        "micro_batch_tokens": training_set.micro_batch_tokens,
        "noise": NOISE_SOURCE,
        "padded_to": training_set.layout.pad_to_multiple_of,
        "packages": {name: version(name) for name in PACKAGES},
        "precision": training_set.precision,
        "processes": ranks.described | sharding,
        "sampling": SAMPLING_SOURCE,
        "settings": hashlib.sha256(repr(settings).encode()).hexdigest(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


PROMISES = {
    "reproducible": "privacy.noise_seed",
    "self_check": "privacy.self_check",
    "show_diagnostics": "privacy.show_diagnostics",
}
"""Statements of a report that rest on a configuration key alone, not on the plan, by that key."""


def promises(privacy: DifferentialPrivacy) -> dict[str, bool]:
    """Returns the statements of ``PROMISES`` as the configuration makes them, ready for JSON."""
    return {
        "reproducible": privacy.noise_seed is not None,
        "self_check": privacy.self_check,
        "show_diagnostics": privacy.show_diagnostics,
    }


def check_promises(resume_point: ResumePoint, privacy: DifferentialPrivacy) -> None:
    """Refuses a run whose configuration was edited since it began, in a key of ``PROMISES``.

    Raises:
        InputError: A noise seed, shown losses or a self-check were added or removed.
    """
    began, now = resume_point.checkpoint.run.promises or {}, promises(privacy)
    changed = [PROMISES[name] for name, value in now.items() if began.get(name) != value]
    if changed:
        raise InputError(
            f"resume must go on as the run began, got another {' and another '.join(changed)}; put"
            " its config.yaml back as it was."
        )


def frozen_digests(resume_point: ResumePoint) -> Mapping[str, str]:
    """Returns the digests, before the first step, of what is released and nothing moves, by name.

    Raises:
        InputError: An earlier version wrote the checkpoint, without them.
    """
    frozen = resume_point.checkpoint.run.frozen
    if frozen is None:
        raise InputError(
            "resume must go on with a run that noted what its frozen weights were before the first"
            " step, got one begun by an earlier version; go on with that version, or begin it anew"
            " with hydra.run.dir=DIR."
        )
    return frozen


def _check_noise(checkpoint: Checkpoint) -> None:
    """Refuses a private run that was begun with noise that others can compute."""
    environment = checkpoint.run.environment
    if environment is not None and "noise" not in environment:
        raise InputError(
            "resume must go on with a run of this version's noise, got one begun by an earlier"
            " version, whose noise can be computed from what it releases (see SECURITY.md); begin"
            " it anew with hydra.run.dir=DIR."
        )
