"""A run's public files: privacy.json, metrics.json and report.md.

Reports hold public quantities only; what training saw of the records stays in private/.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from dpft.files import write_json, write_text
from dpft.privacy.accounting.summary import round_up

PRIVATE_SPLIT = "computed on private held-out records, not covered by epsilon"


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
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    privacy = _read(folder / "privacy.json")
    evaluations = _read(folder / "metrics.json", {}).get("evaluations", [])
    write_text(folder / "report.md", render(config, privacy, evaluations))


def mark(entry: Mapping[str, Any], public: bool) -> dict[str, Any]:
    """Returns an entry of metrics.json with whether its split is public."""
    marked = {**entry, "split_is_public": public}
    return marked if public else {**marked, "note": PRIVATE_SPLIT}


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
    return environment.get_template("report.md.j2").render(
        config=config,
        privacy=privacy,
        evaluations=evaluations,
        rows=metric_rows(evaluations),
        stages=[entry["stage"] for entry in evaluations],
        not_computed=_not_computed(evaluations),
        split_is_public=all(entry["split_is_public"] for entry in evaluations),
        private_split=PRIVATE_SPLIT,
    )


def metric_rows(evaluations: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[float | None]]]:
    """Returns each metric's name and its value at every stage, None where it was not computed."""
    names = dict.fromkeys(name for entry in evaluations for name in entry["metrics"])
    return [(name, [entry["metrics"].get(name) for entry in evaluations]) for name in names]


def _not_computed(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {name: why for entry in evaluations for name, why in entry["not_computed"].items()}


def _place(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    return entry["task"], entry["split"], entry["stage"]


def _read(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    if default is not None and not path.exists():
        return default
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
