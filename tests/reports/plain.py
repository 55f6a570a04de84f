"""Lets tests give what reports read, config.yaml and privacy.json, as plain values."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpft.config.hydra_compose import compose
from dpft.config.load import from_values, load
from dpft.config.load import plain as plain_values
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.evaluation.scores import ScoreEntry
from dpft.generation.decoding import DecodeConfig
from dpft.reports import report
from dpft.reports.privacy_json import OpenRun, PrivateRun, RunPrivacy
from dpft.reports.report import statement
from dpft.reports.run_record import RunRecord, model_name
from dpft.strict_model import as_json, parse
from dpft.training.progress_record import ProgressLine

ORIGIN = {"model": "tiny", "data": "e2e"}
"""What every privacy.json says of where its run comes from."""
DECODE = {
    **{"strategy": "nucleus", "num_beams": 1, "max_new_tokens": 9, "length_penalty": 1.0},
    **{"no_repeat_ngram_size": 0, "repetition_penalty": 1.0},
    **{"top_p": 0.9, "temperature": 1.0, "seed": 0},
}
TOKENIZER = {
    **{"epsilon": 1.5, "delta": 1e-5, "simple_composition": 4.5},
    "ledger": {"lines": 2, "head": "ab" * 32},
}
WITH_TOKENIZER = {"epsilon": 4.25, "delta": 2e-5, "tokenizer": TOKENIZER}
"""Of a training and its private tokenizer."""


def privacy_of(content: Any) -> RunPrivacy:
    """Return a privacy.json's record."""
    if not isinstance(content, Mapping):
        return content
    kind: Any = PrivateRun if "epsilon" in content else OpenRun
    return parse({**ORIGIN, **_as_read(content)}, kind)


@functools.cache
def _defaults() -> Mapping[str, Any]:
    composed = compose("train", ["task=e2e", "model=tiny", "privacy.eps=3"], TrainCommand)
    whole = load(composed.values, TrainCommand)
    return {name: plain_values(whole)[name] for name in TrainConfig.model_fields}


def config_of(values: Any) -> TrainConfig:
    """Return the configuration of some sections; the rest is that of E2E."""
    if not isinstance(values, Mapping):
        return values
    defaults, merged = _defaults(), dict(_defaults())
    for name, section in _as_read(values).items():
        known = defaults.get(name)
        keeps = isinstance(section, dict) and isinstance(known, dict)
        same = keeps and section.get("name", known.get("name")) == known.get("name")
        if same or (keeps and name in ("model", "scheduler")):
            section = {**known, **section}
        merged[name] = section
    return from_values(merged, TrainConfig)


def whole_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a config.yaml with some sections."""
    return plain_values(config_of(values))


def run_of(
    config: Mapping[str, Any],
    privacy: Any,
    evaluations: Sequence[ScoreEntry] = (),
    progress: Sequence[ProgressLine] = (),
) -> RunRecord:
    """Return a run's record, of a folder that is not there."""
    known = config_of(config)
    return RunRecord(
        folder=Path("run"),
        config=known,
        values=config,
        privacy=privacy_of(privacy).replace(model=model_name(known.model)),
        evaluations=list(evaluations),
        overrides=None,
        progress=tuple(progress),
    )


def render(*parts: Any, **more: Any) -> str:
    """Return report.md of the parts of ``run_of``."""
    return report.render(run_of(*parts, **more))


def guarantee_of(report: str) -> str:
    """Return the paragraphs below the title of report.md: the guarantee and its warnings."""
    head = report.partition("\n## ")[0]
    return "\n".join(line[2:] for line in head.splitlines() if line.startswith(">"))


def stated(privacy: Any, **given: Any) -> dict[str, Any]:
    """Return what stands beside synthetic records of a run."""
    asked = {"run": "outputs/x", "task": "e2e", "retries": 2, "records": 3, "unparsed": None}
    decode = parse(DECODE, DecodeConfig)
    said = statement(privacy_of(privacy), decode=decode, **{**asked, "prompts": "none", **given})
    return as_json(said)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes ``config`` and ``privacy`` as plain values, too."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(function).bind(*args, **kwargs)
        for name, record in (("config", config_of), ("privacy", privacy_of)):
            if name in bound.arguments:
                bound.arguments[name] = record(bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return called


def _as_read(content: Any) -> Any:
    """Return values as JSON has them: lists, and no tuples."""
    if isinstance(content, Mapping):
        return {name: _as_read(part) for name, part in content.items()}
    return [_as_read(part) for part in content] if isinstance(content, list | tuple) else content
