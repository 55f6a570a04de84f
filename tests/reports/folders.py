"""Folders of runs as ``dpft train`` leaves them, without checkpoints and keys."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dpft.reports.run_record import model_name, write_metrics
from tests.reports.plain import config_of
from tests.reports.test_report import CONFIG, entry, private

EVIL = "<script>alert(1)</script>"


def write_run(
    folder: Path,
    *,
    bleu: float = 60.0,
    public: bool = True,
    publish: bool = False,
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
    before, after = entry("before", bleu_before), entry("after", bleu, **(scores or {}))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    named = {**private(), "model": model_name(config_of(config).model)}
    (folder / "privacy.json").write_text(json.dumps({**named, **(privacy or {})}))
    write_metrics(folder, [before, after], public=public, publish=publish)
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(list(overrides)))
    return folder
