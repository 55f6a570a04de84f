"""Engines: ways to the same clipped sum, differing in time and memory only."""

from dpft.errors import InputError
from dpft.privacy.clipping.engines.base import Engine
from dpft.privacy.clipping.engines.book_keeping import BookKeepingEngine
from dpft.privacy.clipping.engines.loop import LoopEngine

ENGINES: dict[str, type[Engine]] = {
    "book_keeping": BookKeepingEngine,
    "loop": LoopEngine,
}


def engine_class(name: str) -> type[Engine]:
    """Returns the engine called ``name``; ``auto`` is book-keeping, the one-backward engine.

    Raises:
        InputError: No such engine.
    """
    if name == "auto":
        return BookKeepingEngine
    if name not in ENGINES:
        raise InputError(f"privacy.engine must be one of auto, {', '.join(ENGINES)}, got {name!r}.")
    return ENGINES[name]
