"""Runs of two methods at two epsilons, and what a report of them compares."""

from pathlib import Path

from dpft.reports.comparison import Comparison, compare
from dpft.reports.run_record import read_run
from tests.reports.folders import write_run

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
            privacy={"trainable_parameters": 500 if method == "full" else 20},
        )
        for method, eps, scores in runs
        for seed, bleu in enumerate(scores)
    ]


def compared(folders: list[Path], **options: object) -> Comparison:
    return compare([read_run(folder) for folder in folders], **options)
