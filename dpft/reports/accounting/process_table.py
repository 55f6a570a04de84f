"""What each process of a planned run holds and sends, as ``dpft plan`` prints it."""

from collections.abc import Mapping
from typing import Any

GIGABYTE = 10**9
PHASES = {
    "proof": "the proof of the first micro-batch",
    "accumulate": "a micro-batch",
    "finish": "the sum of a step",
    "optimizer": "the optimizer's step",
}


def process_lines(record: Mapping[str, Any]) -> list[str]:
    r"""Returns memory by part and bytes sent; nothing where a record has none.

    >>> record = {
    ...     "processes": {"strategy": "fsdp", "world_size": 8, "shard_size": 4,
    ...                   "accumulate": "whole", "engine": "two_pass"},
    ...     "memory_per_rank_bytes": {"weights": 2 * 10**9, "proof": 0, "total": 2 * 10**9},
    ...     "memory_peak_phase": "finish", "bytes_sent_per_step": 10**9,
    ...     "device_memory_bytes": 80 * 10**9, "largest_micro_batch": 32,
    ... }  # fmt: skip
    >>> print("\n".join(process_lines(record)[1:]))
    8 processes, fsdp: 2 replicas in 4 shards each, accumulate=whole
    each at most, by its shapes, in the sum of a step:
    weights               2.00 GB
    total                 2.00 GB
    sent in a step        1.00 GB by each
    largest micro-batch   32 records in 80.0 GB

    Args:
        record: What ``dpft plan output=json`` prints.
    """
    if "processes" not in record:
        return []
    parts = record["memory_per_rank_bytes"]
    return [
        "",
        _spread(record["processes"]),
        f"each at most, by its shapes, in {PHASES[record['memory_peak_phase']]}:",
        *(_line(name, f"{size / GIGABYTE:.2f} GB") for name, size in parts.items() if size),
        _line("sent in a step", f"{record['bytes_sent_per_step'] / GIGABYTE:.2f} GB by each"),
        *_largest(record),
    ]


def _spread(processes: Mapping[str, Any]) -> str:
    """Returns how a run is spread over processes."""
    strategy, count = processes["strategy"], processes["world_size"]
    if count == 1:
        return "1 process"
    if strategy != "fsdp":
        return f"{count} processes, {strategy}: {count} replicas of the whole model"
    shards = processes["shard_size"]
    replicas = count // shards
    there = f"{replicas} replicas in {shards} shards each" if replicas > 1 else f"{shards} shards"
    return f"{count} processes, {strategy}: {there}, accumulate={processes['accumulate']}"


def _largest(record: Mapping[str, Any]) -> list[str]:
    largest, room = record["largest_micro_batch"], record["device_memory_bytes"]
    if largest is None:
        return []
    return [_line("largest micro-batch", f"{largest} records in {room / GIGABYTE:.1f} GB")]


def _line(name: str, value: str) -> str:
    return f"{name:<22}{value}"
