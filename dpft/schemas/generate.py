"""JSON Schemas made of the records of ``dpft.records``.

``python -m dpft.schemas.generate`` writes them anew, beside this file, after a record was changed;
a test holds what lies here against what the records say.
"""

import json
import re
import types
from collections import Counter
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from dpft.files import write_text
from dpft.records import audits, costs, ledger, plans, promises, scores
from dpft.records.form import (
    Limits,
    keys_of,
    members,
    own_key,
    records_within,
    rules_of,
    texts_of,
)
from dpft.schemas import path_of
from dpft.synthesis import records as synthesis_records

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null"}


def make_schema(record: Any, *, title: str, description: str = "") -> dict[str, Any]:
    """Returns the schema of a record, or of a union of records, which a key tells apart.

    A record that stands in two places is a definition, and so is each record of a union at the
    root; every other one stands where it is used.

    Args:
        record: A record's class, or a union of them.
        title: What the file is called.
        description: What a union is; a record's own text says it otherwise.
    """
    cases = tuple(cast("type", each) for each in members(record))
    definitions = _Definitions(cases)
    if len(cases) == 1:
        root = definitions.of_record(cases[0])
    else:
        root = {"description": description, "type": "object", **definitions.told_apart(cases)}
    schema = {"$schema": DRAFT, "title": title, **root}
    if definitions.made:
        schema["$defs"] = definitions.made
    return schema


