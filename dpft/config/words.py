"""The words of a command line that set keys, ``key=value``."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a job was started with, as ``key=value``."""

    job: tuple[str, ...]
    """Overrides of the job; in a sweep, its parameters among them, whoever set those."""
    typed: tuple[str, ...]
    """Words of the command line itself."""

    @property
    def keys(self) -> list[str]:
        """The keys that the job's overrides set."""
        return list(given_overrides(self.job))

    def were_typed(self, key: str) -> bool:
        """Returns whether a word of the command line itself sets a key."""
        return key in given_overrides(self.typed)


def given_overrides(overrides: Sequence[str]) -> dict[str, str]:
    """Returns the keys that the overrides set, and the values as they were written."""
    return dict(override.lstrip("+~").partition("=")[::2] for override in overrides)
