"""The page of the recipes, with their published scores, and of the metrics."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from docs.tools.reference.markup import code, commands, head, prose, table
from dpft.config.help_text import purpose
from dpft.config.load import config_directory
from dpft.evaluation.metrics import base
from dpft.evaluation.metrics.base import METRICS, MetricSpec

INTRO = """
A recipe is a complete configuration with a name: `dpft train experiment=NAME`. A recipe of a paper
reproduces the table or figure that its description names. Comments in `conf/experiment/NAME.yaml`
state where each value comes from, and which values the paper does not give. The report of a run
shows the published scores next to its own. All scores are on the scales of the [metrics](#metrics).
A recipe for a sweep runs all its settings with `--multirun`, and a single setting without it.
"""
PAPERS = {
    "li2022": "Li et al. 2022 (arXiv 2110.05679)",
    "bu2022": "Bu et al. 2022 (arXiv 2210.00036)",
    "ponomareva2022": "Ponomareva et al. 2022 (Findings of ACL)",
    "": "Other recipes",
}
"""The heading of the recipes whose names begin with a paper."""
WIDEST = 9
"""The most columns of a table of scores; a wider one has a row per metric."""
METRICS_INTRO = """
`metrics.json` stores each score under the key of its metric. `task.metrics=[NAME,NAME]` selects the
metrics of a task; two metrics with the same key exclude each other. If a metric lacks a package or
a model, dpft computes the other metrics. The key `not_computed` then states what to install.
"""
METRICS_EXTRA = "(`pip install 'dpft[metrics]'`)"
NEEDS = {
    "meteor": f"pycocoevalcap {METRICS_EXTRA}; Java 8 or newer on the `PATH`",
    "cider": f"pycocoevalcap {METRICS_EXTRA}",
    "rouge_1": f"rouge-score, nltk {METRICS_EXTRA}",
    "rouge_2": f"rouge-score, nltk {METRICS_EXTRA}",
    "bertscore": f"bert-score {METRICS_EXTRA}; a model folder, `metrics.bertscore_model=DIR`",
    "bleurt": "a model folder, `metrics.bleurt_model=DIR`",
}
"""What metrics need in addition to the required packages, by their keys in metrics.json."""
INPUTS = {
    base.PAIRS: "the likelihoods of the two answers of each preference pair",
    base.TEXTS: "generated texts and their references",
    base.LIKELIHOODS: "the likelihoods of the references",
    base.NEXT_TOKENS: "the most likely token at each position of the references",
    base.LABELS: "predicted classes, or scores for regression",
    base.RANKINGS: "classes, ordered by their likelihood",
    base.ATTRIBUTES: "a yes or no for each attribute",
}


def recipes_page() -> str:
    """Return the page of the recipes and the metrics."""
    files = sorted((config_directory() / "experiment").glob("*.yaml"))
    parts = [head("Recipes and metrics", ["conf/experiment/", "dpft/evaluation/metrics/"], INTRO)]
    papers = {file: file.stem.partition("_")[0] for file in files}
    for paper, heading in PAPERS.items():
        parts.append(f"## {heading}\n")
        for file in files:
            if papers[file] == paper or not paper and papers[file] not in PAPERS:
                parts += _recipe(file)
    parts.append(f"## Metrics\n{METRICS_INTRO}")
    for spec in METRICS.entries().values():
        parts += _metric(spec)
    return "\n".join(parts)


def _recipe(file: Path) -> Iterator[str]:
    text = file.read_text(encoding="utf-8")
    content = yaml.safe_load(text) or {}
    yield f"### {file.stem}\n\n{prose(purpose(file))}\n"
    yield from commands(re.findall(r"(?m)^# .* Run: (dpft .+)$", text)[:1])
    by_metrics: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in content.get("reference", ()):
        by_metrics.setdefault(tuple(row["metrics"]), []).append(row)
    for metrics, rows in by_metrics.items():
        yield _scores(metrics, rows)
    for published in content.get("reference_maps", ()):
        yield _heat_map(published)


def _scores(metrics: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return published rows with the same metrics; a caption has what all of them share."""
    columns = {
        "Source": [prose(re.sub(r"^.* et al\. \d+, ", "", row["source"])) for row in rows],
        "Result": [prose(row["what"]) for row in rows],
        "Settings": [_settings(row.get("settings", {})) for row in rows],
        "Model": [code(row.get("model") or "") for row in rows],
        "ε": [_epsilon(row) for row in rows],
    }
    alike = [name for name, cells in columns.items() if name != "ε" and len({*cells}) == 1]
    shared = [cells[0] for name in alike if (cells := columns.pop(name))[0]]
    columns |= {code(name): [str(row["metrics"][name]) for row in rows] for name in metrics}
    lines = [list(columns), *zip(*columns.values(), strict=True)]
    if len(columns) > WIDEST:
        lines = list(zip(*lines, strict=True))
    return f"Published: {', '.join(shared)}.\n\n{table(lines[0], lines[1:])}"


def _heat_map(published: Mapping[str, Any]) -> str:
    rows, columns = published["rows"], published["columns"]
    caption = (
        f"Published: {prose(published['source'])}, {prose(published['what'])}, ε ="
        f" {_epsilon(published)}, {code(published['metric'])} by {code(rows['key'])} (rows) and"
        f" {code(columns['key'])} (columns).\n"
    )
    body = [
        [str(value), *("" if cell is None else str(cell) for cell in cells)]
        for value, cells in zip(rows["values"], published["cells"], strict=True)
    ]
    return f"{caption}\n{table(['', *map(str, columns['values'])], body)}"


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(code(f"{key}={value}") for key, value in settings.items())


def _epsilon(row: Mapping[str, Any]) -> str:
    return "not private" if row.get("eps") is None else str(row["eps"])


def _metric(spec: MetricSpec) -> Iterator[str]:
    specs = METRICS.entries().values()
    alike = [other for other in specs if other.score.__module__ == spec.score.__module__]
    first = alike[0].name
    yield f"### {spec.name}\n\n{prose(spec.description)}\n"
    if first == spec.name:
        paragraphs = (sys.modules[spec.score.__module__].__doc__ or "").split("\n\n")[1:]
        yield from (f"{prose(paragraph)}\n" for paragraph in paragraphs)
    else:
        yield f"See also [{first}](#{first}).\n"
    needs = "no additional packages"
    if spec.missing is not base.nothing_missing:
        needs = next(NEEDS[other.reported_as] for other in alike if other.reported_as in NEEDS)
    yield f"- Key in `metrics.json`: {code(spec.reported_as)}"
    yield f"- Better: {spec.better or 'neither'}"
    yield f"- Input: {INPUTS[spec.inputs]}{', in English only' * spec.english_only}"
    yield f"- Source: {prose(spec.citation)}"
    yield f"- Requires: {needs}"
    yield f"- Default of: {_tasks(spec.name)}\n"


def _tasks(metric: str) -> str:
    """Return the tasks that compute a metric by default."""
    texts = {path.stem: path.read_text() for path in (config_directory() / "task").glob("*.yaml")}
    tasks = sorted(
        task for task, text in texts.items() if metric in (yaml.safe_load(text)["metrics"] or ())
    )
    return ", ".join(code(f"task={task}") for task in tasks) or "no task"
