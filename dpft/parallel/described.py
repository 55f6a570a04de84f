"""The words in which reports and journals speak of a run's processes; torch-free."""

from typing import Any

LOOPBACK_OF_ONE_MACHINE = "loopback of one machine"
NOT_SHARDED = "none"
ASSUMED_TRUSTED = "a network between machines, assumed trusted or encrypted"


def described(size: int, *, on_one_node: bool) -> dict[str, Any]:
    """Returns how many processes there are, what each holds and what is between them.

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
    """Returns what each process holds of a model that is cut into shards.

    >>> sharding(2, 2)
    'fsdp, 2 shards x 2 replicas, sums kept whole'

    Args:
        shards: Into how many the model is cut.
        replicas: How many times there is the whole model.
        accumulates_shards: Whether a step's sums are cut as the model is.
        offload: Whether shards lie in the processor's memory.
    """
    copies = f" x {replicas} replicas" if replicas > 1 else ""
    kept = "sums kept in shards" if accumulates_shards else "sums kept whole"
    where = ", shards in the processor's memory" if offload else ""
    return f"fsdp, {shards} shards{copies}, {kept}{where}"
