"""A published map of four cells, one of them unknown, and runs that have its settings."""

from collections.abc import Mapping
from typing import Any

from tests.reports.test_report import CONFIG

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
