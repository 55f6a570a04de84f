"""Figures of the site, drawn from the measured tables when it is built.

``python -m docs.tools.results_figures`` writes docs/assets/curve.svg,
the README's copy of the curve.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpft.reports.rendering import COLORS, draw_svg

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results.md"
README_CURVE = Path(__file__).resolve().parents[1] / "assets" / "curve.svg"
ROWS = {
    "full, book-keeping": "dpft, book-keeping",
    "LoRA rank 4 / non-private LoRA": "dpft, LoRA",
    "BiTFiT / non-private BiTFiT": "dpft, biases",
    "Opacus ghost, full (untied)": "Opacus, ghost clipping",
    "Opacus hooks, full (untied)": "Opacus, hooks",
}
"""Rows of the first table, of GPT-2's 124M shape, and what the figures call them."""


def figures() -> dict[str, str]:
    """Return the figures by their path below docs/."""
    measured = ratios(RESULTS.read_text())
    names = list(ROWS.values())
    times = [measured[row][0] for row in ROWS]
    memory = [measured[row][1] for row in ROWS]
    return {
        "results/figures/time.svg": _bars(names, times, "time", "time, ordinary training = 1"),
        "results/figures/memory.svg": _bars(
            names, memory, "memory", "peak memory, ordinary training = 1"
        ),
        "results/figures/curve.svg": _curve(BENCHMARKS / "real_lm"),
    }


def readme_curve() -> str:
    """Return the curve on a white background, for pages that may be dark."""
    svg = _curve(BENCHMARKS / "real_lm")
    return svg.replace(">", '><rect width="100%" height="100%" fill="white"/>', 1)


def scores_by_epsilon(folder: Path) -> dict[str, float]:
    """Return BLEU by ε of the rows ``curve-*.json``, ascending; ``none`` is last."""
    rows = [json.loads(file.read_text()) for file in folder.glob("curve-*.json")]
    scores = {row["eps"]: row["scores"]["bleu"] for row in rows}
    return dict(sorted(scores.items(), key=lambda item: float(item[0].replace("none", "inf"))))


def ratios(text: str) -> dict[str, tuple[float, float]]:
    """Return time and memory of each row of the first table.

    Raises:
        KeyError: A row that a figure shows is not there.
    """
    first = text.partition("\n# ")[0]
    found = re.findall(r"(?m)^\| ([^|]+?) \| ([\d.]+) \([^|]*\| ([\d.]+) \|", first)
    return {name: (float(time), float(memory)) for name, time, memory in found}


def _bars(names: Sequence[str], values: Sequence[float], name: str, label: str) -> str:
    def draw(axes: Any) -> None:
        colors = [COLORS[0] if each.startswith("dpft") else COLORS[1] for each in names]
        bars = axes.barh(names, values, color=colors, height=0.6)
        axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=3)
        axes.axvline(1.0, color="#555555", linewidth=1)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set(xlabel=label, xlim=(0, max(values) * 1.12))

    return str(draw_svg(draw, name=name, label=label, height=2.9))


def _curve(folder: Path) -> str:
    scores = scores_by_epsilon(folder)
    before = json.loads((folder / "e2e-before.json").read_text())["scores"]["bleu"]
    private = {float(eps): score for eps, score in scores.items() if eps != "none"}

    def draw(axes: Any) -> None:
        axes.plot([*private], [*private.values()], marker="o", color=COLORS[0], label="private")
        if "none" in scores:
            axes.axhline(scores["none"], color=COLORS[1], linestyle="--", label="not private")
        axes.axhline(before, color=COLORS[7], linestyle=":", label="not fine-tuned")
        axes.set_xscale("log", base=2)
        axes.set_xticks([*private], [f"{eps:g}" for eps in private])
        axes.set(xlabel="ε (log scale)", ylabel="BLEU", ylim=(0, None))
        axes.legend(loc="center right")

    label = "BLEU on E2E by ε, SmolLM2-135M with LoRA"
    return str(draw_svg(draw, name="curve", label=label))


if __name__ == "__main__":
    README_CURVE.write_text(readme_curve())