def schema_text(schema: Mapping[str, Any]) -> str:
    """Returns a schema as its file has it."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _count_uses(record: type, uses: Counter[type]) -> None:
    """Counts in how many places of a schema a record stands, and those within it."""
    uses[record] += 1
    if uses[record] == 1:
        for key in keys_of(record):
            for inner in records_within(key.hint):
                _count_uses(inner, uses)


class _Definitions:
    """Makes the parts of one schema, and keeps those that have a name."""

    def __init__(self, cases: tuple[type, ...]) -> None:
        """Counts which records stand in two places."""
        uses = Counter[type]()
        for case in cases:
            _count_uses(case, uses)
        often = {record for record, count in uses.items() if count > 1}
        self._named = often | (set(cases) if len(cases) > 1 else set())
        self.made: dict[str, Any] = {}

    def told_apart(self, cases: tuple[type, ...]) -> dict[str, Any]:
        """Returns the choice between records by a key that only the first of them must have."""
        first, *later = cases
        if not later:
            return self._of(first)
        key = own_key(first, tuple(later))
        return {
            "if": {"required": [key]},
            "then": self._of(first),
            "else": self.told_apart(tuple(later)),
        }

    def of_record(self, record: type) -> dict[str, Any]:
        """Returns the schema of an object."""
        texts = {field: {"description": text} for field, text in texts_of(record).items()}
        keys = keys_of(record)
        others: Any = False
        for key in keys:
            if key.takes_others:
                of_value = get_args(get_args(key.hint)[0])[1]
                others = self._of(of_value) | texts[key.field]
        rules = [rule.keywords() for rule in rules_of(record)]
        if len(rules) > 1:  # An object has one "if", and each rule may need its own.
            rules = [{"allOf": rules}]
        return {
            "type": "object",
            "description": " ".join((record.__doc__ or "").split()),
            "properties": {
                key.name: self._of(key.hint) | texts.get(key.field, {})
                for key in keys
                if not key.takes_others
            },
            "required": [key.name for key in keys if not key.is_optional and not key.takes_others],
            "additionalProperties": others,
            **{word: part for rule in rules for word, part in rule.items()},
        }

    def _of(self, hint: Any) -> dict[str, Any]:
        origin, arguments = get_origin(hint), get_args(hint)
        if is_dataclass(hint):
            record = cast("type", hint)
            if record not in self._named:
                return self.of_record(record)
            name = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", record.__name__).lower()
            if name not in self.made:
                self.made[name] = {}
                self.made[name] = self.of_record(record)
            return {"$ref": f"#/$defs/{name}"}
        if origin is Annotated:
            part = self._of(arguments[0])
            for limits in hint.__metadata__:
                part |= _keywords(limits) if isinstance(limits, Limits) else {}
            return part
        if origin is Literal:
            if len(arguments) == 1:
                return {"const": arguments[0]}
            return {"type": _TYPES[type(arguments[0])], "enum": list(arguments)}
        if origin is tuple:
            return self._of_list(arguments)
        if len(members(hint)) > 1:
            return self._of_union(members(hint))
        if isinstance(origin, type) and issubclass(origin, Mapping):
            names = {key: part for key, part in self._of(arguments[0]).items() if key != "type"}
            part = {"type": "object", "additionalProperties": self._of(arguments[1])}
            return part | ({"propertyNames": names} if names else {})
        return {} if hint is Any else {"type": _TYPES[hint]}

    def _of_list(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if arguments[-1] is ...:
            items = self._of(arguments[0])
            return {"type": "array", "items": items} if items else {"type": "array"}
        number = len(arguments)
        if len(set(arguments)) == 1:
            return {
                "type": "array",
                "items": self._of(arguments[0]),
                "minItems": number,
                "maxItems": number,
            }
        parts = [self._of(each) for each in arguments]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": number}

    def _of_union(self, kinds: tuple[Any, ...]) -> dict[str, Any]:
        """Returns one part with several types where the limits of one do not bind the others."""
        parts = [self._of(each) for each in kinds]
        plain = [part for part in parts if set(part) == {"type"}]
        rest = [part for part in parts if set(part) != {"type"}]
        if len(rest) <= 1 and all("type" in part and "enum" not in part for part in rest):
            names = [part["type"] for part in (*rest, *plain)]
            return {**(rest[0] if rest else {}), "type": names}
        return {"anyOf": parts}


def _keywords(limits: Limits) -> dict[str, Any]:
    found = {limit.keyword: bound for limit, bound in limits.given()}
    if limits.pattern is not None:
        found["pattern"] = f"^{limits.pattern}$"
    if limits.choices:
        found["enum"] = list(limits.choices)
    return found


FORMS: dict[str, tuple[Any, str, str]] = {
    "account": (
        costs.CostOfRuns | costs.RunCost | costs.CostOfNumbers,
        "Output of `dpft account output=json`",
        "With runs= it has runs, with run= it has run; else it is of the numbers given.",
    ),
    "audit_exposure": (audits.ExposureAudit, "private/audit/exposure.json", ""),
    "audit_membership": (audits.MembershipAudit, "private/audit/membership.json", ""),
    "audit_memorization": (
        audits.MemorizationAudit,
        "private/audit/memorization.json of a run",
        "",
    ),
    "audit_one_run": (audits.OneRunAudit, "private/audit/one_run.json", ""),
    "audit_synthetic": (synthesis_records.SyntheticAudit, "Output of audit=synthetic", ""),
    "doctor": (plans.Doctor, "Output of `dpft doctor output=json`", ""),
    "generated_privacy": (
        promises.GeneratedPrivately | promises.GeneratedOpenly,
        "NUMBER.privacy.json beside synthetic records",
        "What synthetic records cost, and how their texts were chosen. Without epsilon the run was"
        " not private.",
    ),
    "ledger_line": (
        ledger.FirstLine | ledger.ClosingLine | ledger.StepLine,
        "A line of ledger.jsonl",
        "First the run's plan, on disk before a record is drawn, then a line for each noisy step,"
        " on disk before a weight moved, then the closing line. No line holds a time, a batch size"
        " or data.",
    ),
    "list": (plans.Listing, "Output of `dpft list output=json`", ""),
    "metrics": (scores.Metrics, "metrics.json and private/metrics.json of a run", ""),
    "plan": (
        plans.PrivatePlan | plans.OpenPlan,
        "Output of `dpft plan output=json`",
        "What a run would do and cost. With epsilon it is a private one.",
    ),
    "predictions_line": (scores.Prediction, "A line of predictions.jsonl", ""),
    "privacy": (
        promises.PrivateRun | promises.OpenRun,
        "privacy.json of a run",
        "What a run of `dpft train` or `dpft tune` promises, by whose accounting, and what it"
        " assumes. With epsilon it is a private run.",
    ),
    "progress_line": (scores.ProgressLine, "A line of progress.jsonl", ""),
    "report": (costs.RunsReport, "Output of `dpft report runs=… output=json`", ""),
    "tokenizer": (
        promises.PrivateVocabularyAnswer | promises.OpenVocabularyAnswer,
        "Output of `dpft tokenizer output=json`",
        "What a vocabulary costs and what came of it.",
    ),
    "tokenizer_privacy": (
        promises.PrivateVocabulary | promises.OpenVocabulary,
        "privacy.json of a tokenizer's run",
        "What a run of `dpft tokenizer` promises: one noisy histogram of words, or with"
        " privacy=none nothing.",
    ),
    "synthesis": (
        synthesis_records.Synthesis,
        "synthesis.json of a synthesis",
        "What a synthesis promises: the epsilon of its histogram and its training together. Without"
        " epsilon it was not private.",
    ),
    "synthesis_measures": (
        synthesis_records.Measures,
        "private/measures.json of a synthesis",
        "Synthetic rows against real ones, for the owner alone.",
    ),
    "synthesize": (
        synthesis_records.SynthesisAnswer,
        "Output of `dpft synthesize output=json`",
        "",
    ),
}
"""Name of each schema to its record, or records that a key tells apart, its title and what it is.

The last is empty where the record's own text says it.
"""


def made_schemas() -> dict[str, dict[str, Any]]:
    """Returns each schema as the records have it."""
    return {
        name: make_schema(record, title=title, description=text)
        for name, (record, title, text) in FORMS.items()
    }


if __name__ == "__main__":
    for _name, _schema in made_schemas().items():
        write_text(path_of(_name), schema_text(_schema))
