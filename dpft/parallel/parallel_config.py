"""The configuration sections ``parallel`` and ``launch``.

``parallel``: how many processes share a run, and how they find each other. ``launch``: whether
``dpft train`` starts them itself. Nothing here imports torch.
"""

import os
from dataclasses import dataclass
from typing import Any, Final, Literal

from dpft.config.section import Section
from dpft.errors import InputError
from dpft.strict_model import AtLeastOne, Count, Positive, StrictModel


class Process(StrictModel):
    """A group of processes that took steps of the run."""

    world_size: AtLeastOne
    """How many processes."""
    sharding: str | None = None
    """What each held of the model, in words."""
    network: str | None = None
    """What was between them, in words."""


RECORDER = "TORCH_FR_BUFFER_SIZE"
"""How many operations torch keeps in memory, each with its size and time."""
DEBUGGING = {
    RECORDER: ("", "0"),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": ("", "0"),
    "TORCH_DISTRIBUTED_DEBUG": ("", "OFF"),
    "TORCH_CPP_LOG_LEVEL": ("", "WARNING", "ERROR", "FATAL", "1", "2", "3"),
}
"""Variables by which torch shows the sizes of what passes between processes, and the values by
which it does not."""
SHARED = ("train", "eval", "generate")
"""Subcommands that the processes of torchrun can share."""
WHOLE: Final = "whole"
SHARDED: Final = "sharded"
HOW_TO_START = (
    "torchrun --nproc_per_node=2 -m dpft train ... parallel=ddp, or dpft train ... launch=local"
    " launch.processes=2"
)


class ParallelConfig(Section):
    """How a run is spread over processes."""

    name: Literal["none", "ddp", "fsdp"] = "none"
    """none: one process; ddp: replicas, each with the whole model and a share of each batch; fsdp:
    each with a shard of the model and a share of each batch."""
    cpu_offload: bool = False
    """Where the model is on an accelerator: with ddp, sums of gradients pass between processes
    through the processor's memory (gloo), without NCCL; with fsdp, shards and the optimizer lie
    there. Slower, and spares the accelerator's memory."""
    shard_size: AtLeastOne | None = None
    """Of fsdp: into how many shards the model is cut; None: one for each process. Fewer than there
    are processes make as many replicas as fit, each in shards."""
    accumulate: Literal["whole", "sharded"] = WHOLE
    """Of fsdp: whole, each process keeps a step's whole sum until it ends; sharded, each
    micro-batch's sum goes to the shards at once, which sends more and keeps less."""
    world_size: AtLeastOne | None = None
    """How many processes; None: as many as torchrun starts, and of a plan one, or two with ddp or
    fsdp. A run refuses another number than there are."""
    timeout_minutes: Positive = 30
    """How long a process waits for another one before it gives up; longer than the first one
    needs for a checkpoint."""

    @property
    def planned_processes(self) -> int:
        """How many processes a plan is of."""
        return self.world_size or (1 if self.name == "none" else 2)

    @property
    def shards_model(self) -> bool:
        """Whether each process holds a part of the model."""
        return self.name == "fsdp"

    def _check_fields(self) -> None:
        if self.name == "none" and self.world_size not in (None, 1):
            raise InputError(
                f"parallel=none runs in one process, got parallel.world_size={self.world_size}.",
                key="parallel.world_size",
                value=self.world_size,
                hint="parallel=ddp",
            )
        if self.name != "fsdp" and (self.shard_size is not None or self.accumulate != WHOLE):
            raise InputError(
                "parallel.shard_size and parallel.accumulate have an effect only with"
                f" parallel=fsdp, got parallel={self.name}. Remove them, or change parallel.",
                key="parallel.shard_size",
                hint="parallel=fsdp",
            )


