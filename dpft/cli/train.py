"""``dpft train``: the hand-overs of a run, in order.

Everything that can be refused is refused before the run's folder is opened; no private record is
used before the plan stands and the clipper has been proved on synthetic data.
"""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.cli.assembly import (
    RunPlan,
    check_lengths,
    checked_overrides,
    plan_run,
    quiet_transformers,
    warn_of_delta,
)
from dpft.cli.hydra_record import run_folder, write_hydra_record
from dpft.cli.scores import PREDICTIONS, write_evaluations
from dpft.config.load import dump
from dpft.config.schema import POLYMORPHIC, TrainConfig
from dpft.data.sources import load_examples
from dpft.data.tokenization import tokenize
from dpft.errors import InputError
from dpft.evaluation.evaluate import Evaluation, eval_split_is_public, evaluate_model
from dpft.evaluation.metrics.base import metric_spec
from dpft.files import hold_lock, private_folder, write_json
from dpft.methods.base import count_parameters
from dpft.models.checks import check_model
from dpft.models.loading import load_config, load_model, load_tokenizer
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
from dpft.reports.run import CONFIGURATION, METRICS, PRIVACY, REPORT, write_report
from dpft.tasks.base import Example
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
    for name in config.task.metrics if config.eval.enabled else ():
        metric_spec(name)
    device = config.train.prepare()
    warn_if_slow(config.train.precision, device)
    check_lengths(config, load_config(config.model))
    tokenizer = load_tokenizer(config.model)
    examples = load_examples(config.task, "train")
    held_out = load_examples(config.task, config.eval.split) if config.eval.enabled else []
    plan = plan_run(config, lambda: len(examples))
    warn(config, plan)
    model = load_model(config.model, seed=config.train.seed)
    check_model(model)
    model = config.method.prepare(model)
    model.to(device)  # type: ignore[arg-type]
    prove_clipper(config, model)
    records = Records(
        examples=tokenize(examples, tokenizer, max_length=config.task.max_length),
        micro_batch_size=config.train.micro_batch_size,
        pad_token_id=tokenizer.pad_token_id,
        device=device,
        precision=config.train.precision,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(private_folder(folder) / "lock"):
        refuse_used_folder(folder)
        start_anew(folder)
        record_configuration(folder, config)
        evaluations = evaluate(config, model, tokenizer, held_out, "before")
        train(config, plan, folder, model, tokenizer, records)
        evaluations += evaluate(config, model, tokenizer, held_out, "after")
        report(config, plan, folder, model, evaluations)
    logger.info("report: %s", folder / REPORT)


def refuse_used_folder(folder: Path) -> None:
    """Refuses a folder whose ledger says that privacy was spent there.

    Raises:
        InputError: There is a ledger.
    """
    if (folder / LEDGER).exists():
        raise InputError(
            f"{folder / LEDGER} exists: a run in this folder has taken noisy steps; "
            "choose another folder with hydra.run.dir=DIR."
        )


def start_anew(folder: Path) -> None:
    """Removes what an earlier run of dpft left that took no noisy step here.

    Its checkpoints would count as newer than this run's first one, and its model would lie beside
    this run's ledger if this run broke off.
    """
    if not (folder / CONFIGURATION).exists():
        return
    private = private_folder(folder)
    for name in (REPORT, METRICS, PRIVACY, PREDICTIONS):
        (folder / name).unlink(missing_ok=True)
    for name in (PREDICTIONS, "diagnostics.jsonl"):
        (private / name).unlink(missing_ok=True)
    for stale in (folder / "model", private / "checkpoints"):
        shutil.rmtree(stale, ignore_errors=True)


def warn(config: TrainConfig, plan: RunPlan) -> None:
    """Says on stderr, before training, what makes the promise weak or void."""
    if plan.privacy is None:
        logger.warning("privacy=none: this run is not private")
        return
    warn_of_delta(plan.privacy)
    if isinstance(config.privacy, DifferentialPrivacy) and config.privacy.noise_seed is not None:
        logger.warning(NOT_PRIVATE_SEED)


def prove_clipper(config: TrainConfig, model: PreTrainedModel) -> None:
    """Checks the clipper against the one-at-a-time loop on synthetic tokens."""
    privacy = config.privacy
    if not isinstance(privacy, DifferentialPrivacy) or not privacy.self_check:
        return
    difference = check_clipper(
        model,
        privacy.clipping_options(config.train.backward_scale),
        vocab_size=model.config.get_text_config().vocab_size,
        max_length=config.task.max_length,
        precision=config.train.precision,
    )
    logger.info("self-check: clipper equals the one-at-a-time loop to %.0e", difference)


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
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    stage: str,
) -> list[Evaluation]:
    """Returns the scores on the evaluation split; none where evaluation is off."""
    if not config.eval.enabled:
        return []
    logger.info("evaluating %s fine-tuning", stage)
    with torch.random.fork_rng():
        return [
            evaluate_model(
                model,
                tokenizer,
                config.task,
                examples,
                config=config.eval,
                decode=config.decode,
                stage=stage,
            )
        ]


def report(
    config: TrainConfig,
    plan: RunPlan,
    folder: Path,
    model: PreTrainedModel,
    evaluations: list[Evaluation],
) -> None:
    """Writes predictions, metrics, the privacy record and the report."""
    public = eval_split_is_public(config.task, config.eval)
    if evaluations:
        write_evaluations(folder, evaluations, public=public)
    counts = count_parameters(model)
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
        )
    write_json(folder / PRIVACY, privacy)
    write_report(folder)


def diagnostics_are_shown(config: TrainConfig) -> bool:
    """Returns whether training losses are logged; epsilon does not cover them."""
    privacy = config.privacy
    return not isinstance(privacy, DifferentialPrivacy) or privacy.show_diagnostics
