"""What a run leaves beside its model: the scores after training, the privacy record, the report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpft.config.schema import TrainConfig
from dpft.evaluation.evaluate import Evaluation
from dpft.files import write_json
from dpft.methods.base import ParameterCounts
from dpft.privacy.accounting.curve import EpsilonCurve
from dpft.privacy.completeness import NO_STEPS, read_journal, read_run_ledger
from dpft.privacy.ledger import LedgerRecord, check_ledger
from dpft.privacy.spending import steps_taken
from dpft.privacy.witness import read_handed
from dpft.reports.run.privacy_record import (
    account_for_run,
    non_private_record,
    parameter_record,
    privacy_record,
)
from dpft.reports.run.processes import process_record
from dpft.reports.run.report import write_report
from dpft.reports.run.witness import with_witness
from dpft.run_folder import JOURNAL, LEDGER, PRIVACY
from dpft.runs.begun import origin
from dpft.runs.evaluation import write_scores
from dpft.runs.run_plan import RunPlan
from dpft.runs.spending.with_tokenizer import (
    PUBLIC_TOKENIZER,
    together_record,
    tokenizer_of,
)
from dpft.training.resume import find_resume_point


def report(
    config: TrainConfig,
    plan: RunPlan,
    folder: Path,
    counts: ParameterCounts,
    evaluations: Sequence[Evaluation],
    curve: EpsilonCurve | None = None,
) -> None:
    """Writes predictions, metrics, the privacy record and the report.

    Args:
        config: Of the run.
        plan: Of the run.
        folder: Of the run.
        counts: Parameters trained.
        evaluations: Scores of the trained model.
        curve: Of epsilon over the plan's steps; None leaves it out.
    """
    write_scores(config, folder, evaluations)
    guarantee = config.privacy.guarantee
    if plan.privacy is None or guarantee is None:
        privacy = parameter_record(counts) | non_private_record(
            num_examples=plan.size.num_examples,
            expected_batch_size=config.train.batch_size(plan.size.num_examples),
            steps=plan.steps,
            clipping=plan.unnoised,
        )
    else:
        ledger = read_run_ledger(folder) or NO_STEPS
        check_ledger(ledger, plan.privacy)
        privacy = privacy_record(
            plan.privacy,
            account_for_run(plan.privacy, ledger, guarantee.accountant),
            ledger,
            counts,
            reproducible=guarantee.noise_seed is not None,
            size_source=plan.size.source,
            self_check=guarantee.self_check,
            steps_kept=find_resume_point(folder).checkpoint.step,
            curve=curve,
        )
        privacy |= _with_tokenizer(config, ledger, folder, privacy)
        privacy = with_witness(privacy, read_handed(folder), ledger.lines)
    sessions = [
        entry["processes"]
        for entry in read_journal(folder / JOURNAL).values()
        if "processes" in entry
    ]
    record = {**privacy, **process_record(sessions), **origin(config, folder)}
    write_json(folder / PRIVACY, record)
    write_report(folder)


def _with_tokenizer(
    config: TrainConfig, ledger: LedgerRecord, folder: Path, privacy: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what privacy.json says of a tokenizer that is private too, or taken as public."""
    if config.model.tokenizer is None:
        return {}
    tokenizer = tokenizer_of(config)
    if tokenizer is None:
        return {"warnings": [*privacy["warnings"], PUBLIC_TOKENIZER]}
    taken = steps_taken(ledger, folder / LEDGER)
    return together_record(
        taken, epsilon=privacy["epsilon"], delta=privacy["delta"], tokenizer=tokenizer
    )
