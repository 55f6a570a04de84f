"""The words in which reports and journals speak of a run's processes; torch-free."""

from typing import Any

LOOPBACK_OF_ONE_MACHINE = "loopback of one machine"
ASSUMED_TRUSTED = "a network between machines, assumed trusted or encrypted"


def described(size: int, *, on_one_node: bool) -> dict[str, Any]:
    """Returns how many processes there are, what each holds and what is between them.

    >>> described(1, on_one_node=True)
    {'world_size': 1}
    """
    if size == 1:
        return {"world_size": 1}
    network = LOOPBACK_OF_ONE_MACHINE if on_one_node else ASSUMED_TRUSTED
    return {"world_size": size, "sharding": "none", "network": network}
