"""The page of the metrics: what each is, what it equals and what it needs."""

import sys

import yaml

from docs.tools.reference.markup import code, head, prose, table
from dpft.commands.listing import GROUPS
from dpft.config.load import config_directory
from dpft.evaluation.metrics import base
from dpft.evaluation.metrics.base import METRICS, MetricSpec

METRICS_EXTRA = "(`pip install 'dpft[metrics]'`)"
NEEDS = {
    "meteor": f"pycocoevalcap {METRICS_EXTRA}; Java 8 or newer on the `PATH`",
    "cider": f"pycocoevalcap {METRICS_EXTRA}",
    "rouge_1": f"rouge-score, nltk {METRICS_EXTRA}",
    "rouge_2": f"rouge-score, nltk {METRICS_EXTRA}",
    "bertscore": f"bert-score {METRICS_EXTRA}; a model folder, `metrics.bertscore_model=DIR`",
    "bleurt": "a model folder, `metrics.bleurt_model=DIR`",
}
"""What metrics need beyond the required packages, by their keys in metrics.json."""
INTRO = """
Scores stand in `metrics.json` under the key of their metric. `task.metrics=[NAME,NAME]` chooses the
metrics of a task; two that share a key cannot stand together. A metric that lacks something is left
out, and `not_computed` says what it lacks and how to get it; the others are computed all the same.
"""
INPUTS = {
    base.PAIRS: "the likelihoods of the answers of preference pairs",
    base.TEXTS: "texts and their references",
    base.LIKELIHOODS: "the model's likelihood of the references",
    base.NEXT_TOKENS: "tokens of the references that the model holds for the likeliest",
    base.LABELS: "classes, or scores for regression",
    base.RANKINGS: "classes from the likeliest on",
    base.ATTRIBUTES: "a yes or no for each attribute",
}


def metrics_page() -> str:
    """Returns the page of all metrics."""
    specs = METRICS.entries()
    rows = [
        (f"[{code(name)}](#{name})", code(spec.reported_as), prose(spec.description), _better(spec))
        for name, spec in specs.items()
    ]
    parts = [
        head("Metrics", ["dpft/evaluation/metrics/"], INTRO),
        table(("Metric", "Key in metrics.json", "What it is, and its scale", "Better"), rows),
        *(_metric(spec) for spec in specs.values()),
    ]
    return "\n".join(parts)


def _metric(spec: MetricSpec) -> str:
    module = spec.score.__module__
    alike = (other.name for other in METRICS.entries().values() if other.score.__module__ == module)
    first = next(alike)
    said = [" ".join(part.split()) for part in (sys.modules[module].__doc__ or "").split("\n\n")]
    about = [f"{prose(part)}\n" for part in said]
    lines = [
        f"## {spec.name}\n",
        *(about if first == spec.name else [f"As [{first}](#{first}) says.\n"]),
        f"- Reads: {INPUTS[spec.inputs]}{', in English only' * spec.english_only}.",
        f"- Defined in: {prose(spec.citation)}",
        f"- Needs: {_needs(spec)}.",
        f"- Scores: {_tasks(spec)}.",
    ]
    return "\n".join(lines) + "\n"


def _better(spec: MetricSpec) -> str:
    return spec.better or "neither"


def _needs(spec: MetricSpec) -> str:
    """Returns what a metric needs beyond dpft's required packages, in words."""
    if spec.missing is base.nothing_missing:
        return "nothing beyond dpft"
    # Metrics of one module need the same, under whatever key they are reported.
    module = spec.score.__module__
    alike = (each for each in METRICS.entries().values() if each.score.__module__ == module)
    return next(NEEDS[other.reported_as] for other in alike if other.reported_as in NEEDS)


def _tasks(spec: MetricSpec) -> str:
    """Returns the tasks of conf/ that are scored by a metric unless somebody says otherwise."""
    files = sorted((config_directory() / GROUPS["tasks"]).glob("*.yaml"))
    found = [
        code(f"task={file.stem}")
        for file in files
        if spec.name in (yaml.safe_load(file.read_text(encoding="utf-8")).get("metrics") or ())
    ]
    return ", ".join(found) or "by choice"
