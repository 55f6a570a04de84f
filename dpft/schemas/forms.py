"""Which record each schema is made of, and what its file, or its answer, is called."""

from typing import Any

from dpft.records import (
    audits,
    costs,
    heads,
    ledger,
    machine,
    plans,
    promises,
    ratings,
    scores,
    sweeps,
    synthesis,
    vocabularies,
)
from dpft.schemas.generate import make_schema

FORMS: dict[str, tuple[Any, str, str]] = {
    "account": (
        costs.CostOfRuns | costs.RunCost | costs.CostOfBatchSizes | costs.CostOfNumbers,
        "Output of `dpft account output=json`",
        "With runs= it has runs, with run= it has run, with batch_sizes= it has square_root_rule;"
        " else it is of the numbers given.",
    ),
    "audit_exposure": (audits.ExposureAudit, "private/audit/exposure.json", ""),
    "audit_membership": (audits.MembershipAudit, "private/audit/membership.json", ""),
    "audit_memorization": (
        audits.MemorizationAudit,
        "private/audit/memorization.json of a run",
        "",
    ),
    "audit_one_run": (audits.OneRunAudit, "private/audit/one_run.json", ""),
    "audit_synthetic": (audits.SyntheticAudit, "Output of audit=synthetic", ""),
    "doctor": (machine.Doctor, "Output of `dpft doctor output=json`", ""),
    "generated_privacy": (
        promises.GeneratedPrivately | promises.GeneratedOpenly,
        "NUMBER.privacy.json beside synthetic records",
        "What synthetic records cost, and how their texts were chosen. Without epsilon the run was"
        " not private.",
    ),
    "human_eval_key": (ratings.SheetKey, "human_eval_key.json of a rating sheet", ""),
    "ledger_line": (
        ledger.FirstLine | ledger.ClosingLine | ledger.StepLine,
        "A line of ledger.jsonl",
        "First the run's plan, on disk before a record is drawn, then a line for each noisy step,"
        " on disk before a weight moved, then the closing line. No line holds a time, a batch size"
        " or data.",
    ),
    "list": (machine.Listing, "Output of `dpft list output=json`", ""),
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
    "ratings": (ratings.RatingsReport, "Output of `dpft report ratings=… output=json`", ""),
    "report": (sweeps.RunsReport, "Output of `dpft report runs=… output=json`", ""),
    "scores_by_step": (scores.ScoresByStep, "scores_by_step.json of a run", ""),
    "synthesis": (
        synthesis.Synthesis,
        "synthesis.json of a synthesis",
        "What a synthesis promises: the epsilon of its histogram and its training together. Without"
        " epsilon it was not private.",
    ),
    "synthesis_measures": (
        synthesis.Measures,
        "private/measures.json of a synthesis",
        "Synthetic rows against real ones, for the owner alone.",
    ),
    "synthesize": (synthesis.SynthesisAnswer, "Output of `dpft synthesize output=json`", ""),
    "tokenizer": (
        vocabularies.PrivateVocabularyAnswer | vocabularies.OpenVocabularyAnswer,
        "Output of `dpft tokenizer output=json`",
        "What a vocabulary costs and what came of it.",
    ),
    "tokenizer_privacy": (
        vocabularies.PrivateVocabulary | vocabularies.OpenVocabulary,
        "privacy.json of a tokenizer's run",
        "What a run of `dpft tokenizer` promises: one noisy histogram of words, or with"
        " privacy=none nothing.",
    ),
    "tuning_bill": (sweeps.TuningBill, "tuning_bill.json of a sweep", ""),
    "witness": (heads.HandedFile, "witness.json of a run", ""),
    "witness_line": (heads.WitnessLine, "A line that a witness takes", ""),
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
