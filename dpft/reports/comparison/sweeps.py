"""Which runs are of one setting, and in which keys their settings differ.

Runs of one setting differ in seeds alone, or in what changes speed and not the model: their scores
may be averaged. Everything else tells settings apart, whether it was swept or not, so that no mean
is ever taken over two things.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpft.reports.pages import printed
from dpft.reports.run.run_record import RunRecord

EPS = "privacy.eps"
NOT_PRIVATE = "not private"
CLIPPING = ("privacy.max_grad_norm", "privacy.clipping", "privacy.groups")
"""Keys that tell settings without noise apart, where their gradients are clipped."""
SPEED_ONLY = frozenset(
    {
        *("train.device", "train.num_threads", "train.checkpoint_every", "train.compile"),
        *("train.micro_batch_size", "train.micro_batch_tokens", "train.pad_to_multiple_of"),
    }
    | {
        "train.fused_head",
        "train.keep",
        "privacy.engine",
        "privacy.clipper_memory_mb",
        "eval.batch_size",
    }
    | {"model.gradient_checkpointing", "privacy.self_check", "privacy.show_diagnostics"}
    | {"reference", "reference_maps"}
)


WORDS = "task.label_words"
"""A key whose value is a mapping that is one thing: what a model may answer."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Runs that differ in their seeds alone."""

    values: dict[str, Any]
    """Dotted key to value, of all that tells settings apart."""
    runs: tuple[RunRecord, ...]

    def label(self, key: str) -> str:
        """Returns the value of a key as it is printed."""
        return printed(self.values.get(key))

    @property
    def level(self) -> str:
        """The privacy level, within which settings compete."""
        return self.label(EPS)


def group_runs(records: Iterable[RunRecord], *, kept: Sequence[str] = ()) -> list[Setting]:
    """Returns the settings in the order in which they first occur.

    Args:
        records: Of finished runs.
        kept: Keys that tell settings apart though they are seeds, or change speed alone.
    """
    groups: dict[str, tuple[dict[str, Any], list[RunRecord]]] = {}
    for record in records:
        values = setting_values(record.values, kept=kept)
        key = json.dumps(values, sort_keys=True, default=str)
        groups.setdefault(key, (values, []))[1].append(record)
    return [Setting(values=values, runs=tuple(runs)) for values, runs in groups.values()]


def setting_values(config: Mapping[str, Any], *, kept: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what tells a run's setting apart, by dotted keys; ``kept`` as ``group_runs``."""
    flat = {
        key: value
        for key, value in _flat(config, "")
        if key in kept
        or (key not in SPEED_ONLY and not key.endswith("seed") and not key.startswith("tracking."))
    }
    if flat.get("privacy.name") == "none":
        norm = flat.get("privacy.max_grad_norm")
        kept_keys = () if norm is None else CLIPPING
        flat = {
            key: value
            for key, value in flat.items()
            if key in kept_keys or not key.startswith("privacy.")
        }
        flat[EPS] = NOT_PRIVATE if norm is None else f"{NOT_PRIVATE}, clipped at {norm:g}"
    flat.pop("privacy.name", None)
    return flat


def swept_keys(settings: Sequence[Setting]) -> list[str]:
    """Returns the keys in which settings differ, epsilon's last.

    Where the name of a section differs (method, model), its other keys count only if they differ
    under one name: every method has its own.
    """
    keys = dict.fromkeys(key for setting in settings for key in setting.values)
    swept = [key for key in keys if _differs(key, settings)]
    return sorted(swept, key=lambda key: (key == EPS, not key.endswith(".name")))


def ordered(labels: Iterable[str]) -> list[str]:
    """Returns distinct values as they are printed, numbers by size and before words."""
    distinct = list(dict.fromkeys(labels))
    numbers = {label: number(label) for label in distinct}
    known = [label for label in distinct if numbers[label] is not None]
    rest = [label for label in distinct if numbers[label] is None]
    return [*sorted(known, key=lambda label: numbers[label] or 0.0), *rest]


def number(label: str) -> float | None:
    """Returns the number that a printed value is; None where it is a word."""
    try:
        return float(label)
    except ValueError:
        return None


def _differs(key: str, settings: Sequence[Setting]) -> bool:
    section, _, own = key.partition(".")
    name = f"{section}.name"
    if own == "name" or not any(name in setting.values for setting in settings):
        return len({setting.label(key) for setting in settings}) > 1
    names = {setting.label(name) for setting in settings}
    return any(
        len({setting.label(key) for setting in settings if setting.label(name) == one}) > 1
        for one in names
    )


def _flat(value: Any, key: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value or key == WORDS:
        yield key, value
        return
    for name, part in value.items():
        yield from _flat(part, f"{key}.{name}".lstrip("."))
