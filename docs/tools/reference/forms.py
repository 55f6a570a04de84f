"""JSON Schemas of all files that dpft writes, and of what ``output=json`` prints."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import TypeAdapter

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
ANSWER = "Output of `dpft {} output=json`"
FORMS: dict[str, tuple[Any, str, str]] = {
    "privacy": (
        RunPrivacy,
        "`privacy.json` of a run",
        "The guarantee of a run of `dpft train` or `dpft tune`, with its accounting and its"
        " assumptions. `epsilon` is absent if the run was not private.",
    ),
    "tokenizer_privacy": (
        Vocabulary,
        "`privacy.json` of a tokenizer",
        "The guarantee of `dpft tokenizer`: the ε of one noisy histogram of words. `epsilon` is"
        " absent with `privacy=none`.",
    ),
    "metrics": (
        Metrics,
        "`metrics.json`",
        "The scores of a run. `private/metrics.json` has the scores of private splits. `dpft eval"
        " output=json` prints the entries that it computed.",
    ),
    "progress_line": (
        ProgressLine,
        "A line of `progress.jsonl`",
        "The public quantities of a run after a number of steps.",
    ),
    "predictions_line": (
        Prediction,
        "A line of `predictions.jsonl`",
        "The output of the model for one distinct input.",
    ),
    "ledger_line": (
        FirstLine | ClosingLine | StepLine,
        "A line of `ledger.jsonl`",
        "The first line has the plan. dpft writes it before it samples any record. Each noisy step"
        " adds one line before the weights change, and a closing line follows at the end. No line"
        " contains times, batch sizes or data.",
    ),
    "generated_privacy": (
        GeneratedPrivacy,
        "`NUMBER.privacy.json` of synthetic records",
        "The guarantee of the run, and the settings with which the records were generated.",
    ),
    "synthesis": (
        Synthesis,
        "`synthesis.json` of a synthesis",
        "The guarantee of `dpft synthesize`: the ε of its histogram and its training together."
        " `epsilon` is absent if the synthesis was not private.",
    ),
    "synthesis_measures": (
        Measures,
        "`private/measures.json` of a synthesis",
        "A comparison of synthetic rows with real rows. It is for the owner of the data only.",
    ),
    "audit_one_run": (OneRunAudit, "`private/audit/one_run.json`", ""),
    "audit_exposure": (ExposureAudit, "`private/audit/exposure.json`", ""),
    "audit_membership": (MembershipAudit, "`private/audit/membership.json`", ""),
    "audit_memorization": (MemorizationAudit, "`private/audit/memorization.json`", ""),
    "account": (
        CostOfRuns | RunCost | CostOfNumbers,
        ANSWER.format("account"),
        "The three forms belong to `runs=[RUN,RUN]`, to `run=RUN`, and to numbers given as"
        " arguments.",
    ),
    "plan": (
        PrivatePlan | OpenPlan,
        ANSWER.format("plan"),
        "The plan and the cost of a run. `epsilon` is absent if the run is not private.",
    ),
    "audit_synthetic": (SyntheticAudit, ANSWER.format("audit audit=synthetic"), ""),
    "synthesize": (
        SynthesisAnswer,
        ANSWER.format("synthesize"),
        "The folder, the rows and the guarantee of a synthesis.",
    ),
    "list": (Listing, ANSWER.format("list"), ""),
    "doctor": (Doctor, ANSWER.format("doctor"), ""),
}
"""Name of each schema to its model, or a union of models, its title and its description.

An empty description is taken from the model. The order is that of the page.
"""


def names() -> tuple[str, ...]:
    """Return the names of all schemas, sorted."""
    return tuple(sorted(FORMS))


@cache
def schema(name: str) -> dict[str, Any]:
    """Return a JSON Schema (draft 2020-12), with the text below each field as its description."""
    model, title, description = FORMS[name]
    content = TypeAdapter(model).json_schema()
    kinds = {kind.__name__: kind for kind in _models(StrictModel)}
    for part in (content, *content.get("$defs", {}).values()):
        kind = kinds.get(part.get("title", ""))
        for field_name, field in kind.model_fields.items() if kind else ():
            text = field_text(kind, field_name)
            part["properties"][field.alias or field_name]["description"] = text
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return draft | content | {"title": title, "description": description or content["description"]}


def _models(kind: type[StrictModel]) -> Iterator[type[StrictModel]]:
    """Yield the models of dpft that derive from a class."""
    for derived in kind.__subclasses__():
        if derived.__module__.startswith("dpft."):
            yield derived
        yield from _models(derived)


def schema_text(name: str) -> str:
    """Return a schema as the site's file has it."""
    return json.dumps(schema(name), indent=2, ensure_ascii=False) + "\n"