@dataclass(frozen=True, kw_only=True)
class World:
    """What torchrun tells a process of the processes it started."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    restarts: int = 0
    """How often torchrun has started all of them anew."""

    @property
    def on_one_node(self) -> bool:
        """Whether all of them are on one machine."""
        return self.local_size == self.size


def world() -> World | None:
    """Return what torchrun, or whoever sets its variables, says; None where nobody does.

    Raises:
        InputError: A variable is missing, or is no number.
    """
    if not {"RANK", "WORLD_SIZE"} & set(os.environ):
        return None
    size = _number("WORLD_SIZE")
    return World(
        rank=_number("RANK"),
        size=size,
        local_rank=_number("LOCAL_RANK", _number("RANK")),
        local_size=_number("LOCAL_WORLD_SIZE", size),
        restarts=_number("TORCHELASTIC_RESTART_COUNT", 0),
    )


def check_shards(config: ParallelConfig, processes: int) -> None:
    """Reject a number of processes that shards do not fit.

    Raises:
        InputError: They would not make whole replicas.
    """
    size = config.shard_size
    if size is not None and processes % size:
        raise InputError(
            f"parallel.shard_size must divide the number of processes, got {size} for {processes}"
            " processes. Choose a divisor, or null for one shard in each process.",
            key="parallel.shard_size",
            value=size,
            hint="parallel.shard_size=null",
        )


def refuse_several(name: str) -> None:
    """Reject several processes of a subcommand that is for one process.

    Raises:
        InputError: torchrun has started several processes.
    """
    launched = world()
    if launched is not None and launched.size > 1 and name not in SHARED:
        raise InputError(
            f"dpft {name} runs in one process, got {launched.size}. Run it without torchrun.",
            key="WORLD_SIZE",
            value=launched.size,
        )


def check_start(config: ParallelConfig) -> World | None:
    """Return the world of this process, after checking that it agrees with the configuration.

    Raises:
        InputError: ``parallel=ddp`` without processes, or several processes without it, each of
            which would train, and spend, on its own; a number of processes that shards do not fit;
            or torch is to show what passes between them.
    """
    launched = world()
    if config.name == "none":
        if launched is not None and launched.size > 1:
            raise InputError(
                f"parallel=none runs in one process, got {launched.size}, each of which would"
                " spend its own epsilon. Use parallel=ddp, or start one process.",
                key="parallel",
                value="none",
                hint="parallel=ddp",
            )
        return None
    if launched is None:
        raise InputError(
            f"parallel={config.name} needs the processes of torchrun, got none. Start them with"
            f" {HOW_TO_START}.",
            key="parallel",
            value=config.name,
        )
    if config.world_size not in (None, launched.size):
        raise InputError(
            f"parallel.world_size must be the number of processes, got {config.world_size} for"
            f" {launched.size} processes. Only dpft plan needs this key.",
            key="parallel.world_size",
            value=config.world_size,
            hint="parallel.world_size=null",
        )
    check_shards(config, launched.size)
    # A batch's size, which is private, can be read from such logs.
    for name, harmless in DEBUGGING.items():
        value = os.environ.get(name, "")
        if value.upper() not in harmless:
            raise InputError(
                f"{name} must not be set if processes share a run, got {value}: torch would log"
                " how many records each step drew.",
                key=name,
                value=value,
                hint=f"unset {name}",
            )
    return launched


def _number(name: str, otherwise: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and otherwise is not None:
        return otherwise
    if text is None or not text.isdecimal():
        raise InputError(
            f"{name} must be a number in the environment, as torchrun sets it, got {text!r}. Start"
            f" the processes with {HOW_TO_START}.",
            key=name,
            value=text,
        )
    return int(text)


def restarts() -> str | None:
    """Return a clause on what restarts this process, or None if nothing is known to restart it."""
    max_restarts = _number("TORCHELASTIC_MAX_RESTARTS", 0)
    slurm_restarts = _number("SLURM_RESTART_COUNT", 0)
    if max_restarts:
        return f"torchrun restarts the processes up to {max_restarts} times if one fails"
    return "Slurm has restarted this job" if slurm_restarts else None


def was_restarted() -> bool:
    """Return whether torchrun or Slurm has started this process again."""
    return any(_number(f"{name}_RESTART_COUNT", 0) for name in ("TORCHELASTIC", "SLURM"))


def check_restarts(*, resumes: bool, advice: str) -> None:
    """Reject restarts that would begin a second run.

    Args:
        resumes: Whether each start of this command resumes the same run.
        advice: How to achieve that.

    Raises:
        InputError: torchrun or Slurm restarts this process, and it does not resume.
    """
    why = None if resumes else restarts()
    if why is not None:
        raise InputError(
            f"{why}, and each restart would begin a second run with a separate epsilon; {advice}.",
            key="resume",
        )


class LaunchConfig(Section):
    """How the processes of a run are started."""

    name: Literal["none", "local"] = "none"
    """none: they are there already, or there is one; local: dpft starts them on this machine."""
    processes: AtLeastOne | None = None
    """How many to start; null: one for each CUDA device."""
    max_restarts: Count = 0
    """How often all of them are started anew once one has ended, whatever the reason."""


LOOPBACK_OF_ONE_MACHINE = "loopback of one machine"
NOT_SHARDED = "none"
ASSUMED_TRUSTED = "a network between machines, assumed trusted or encrypted"


def described(size: int, *, on_one_node: bool) -> dict[str, Any]:
    """Return how many processes there are, what each holds and what is between them.

    That each holds the whole model is for a run with shards to correct: ``sharding``.

    >>> described(1, on_one_node=True)
    {'world_size': 1}
    """
    if size == 1:
        return {"world_size": 1}
    network = LOOPBACK_OF_ONE_MACHINE if on_one_node else ASSUMED_TRUSTED
    return {"world_size": size, "sharding": NOT_SHARDED, "network": network}


def sharding(
    shards: int, replicas: int, *, accumulates_shards: bool = False, offload: bool = False
) -> str:
    """Return what each process holds of a model that is cut into shards.

    >>> sharding(2, 2)
    'fsdp, 2 shards x 2 replicas, sums kept whole'
    """
    copies = f" x {replicas} replicas" if replicas > 1 else ""
    kept = "sums kept in shards" if accumulates_shards else "sums kept whole"
    where = ", shards in the processor's memory" if offload else ""
    return f"fsdp, {shards} shards{copies}, {kept}{where}"
