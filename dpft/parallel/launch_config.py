"""The ``launch`` section: whether ``dpft train`` starts the processes of a run itself."""

from dataclasses import dataclass

from dpft.errors import InputError

LAUNCHERS = ("none", "local")


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """How the processes of a run are started."""

    name: str = "none"
    """none: they are there already, or there is one; local: dpft starts them on this machine."""
    processes: int | None = None
    """How many to start; null: one for each CUDA device."""
    max_restarts: int = 0
    """How often all of them are started anew once one has ended, whatever the reason."""

    def __post_init__(self) -> None:
        if self.name not in LAUNCHERS:
            raise InputError(f"launch must be one of {', '.join(LAUNCHERS)}, got {self.name!r}.")
        if self.processes is not None and self.processes < 1:
            raise InputError(f"launch.processes must be at least 1, got {self.processes}.")
        if self.max_restarts < 0:
            raise InputError(f"launch.max_restarts must be at least 0, got {self.max_restarts}.")
