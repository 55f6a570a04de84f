"""What the page says of a metric: which direction is better, what it means, which one leads."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpft.evaluation.metrics.base import HIGHER, METRICS, MetricSpec

ARROWS = {True: "↑", False: "↓"}
BETTER = {True: "higher is better", False: "lower is better"}


@dataclass(frozen=True, kw_only=True)
class MetricWords:
    """A metric in words; all of them empty for one that dpft does not know."""

    arrow: str
    """Points to where the better values are; empty where neither direction is better."""
    better: str
    meaning: str
    """What the number is, and where that is defined."""


UNKNOWN = MetricWords(arrow="", better="", meaning="")


def metric_words(config: Mapping[str, Any], keys: Iterable[str]) -> dict[str, MetricWords]:
    """Returns what to say of each key of metrics.json.

    Args:
        config: Content of config.yaml; its task's metrics say which of two metrics a key is of.
        keys: Keys of ``metrics``.
    """
    known = METRICS.entries()
    own = [known[name] for name in _chosen(config) if name in known]
    by_key = {spec.reported_as: spec for spec in [*known.values(), *own]}
    return {key: _words(by_key[key]) if key in by_key else UNKNOWN for key in keys}


def main_metric(config: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    """Returns the key of the score to lead with: the task's first that is there.

    Args:
        config: Content of config.yaml.
        keys: Keys of ``metrics`` of an evaluation.

    Returns:
        None where no metric says which of two values is better.
    """
    known = METRICS.entries()
    chosen = [known[name].reported_as for name in _chosen(config) if name in known]
    words = metric_words(config, keys)
    return next((key for key in [*chosen, *keys] if key in words and words[key].arrow), None)


def _chosen(config: Mapping[str, Any]) -> Sequence[str]:
    return config["task"].get("metrics") or ()


def _words(spec: MetricSpec) -> MetricWords:
    meaning = f"{spec.description} {spec.citation}"
    if spec.better is None:
        return MetricWords(arrow="", better="", meaning=meaning)
    higher = spec.better == HIGHER
    return MetricWords(arrow=ARROWS[higher], better=BETTER[higher], meaning=meaning)
