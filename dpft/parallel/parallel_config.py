"""The configuration sections ``parallel`` and ``launch``.

``parallel`` sets how many processes share a run, and how they connect. ``launch`` sets whether
``dpft train`` starts them itself. This module does not import torch.
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
    """Number of processes."""
    sharding: str | None = None
    """Description of the part of the model that each process held."""
    network: str | None = None
    """Description of the network between the processes."""


RECORDER = "TORCH_FR_BUFFER_SIZE"
"""Environment variable with the number of operations that torch's flight recorder keeps in memory,
each with its size and time."""
DEBUGGING = {
    RECORDER: ("", "0"),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": ("", "0"),
    "TORCH_DISTRIBUTED_DEBUG": ("", "OFF"),
    "TORCH_CPP_LOG_LEVEL": ("", "WARNING", "ERROR", "FATAL", "1", "2", "3"),
}
"""Environment variables with which torch can log the sizes of transfers between processes, each
with the values that log no sizes."""
SHARED = ("train", "eval", "generate")
"""Subcommands that support several processes of torchrun."""
WHOLE: Final = "whole"
SHARDED: Final = "sharded"
HOW_TO_START = (
    "torchrun --nproc_per_node=2 -m dpft train ... parallel=ddp, or dpft train ... launch=local"
    " launch.processes=2"
)


class ParallelConfig(Section):
    """How a run is distributed over processes."""

    name: Literal["none", "ddp", "fsdp"] = "none"
    """One process (none), replicas of the whole model (ddp), or shards of the model (fsdp). With
    ddp and fsdp, each process takes a share of each batch."""
    cpu_offload: bool = False
    """Use CPU memory to save accelerator memory, which is slower. With ddp, sums of gradients are
    exchanged through CPU memory (gloo), without NCCL. With fsdp, shards and the optimizer state are
    stored in CPU memory."""
    shard_size: AtLeastOne | None = None
    """Number of shards of the model, for fsdp. null: one shard per process. If there are fewer
    shards than processes, several replicas of the model are sharded."""
    accumulate: Literal["whole", "sharded"] = WHOLE
    """Whether each process keeps the whole sum of a step (whole) or only its shard (sharded),
    for fsdp. With sharded, the sum of each micro-batch is sent to the shards immediately, which
    sends more and needs less memory."""
    world_size: AtLeastOne | None = None
    """Number of processes. null: the number that torchrun starts; for a plan, 1, or 2 with ddp or
    fsdp. A run rejects a number that differs from the actual one."""
    timeout_minutes: Positive = 30
    """Minutes that a process waits for another process before it stops with an error. The value
    must exceed the time that the first process needs to write a checkpoint."""

    @property
    def planned_processes(self) -> int:
        """The number of processes that a plan assumes."""
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
    """Environment variables of a process that torchrun started."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    restarts: int = 0
    """Number of times that torchrun has restarted all processes."""

    @property
    def on_one_node(self) -> bool:
        """Whether all processes are on one machine."""
        return self.local_size == self.size


def world() -> World | None:
    """Return the variables that torchrun or another launcher set; None if they are not set.

    Raises:
        InputError: A variable is missing or is not a number.
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
    """Reject a number of processes that the number of shards does not divide.

    Raises:
        InputError: The processes would not form whole replicas.
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
    """Reject several processes for a subcommand that runs in one process.

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
        InputError: ``parallel=ddp`` or ``fsdp`` without processes, or several processes with
            ``parallel=none``, each of which would train and spend epsilon separately. Also if the
            number of processes does not match the configuration or the shards, or if torch would
            log their traffic.
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
    # Such logs reveal the size of a batch, which is private.
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
    """Return a clause that names what restarts this process, or None if no restarts are known."""
    max_restarts = _number("TORCHELASTIC_MAX_RESTARTS", 0)
    slurm_restarts = _number("SLURM_RESTART_COUNT", 0)
    if max_restarts:
        return f"torchrun restarts the processes up to {max_restarts} times if one fails"
    return "Slurm has restarted this job" if slurm_restarts else None


def was_restarted() -> bool:
    """Return whether torchrun or Slurm has restarted this process."""
    return any(_number(f"{name}_RESTART_COUNT", 0) for name in ("TORCHELASTIC", "SLURM"))


def check_restarts(*, resumes: bool, advice: str) -> None:
    """Reject restarts that would begin a second run.

    Args:
        resumes: Whether each start of this command resumes the same run.
        advice: How to make restarts resume the run, for the message.

    Raises:
        InputError: torchrun or Slurm restarts this process, and the command does not resume.
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
    """local: dpft starts the processes on this machine; none: dpft starts no further processes."""
    processes: AtLeastOne | None = None
    """Number of processes to start; null: one for each accelerator."""
    max_restarts: Count = 0
    """Maximum number of times that all processes are restarted after one has ended, for
    any reason."""


LOOPBACK_OF_ONE_MACHINE = "loopback of one machine"
NOT_SHARDED = "none"
ASSUMED_TRUSTED = "a network between machines, assumed trusted or encrypted"


def described(size: int, *, on_one_node: bool) -> dict[str, Any]:
    """Return the number of processes, what each process holds, and the network between them.

    The result states that each process holds the whole model. A run with shards must replace this
    with ``sharding``.

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
    """Return a description of what each process holds of a sharded model.

    >>> sharding(2, 2)
    'fsdp, 2 shards x 2 replicas, gradient sums not sharded'
    """
    copies = f" x {replicas} replicas" if replicas > 1 else ""
    kept = "gradient sums sharded" if accumulates_shards else "gradient sums not sharded"
    where = ", shards in CPU memory" if offload else ""
    return f"fsdp, {shards} shards{copies}, {kept}{where}"
