"""Reads back what trackers wrote, by TensorBoard's own reader and wandb's own records."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER, PREFIX = 32768, 7, 7
LAST_PARTS = (1, 4)


def contains_word(text: str, word: str) -> bool:
    """Find the whole word only: a random ID can contain a short host name by chance."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


def read_events(folder: Path) -> dict[str, list[tuple[int, float, Any]]]:
    """Return step, time and value of every event of a folder, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    kept = tags.pop("tensors")
    assert not any(tags.values()), tags
    return {
        tag: [
            (event.step, event.wall_time, make_ndarray(event.tensor_proto).flatten()[0])
            for event in accumulator.Tensors(tag)
        ]
        for tag in kept
    }


def wandb_records(path: Path) -> list[Any]:
    """Return the records of a .wandb file, which is a log as LevelDB has them."""
    from wandb.proto.wandb_internal_pb2 import Record

    return [Record.FromString(content) for content in _contents(path.read_bytes())]


def _contents(data: bytes) -> Iterator[bytes]:
    position, parts = PREFIX, b""
    while position + HEADER <= len(data):
        room = BLOCK - position % BLOCK
        if room < HEADER:
            position += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        position += HEADER + length
        parts += data[position - length : position]
        if kind in LAST_PARTS:
            yield parts
            parts = b""
