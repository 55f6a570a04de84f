"""A run's public files: privacy.json, metrics.json and report.md.

Reports hold public quantities only; what training saw of the records stays in private/.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from dpft.files import write_json, write_text
from dpft.privacy.accounting.summary import round_up

CONFIGURATION, PRIVACY, METRICS = "config.yaml", "privacy.json", "metrics.json"
REPORT = "report.md"
PRIVATE_SPLIT = "computed on private held-out records, not covered by epsilon"
TRAINING_SPLIT = "computed on training records, not covered by epsilon"


@dataclass(frozen=True, kw_only=True)
class ScoreTable:
    """The scores on one split, a column per stage."""

    task: str
    split: str
    public: bool
    stages: list[str]
    examples: list[int]
    """Distinct inputs scored at each stage."""
    rows: list[tuple[str, list[float | None]]]
    not_computed: dict[str, str]


def write_metrics(path: Path, evaluations: Sequence[Mapping[str, Any]], *, public: bool) -> None:
    """Writes metrics.json; scores of a private split say that epsilon does not cover them.

    An entry of the file for the same task, split and stage is replaced, others stay.
    """
    fresh = [mark(entry, public) for entry in evaluations]
    kept = [
        old
        for old in _read(path, {}).get("evaluations", [])
        if _place(old) not in map(_place, fresh)
    ]
    write_json(path, {"evaluations": [*kept, *fresh]})


def write_report(folder: Path) -> None:
    """Writes report.md from config.yaml, privacy.json and metrics.json in a run's folder."""
    config = yaml.safe_load((folder / CONFIGURATION).read_text(encoding="utf-8"))
    privacy = _read(folder / PRIVACY)
    evaluations = _read(folder / METRICS, {}).get("evaluations", [])
    write_text(folder / REPORT, render(config, privacy, evaluations))


def mark(entry: Mapping[str, Any], public: bool) -> dict[str, Any]:
    """Returns an entry of metrics.json with whether its split is public."""
    marked = {**entry, "split_is_public": public}
    if public:
        return marked
    return {**marked, "note": TRAINING_SPLIT if entry["split"] == "train" else PRIVATE_SPLIT}


def render(
    config: Mapping[str, Any],
    privacy: Mapping[str, Any],
    evaluations: Sequence[Mapping[str, Any]],
) -> str:
    """Returns report.md.

    Args:
        config: Content of config.yaml.
        privacy: Content of privacy.json.
        evaluations: Entries of metrics.json.
    """
    environment = Environment(
        loader=PackageLoader("dpft.reports"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["up"] = lambda value: f"{round_up(value, 4):.4f}"
    environment.filters["score"] = lambda value: f"{value:.4f}"
    environment.filters["line"] = lambda text: " ".join(text.split()).replace("|", "\\|")
    return environment.get_template("report.md.j2").render(
        config=config,
        privacy=privacy,
        tables=score_tables(evaluations),
        split_is_public=all(entry["split_is_public"] for entry in evaluations if entry["metrics"]),
        private_split=PRIVATE_SPLIT,
    )


def score_tables(evaluations: Sequence[Mapping[str, Any]]) -> list[ScoreTable]:
    """Returns a table for each task and split, in order of first occurrence."""
    splits: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in sorted(evaluations, key=lambda entry: entry["stage"] != "before"):
        splits.setdefault((entry["task"], entry["split"]), []).append(entry)
    return [
        ScoreTable(
            task=task,
            split=split,
            public=all(entry["split_is_public"] for entry in entries),
            stages=[entry["stage"] for entry in entries],
            examples=[entry["examples"] for entry in entries],
            rows=metric_rows(entries),
            not_computed=_not_computed(entries),
        )
        for (task, split), entries in splits.items()
    ]


def metric_rows(evaluations: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[float | None]]]:
    """Returns each metric's name and its value at every stage, None where it was not computed."""
    names = dict.fromkeys(name for entry in evaluations for name in entry["metrics"])
    return [(name, [entry["metrics"].get(name) for entry in evaluations]) for name in names]


def _not_computed(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns why metrics have no value; where one has, at another stage, its stage is named."""
    computed = {name for entry in evaluations for name in entry["metrics"]}
    return {
        f"{name} {entry['stage']} fine-tuning" if name in computed else name: why
        for entry in evaluations
        for name, why in entry["not_computed"].items()
    }


def _place(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    return entry["task"], entry["split"], entry["stage"]


def _read(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    if default is not None and not path.exists():
        return default
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
