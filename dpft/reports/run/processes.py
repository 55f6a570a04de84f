"""What a report says of the processes that took a run's steps, and of what passed between them."""

from collections.abc import Iterable, Mapping
from typing import Any

from dpft.parallel.described import LOOPBACK_OF_ONE_MACHINE, NOT_SHARDED

NETWORK_ASSUMED = (
    "Assumed: a trusted or encrypted network between the run's machines. Keys and sums without"
    " noise crossed it, and gloo and NCCL neither encrypt nor authenticate."
)


def process_record(sessions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what privacy.json says of a run's processes; nothing where it had one all along.

    Args:
        sessions: Each process group that took steps, as ``Ranks.described`` has it.
    """
    distinct: list[Mapping[str, Any]] = []
    for session in sessions:
        if session not in distinct:
            distinct.append(session)
    return {"processes": distinct} if any(s["world_size"] > 1 for s in distinct) else {}


def process_rows(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the rows of the report's table."""
    return [("processes", _words(session)) for session in privacy.get("processes", [])]


def network_sentences(privacy: Mapping[str, Any]) -> list[str]:
    """Returns what epsilon rests on beside the arithmetic, where machines spoke to each other."""
    networks = [session.get("network") for session in privacy.get("processes", [])]
    return [] if set(networks) <= {None, LOOPBACK_OF_ONE_MACHINE} else [NETWORK_ASSUMED]


def _words(session: Mapping[str, Any]) -> str:
    if session["world_size"] == 1:
        return "1"
    held = "the whole model" if session["sharding"] == NOT_SHARDED else "a shard of the model"
    return (
        f"{session['world_size']}, each with {held} (sharding: {session['sharding']});"
        f" between them: {session['network']}"
    )
