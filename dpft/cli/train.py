"""``dpft train``: the hand-overs of a run, in order.

Everything that can be refused is refused before the run's folder is opened; no private record is
used before the plan stands and the clipper has been proved on synthetic data.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.cli.assembly import (
    RunPlan,
    checked_overrides,
    plan_run,
    quiet_transformers,
    warn_of_delta,
    with_transferred_batch_size,
)
from dpft.cli.fresh_folder import refuse_used_folder, start_anew
from dpft.cli.held_out import divide, keep_key, not_evaluated
from dpft.cli.hydra_record import run_folder, write_hydra_record
from dpft.cli.parts import encoding_of, prepare_model, training_head
from dpft.cli.progress import batch_progress
from dpft.cli.scores import write_evaluations
from dpft.cli.training_data import load_training_data, make_records, save_unit_key, unit_key
from dpft.config.load import dump
from dpft.config.schema import POLYMORPHIC, TrainConfig
from dpft.data.collation import Layout
from dpft.data.encoding import Encoding
from dpft.evaluation.evaluate import Evaluation, evaluate_parts
from dpft.evaluation.metrics.base import metric_specs
from dpft.evaluation.settings import eval_split_is_public, reads_training_split
from dpft.files import hold_lock, private_folder, write_json
from dpft.methods.base import ParameterCounts, count_parameters
from dpft.models.loading import load_tokenizer
from dpft.models.vocabulary import add_tokens
from dpft.privacy.accounting.curve import EpsilonSoFar
from dpft.privacy.ledger import check_ledger, read_ledger
from dpft.privacy.settings import DifferentialPrivacy
from dpft.reports.privacy import (
    NOT_PRIVATE_SEED,
    account_for_run,
    non_private_record,
    parameter_record,
    privacy_record,
)
from dpft.reports.run import CONFIGURATION, PRIVACY, REPORT, write_report
from dpft.training.loop import Records
from dpft.training.precision import warn_if_slow
from dpft.training.self_check import check_clipper
from dpft.training.session import LEDGER, Session, train_ordinarily, train_privately

CONFIG = TrainConfig
expand = checked_overrides
logger = logging.getLogger(__name__)

__all__ = ["CONFIG", "POLYMORPHIC", "expand", "run"]


def run(config: TrainConfig) -> None:
    """Trains, evaluates and reports; the run's folder is Hydra's."""
    folder = run_folder()
    quiet_transformers()
    refuse_used_folder(folder)
    if config.eval.enabled:
        metric_specs(config.task.metrics)
    device = config.train.prepare()
    warn_if_slow(config.train.precision, device)
    head = training_head(config)
    tokenizer = load_tokenizer(config.model, kind=head.kind)
    add_tokens(tokenizer, config.task.special_tokens)
    encoding = encoding_of(config.task, config.model, head, tokenizer)
    data = load_training_data(config)
    division = divide(config, data)
    config = with_transferred_batch_size(config, lambda: data.num_units)
    plan = plan_run(config, lambda: data.num_units)
    warn(config, plan)
    model, new = prepare_model(config, head)
    model.to(device)  # type: ignore[arg-type]
    prove_clipper(config, plan, model, encoding.layout)
    key = unit_key(config)
    records = make_records(config, data.only(division.kept), encoding, device, unit_key=key)
    counts = count_parameters(model, new)
    folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(private_folder(folder) / "lock"):
        refuse_used_folder(folder)
        start_anew(folder)
        record_configuration(folder, config)
        if data.units is not None:
            save_unit_key(folder, key)
        keep_key(folder, division.key)
        evaluations = evaluate(config, model, encoding, division.scored, "before")
        train(config, plan, folder, model, tokenizer, records)
        evaluations += evaluate(config, model, encoding, division.scored, "after")
        evaluations += not_evaluated(config)
        report(config, plan, folder, counts, evaluations)
    logger.info("report: %s", folder / REPORT)


def warn(config: TrainConfig, plan: RunPlan) -> None:
    """Says on stderr, before training, what makes the promise weak or void."""
    if plan.privacy is None:
        logger.warning("privacy=none: this run is not private")
        return
    warn_of_delta(plan.privacy)
    if isinstance(config.privacy, DifferentialPrivacy) and config.privacy.noise_seed is not None:
        logger.warning(NOT_PRIVATE_SEED)


def prove_clipper(
    config: TrainConfig, plan: RunPlan, model: PreTrainedModel, layout: Layout
) -> None:
    """Checks each phase's clipper against the one-at-a-time loop on synthetic tokens.

    Without the self-check, that each phase's clipper can be made is seen before the first step.
    """
    privacy = config.privacy
    if plan.privacy is None or not isinstance(privacy, DifferentialPrivacy):
        return
    options = privacy.clipping_options(config.train.backward_scale)
    for phase, start in zip(plan.privacy.phases, plan.privacy.phase_starts(), strict=True):
        config.method.begin_step(model, start)
        own = replace(options, max_grad_norm=phase.max_grad_norm)
        if not privacy.self_check:
            own.resolved(model).make(model)
            continue
        difference = check_clipper(
            model,
            own,
            vocab_size=model.config.get_text_config().vocab_size,
            max_length=config.task.max_length,
            layout=layout,
            precision=config.train.precision,
            has_units=privacy.has_units,
        )
        logger.info("self-check: clipper equals the one-at-a-time loop to %.0e", difference)
    config.method.begin_step(model, 0)


def record_configuration(folder: Path, config: TrainConfig) -> None:
    """Writes the configuration into the run's folder, as Hydra's record and as config.yaml."""
    write_hydra_record(folder)
    dump(config, folder / CONFIGURATION)


def train(
    config: TrainConfig,
    plan: RunPlan,
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    records: Records,
) -> None:
    """Takes every planned step and saves the model."""

    def save_model() -> None:
        config.method.save(model, folder / "model")
        tokenizer.save_pretrained(folder / "model")

    session = Session(
        folder=folder,
        model=model,
        method=config.method,
        phases=plan.phases,
        records=records,
        settings=config.train,
        optimizer=config.optimizer,
        scheduler=config.scheduler,
        save_model=save_model,
        num_examples=plan.size.num_examples,
        show_diagnostics=diagnostics_are_shown(config),
    )
    if plan.privacy is None or not isinstance(config.privacy, DifferentialPrivacy):
        train_ordinarily(session, plan.steps)
        return
    calibration = plan.privacy.calibration
    whole = float("inf") if calibration is None else calibration.epsilon
    curve = EpsilonSoFar(plan.privacy, whole)
    train_privately(session, plan.privacy, config.privacy, epsilon_after=curve)


def evaluate(
    config: TrainConfig,
    model: PreTrainedModel,
    encoding: Encoding,
    held_out: Mapping[str, Sequence[Any]],
    stage: str,
) -> list[Evaluation]:
    """Returns the scores on each part of the evaluation split; none where evaluation is off."""
    if held_out:
        logger.info("evaluating %s fine-tuning", stage)
    with torch.random.fork_rng(), batch_progress() as on_progress:
        return evaluate_parts(
            model,
            encoding,
            config.task,
            held_out,
            config=config.eval,
            decode=config.decode,
            metrics=config.metrics,
            stage=stage,
            extra_positions=config.method.extra_positions,
            on_progress=on_progress,
        )


def report(
    config: TrainConfig,
    plan: RunPlan,
    folder: Path,
    counts: ParameterCounts,
    evaluations: list[Evaluation],
) -> None:
    """Writes predictions, metrics, the privacy record and the report."""
    public = eval_split_is_public(config.task, config.eval)
    if evaluations:
        training = reads_training_split(config.task, config.eval)
        write_evaluations(folder, evaluations, public=public, training=training)
    if plan.privacy is None or not isinstance(config.privacy, DifferentialPrivacy):
        privacy = parameter_record(counts) | non_private_record(
            num_examples=plan.size.num_examples,
            expected_batch_size=config.train.expected_batch_size,
            steps=plan.steps,
        )
    else:
        ledger = read_ledger(folder / LEDGER)
        check_ledger(ledger, plan.privacy)
        privacy = privacy_record(
            plan.privacy,
            account_for_run(plan.privacy, ledger, config.privacy.accountant),
            ledger,
            counts,
            reproducible=config.privacy.noise_seed is not None,
            size_source=plan.size.source,
            secure_noise=config.privacy.secure_noise,
            self_check=config.privacy.self_check,
        )
    write_json(folder / PRIVACY, privacy)
    write_report(folder)


def diagnostics_are_shown(config: TrainConfig) -> bool:
    """Returns whether training losses are logged; epsilon does not cover them."""
    privacy = config.privacy
    return not isinstance(privacy, DifferentialPrivacy) or privacy.show_diagnostics
