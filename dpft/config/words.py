"""The words of a command line that set keys, ``key=value``."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from dpft.config.keys import key_of


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
    return {key_of(override): override.partition("=")[2] for override in overrides}


def given_text(overrides: Sequence[str], key: str) -> str | None:
    """Returns the text that the overrides set a key to, without its quotes; None: none, or null.

    A word that Hydra cannot read is left to it to refuse.
    """
    written = given_overrides(overrides).get(key)
    if not written or written == "null":
        return None
    try:
        override = _parser().parse_override(f"{key}={written}")
    except HydraException:
        return written
    return written if override.is_sweep_override() else str(override.value())


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()
