"""JSON Schemas of all files that dpft writes, and of the answers of ``output=json``."""

import json
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from dpft.audit.exposure import ExposureAudit
from dpft.audit.membership import MembershipAudit
from dpft.audit.memorization import MemorizationAudit
from dpft.audit.synthetic import SyntheticAudit
from dpft.commands.account import CostOfNumbers
from dpft.commands.account_runs import CostOfRuns, RunCost
from dpft.commands.doctor import Doctor
from dpft.commands.listing import Listing
from dpft.evaluation.predictions import Prediction
from dpft.evaluation.scores import Metrics
from dpft.privacy.ledger import ClosingLine, FirstLine, StepLine
from dpft.reports.audit_findings import OneRunAudit
from dpft.reports.plan_table import OpenPlan, PrivatePlan
from dpft.reports.privacy_json import GeneratedPrivacy, RunPrivacy, Vocabulary
from dpft.strict_model import StrictModel
from dpft.strict_model import description as field_text
from dpft.synthesis.records import Measures, Synthesis, SynthesisAnswer
from dpft.training.progress_record import ProgressLine

SUFFIX = ".schema.json"
FORMS: dict[str, tuple[Any, str, str]] = {
    "account": (
        CostOfRuns | RunCost | CostOfNumbers,
        "Output of `dpft account output=json`",
        "With runs= it has runs, with run= it has run; else it is of the numbers given.",
    ),
    "audit_exposure": (ExposureAudit, "private/audit/exposure.json", ""),
    "audit_membership": (MembershipAudit, "private/audit/membership.json", ""),
    "audit_memorization": (
        MemorizationAudit,
        "private/audit/memorization.json of a run",
        "",
    ),
    "audit_one_run": (OneRunAudit, "private/audit/one_run.json", ""),
    "audit_synthetic": (SyntheticAudit, "Output of audit=synthetic", ""),
    "doctor": (Doctor, "Output of `dpft doctor output=json`", ""),
    "generated_privacy": (
        GeneratedPrivacy,
        "NUMBER.privacy.json beside synthetic records",
        "What the run guarantees, and how the texts of synthetic records were chosen.",
    ),
    "ledger_line": (
        FirstLine | ClosingLine | StepLine,
        "A line of ledger.jsonl",
        "First the run's plan, on disk before a record is drawn, then a line for each noisy step,"
        " on disk before a weight moved, then the closing line. No line holds a time, a batch size"
        " or data.",
    ),
    "list": (Listing, "Output of `dpft list output=json`", ""),
    "metrics": (Metrics, "metrics.json and private/metrics.json of a run", ""),
    "plan": (
        PrivatePlan | OpenPlan,
        "Output of `dpft plan output=json`",
        "What a run would do and cost. With epsilon it is a private one.",
    ),
    "predictions_line": (Prediction, "A line of predictions.jsonl", ""),
    "privacy": (
        RunPrivacy,
        "privacy.json of a run",
        "What a run of `dpft train` or `dpft tune` promises, by whose accounting, and what it"
        " assumes. With epsilon it is a private run.",
    ),
    "progress_line": (ProgressLine, "A line of progress.jsonl", ""),
    "tokenizer_privacy": (
        Vocabulary,
        "privacy.json of a tokenizer's run",
        "What a run of `dpft tokenizer` promises: one noisy histogram of words, or with"
        " privacy=none nothing.",
    ),
    "synthesis": (
        Synthesis,
        "synthesis.json of a synthesis",
        "What a synthesis promises: the epsilon of its histogram and its training together. Without"
        " epsilon it was not private.",
    ),
    "synthesis_measures": (
        Measures,
        "private/measures.json of a synthesis",
        "Synthetic rows against real ones, for the owner alone.",
    ),
    "synthesize": (
        SynthesisAnswer,
        "Output of `dpft synthesize output=json`",
        "",
    ),
}
"""Name of each schema to its model, or a union of models, its title and its description.

The description is empty if the model has it.
"""


def names() -> tuple[str, ...]:
    """Return the names of all schemas, sorted."""
    return tuple(sorted(FORMS))


@cache
def schema(name: str) -> dict[str, Any]:
    """Return a JSON Schema (draft 2020-12)."""
    _describe_fields()
    model, title, description = FORMS[name]
    made = TypeAdapter(model).json_schema()
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return draft | made | {"title": title, "description": description or made["description"]}


@cache
def _describe_fields() -> None:
    """Give pydantic the texts below the fields of all models."""
    kinds: list[type[BaseModel]] = [StrictModel]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        for name, field in kind.model_fields.items():
            field.description = field_text(kind, name)
        kind.model_rebuild(force=True)


def schema_text(name: str) -> str:
    """Return a schema as the site's file has it."""
    return json.dumps(schema(name), indent=2, ensure_ascii=False) + "\n"
