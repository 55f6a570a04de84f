"""Folders of runs as ``dpft train`` leaves them, their public files alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dpft.reports.run.scores import mark
from tests.reports.run.test_report import CONFIG, entry, private

EVIL = "<script>alert(1)</script>"


def write_run(
    folder: Path,
    *,
    bleu: float = 60.0,
    public: bool = True,
    eps: float = 3.0,
    privacy: Mapping[str, Any] | None = None,
    overrides: tuple[str, ...] = (),
    bleu_before: float = 1.0,
    scores: Mapping[str, Any] | None = None,
    **sections: Mapping[str, Any],
) -> Path:
    """Writes config.yaml, privacy.json, metrics.json and Hydra's record; sections are merged."""
    (folder / ".hydra").mkdir(parents=True)
    config: dict[str, Any] = {**CONFIG, "privacy": {**CONFIG["privacy"], "name": "dp", "eps": eps}}
    for name, values in sections.items():
        config[name] = {**config[name], **values} if isinstance(values, Mapping) else values
    before, after = entry("before", bleu_before), {**entry("after", bleu), **(scores or {})}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "privacy.json").write_text(json.dumps({**private(), **(privacy or {})}))
    entries = [mark(one, public) for one in (before, after)]
    (folder / "metrics.json").write_text(json.dumps({"schema_version": 1, "evaluations": entries}))
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(list(overrides)))
    return folder
