"""Folders of runs as ``dpft train`` leaves them, sweeps of them, and a published map of a sweep."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dpft.constants import CAUSAL
from dpft.reports.card import ExportedModel
from dpft.reports.privacy_json import read_privacy
from dpft.reports.run_record import RunRecord, model_name, read_run, write_metrics
from tests.reports.plain import config_of, whole_config
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
    """Write config.yaml, privacy.json, metrics.json and Hydra's record; sections are merged."""
    (folder / ".hydra").mkdir(parents=True)
    config: dict[str, Any] = {**CONFIG, "privacy": {**CONFIG["privacy"], "name": "dp", "eps": eps}}
    for name, values in sections.items():
        config[name] = {**config[name], **values} if isinstance(values, Mapping) else values
    before, after = entry("before", bleu_before), entry("after", bleu, **(scores or {}))
    (folder / "config.yaml").write_text(yaml.safe_dump(whole_config(config)))
    named = {**private(), "model": model_name(config_of(config).model)}
    (folder / "privacy.json").write_text(json.dumps({**named, **(privacy or {})}))
    write_metrics(folder, [before, after], public=public, publish=publish)
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(list(overrides)))
    return folder


def read(folder: Path) -> RunRecord:
    """Return a run whose privacy.json is that of its ledger."""
    return read_run(folder, read_privacy(folder / "privacy.json"))


COUNTS = {"trainable": 20, "new": 0, "total": 900}
FULL, LORA = (60.0, 61.0, 62.0), (50.0, 51.0, 52.0)


def sweep(root: Path, *, public: bool = True) -> list[Path]:
    """Two methods at two epsilons, three seeds each; at ε = 8 the methods' scores overlap."""
    runs = [
        ("full", 3.0, FULL), ("lora", 3.0, LORA), ("full", 8.0, FULL), ("lora", 8.0, (60, 63, 61)),
    ]  # fmt: skip
    return [
        write_run(
            root / f"{method}-{eps:g}-{seed}",
            bleu=bleu,
            eps=eps,
            public=public,
            method={"name": method},
            train={"seed": seed},
            privacy={"parameters": {**COUNTS, "trainable": 500 if method == "full" else 20}},
        )
        for method, eps, scores in runs
        for seed, bleu in enumerate(scores)
    ]


RATES, SIZES = [0.001, 0.0005], [64, 128]
NOT_THE_PAPERS = "chosen by the recipe"
MAP: dict[str, Any] = {
    **{"source": "Paper, Figure 1", "what": "full, E2E test", "task": "e2e", "split": "test"},
    **{"model": "gpt2", "eps": 3.0, "metric": "bleu", "settings": {"method.name": "full"}},
    "rows": {"key": "train.learning_rate", "values": RATES},
    "columns": {
        "key": "train.expected_batch_size",
        "values": SIZES,
        "values_are": NOT_THE_PAPERS,
    },
    "cells": [[10.5, 20.5], [30.5, None]],
}
"""As config.yaml has it."""


def run_config(rate: float, size: float, **sections: Mapping[str, Any]) -> dict[str, Any]:
    """What config.yaml of a run with the map holds, its keys of some sections changed."""
    train = {"learning_rate": rate, "expected_batch_size": size}
    values = {"model": {"name": "gpt2"}, "train": train, "privacy": {"name": "dp"}, **sections}
    merged = {name: {**CONFIG[name], **section} for name, section in values.items()}
    return {**CONFIG, **merged, "reference_maps": [MAP]}


EXPORTED = ExportedModel(
    kind=CAUSAL,
    auto_class="AutoModelForCausalLM",
    base_model="openai-community/gpt2",
    license="mit",
    repository=None,
)
"""A causal language model, as an export describes it to its card."""
