"""Sections of a run's report and of its model card.

All of them are public: they are derived from config.yaml and privacy.json. Sentences use the
Markdown marks for code and bold text.
"""

from collections.abc import Sequence
from typing import Any

from dpft.config.schema import TrainConfig
from dpft.evaluation.scores import ScoreEntry
from dpft.methods.linear_probe import DEFAULT_FOR_LABELS
from dpft.privacy.accounting.summary import Answer, Interval, NoAnswer, delta_text, eps_text
from dpft.privacy.mechanisms.dp_sgd import DPSGD
from dpft.privacy.plan import EXAMPLE, SAMPLER, ClippingPlan, PrivacyPlan
from dpft.reports.epsilon import delta_notes
from dpft.reports.privacy_json import (
    OpenRun,
    PrivateRun,
    RunPrivacy,
    Selection,
    guarantee,
    is_promised,
)
from dpft.reports.privacy_sentences import (
    alarms,
    audited_rows,
    canary_sentences,
    network_sentences,
    process_rows,
    started_from,
    starting_sentences,
    unprotected_canaries,
)
from dpft.reports.rendering import symbols
from dpft.reports.run_record import data_name, model_title
from dpft.reports.scores import data_title
from dpft.run_folder import LEDGER
from dpft.strict_model import as_json
from dpft.tasks.base import TextualTask
from dpft.tasks.custom import CustomLabels
from dpft.tasks.images import ImageTask

HEAD_COMMAND = f"tail -n 1 {LEDGER} | tr -d '\\n' | sha256sum"
LEDGER_NOTE = (
    f"The first line of `{LEDGER}` contains the plan (every public number that ε depends on) and a"
    " random number that identifies the run. Each noisy step adds a line before it changes a"
    " weight. The closing line contains the digest of the released weights. The field `previous` of"
    " each line is the SHA-256 of the line before it (its UTF-8 bytes without the line end, in"
    " hexadecimal; 64 zeros in the first line). The head is the SHA-256 of the last line:"
    f" `{HEAD_COMMAND}` computes it. No other run has this head. The owner of the files could"
    " rewrite all of them, so publish the head elsewhere. `dpft account run=RUN head=HEAD` computes"
    " ε from the ledger, as this report did, and compares the head."
)
PREDICTABLE = "**NOT PRIVATE: reproducible run with predictable noise (`privacy.noise_seed`).**"
"""Headline of a run whose noise was computed from a test seed."""
Row = tuple[str, str]


def sections(
    config: TrainConfig, privacy: RunPrivacy, evaluations: Sequence[ScoreEntry]
) -> dict[str, Any]:
    """Return each section by its name in the templates."""
    answers = privacy.epsilons if isinstance(privacy, PrivateRun) else {}
    return {
        "title": title(config, privacy),
        "metadata": metadata(config, privacy),
        "alarms": alarms(privacy),
        "headline": headline(privacy),
        "warnings": warnings(config, privacy),
        "quote": quote(config, privacy),
        "training": training_rows(config, privacy),
        "mechanism": mechanism_rows(config, privacy),
        "accountants": [(name, *_answer(name, value)) for name, value in answers.items()],
        "audited": audited_rows(privacy),
        "ledger_note": LEDGER_NOTE,
        "coverage": [symbols(sentence) for sentence in coverage(config, privacy, evaluations)],
    }


def title(config: TrainConfig, privacy: RunPrivacy) -> str:
    """Return the names of the model and of the data, such as ``gpt2 fine-tuned on E2E``."""
    return f"{model_title(config, privacy)} fine-tuned on {data_title(config.task.name)}"


def metadata(config: TrainConfig, privacy: RunPrivacy) -> str:
    """Return the line below the title: data, method, date and version."""
    parts = [f"Data: {data_name(config.task)}", f"Method: {config.method.name}"]
    parts += [f"Started: {privacy.date} (UTC)"] if privacy.date is not None else []
    parts += [f"dpft {privacy.versions.dpft}"] if privacy.versions is not None else []
    return " · ".join(parts)


def origin_rows(config: TrainConfig, privacy: RunPrivacy) -> list[Row]:
    """Return the names of model and data, the date and the versions.

    Unknown entries are omitted.
    """
    versions = ", ".join(
        f"{name} {number}" for name, number in as_json(privacy.versions or {}).items()
    )
    rows = [("model", model_title(config, privacy)), ("data", data_name(config.task))]
    rows += [("started on (UTC)", privacy.date)] if privacy.date is not None else []
    rows += [("versions", versions)] if versions else []
    rows += [("commit of dpft", f"`{privacy.commit}`")] if privacy.commit is not None else []
    return rows


def headline(privacy: RunPrivacy) -> str:
    """Return ε with everything that it depends on (trust rule 6), or "NOT PRIVATE"."""
    if not isinstance(privacy, PrivateRun):
        return f"**NOT PRIVATE: {not_private(privacy)}.**{started_from(privacy)}"
    if not privacy.private:
        return f"{PREDICTABLE}{started_from(privacy)}"
    plan = privacy.plan
    sampler = plan.sampler.replace("_", " ").replace("poisson", "Poisson")
    return (
        f"**(ε = {eps_text(privacy.epsilon)}, δ = {delta_text(privacy.delta)})-differentially"
        f" private** for adding or removing {privacy_unit(plan)}. This is an upper bound by"
        f" {privacy.accountant} for {sampler} sampling and {privacy.steps_taken} steps taken of"
        f" {plan.steps} planned.{what_epsilon_is_of(privacy)}{started_from(privacy)}"
    )


def privacy_unit(plan: PrivacyPlan) -> str:
    """Return the definition of the privacy unit, without the remarks after the semicolon."""
    return plan.unit_definition.partition(";")[0]


def quote(config: TrainConfig, privacy: RunPrivacy) -> str | None:
    """Return one sentence that quotes the result; None if there is no guarantee to quote."""
    if not is_promised(privacy) or alarms(privacy):
        return None
    epsilon, delta = guarantee(privacy)
    accountant, heads = privacy.accountant, f"ledger head {privacy.ledger.head}"
    if privacy.with_tokenizer is not None:
        accountant = f"{_composed_by(privacy)}, including the tokenizer"
        heads += f", ledger head of the tokenizer {privacy.with_tokenizer.tokenizer.ledger.head}"
    return (
        f"{model_title(config, privacy)} fine-tuned on {data_name(config.task)} is"
        f" (ε = {eps_text(epsilon)}, δ = {delta_text(delta)})-differentially private"
        f" for adding or removing {privacy_unit(privacy.plan)} (upper bound by"
        f" {accountant}; {heads})."
    )


def not_private(privacy: OpenRun) -> str:
    """Return the reason why a run with ``privacy=none`` is not private, as a clause."""
    without = "this model was trained without differential privacy (`privacy=none`)"
    if not isinstance(privacy.plan, ClippingPlan):
        return without
    norm = privacy.plan.phases[0].max_grad_norm
    return (
        f"{without}: each example's gradient was clipped (`privacy.max_grad_norm={norm:g}`), and no"
        " noise was added"
    )


def what_epsilon_is_of(privacy: PrivateRun) -> str:
    """Return sentences on parts other than training that ε covers, and on the tokenizer's cost."""
    scope = "the training alone"
    if privacy.plan.counts is not None:
        scope = "the training and the histogram of its synthesis together"
    if privacy.with_tokenizer is None:
        return "" if privacy.plan.counts is None else f" It covers {scope}."
    epsilon, delta = guarantee(privacy)
    return (
        f" It covers {scope}. The tokenizer of the model was made from the same records; both"
        f" together are **(ε = {eps_text(epsilon)}, δ = {delta_text(delta)})-differentially"
        " private**."
    )


def warnings(config: TrainConfig, privacy: RunPrivacy) -> list[str]:
    """Return the warnings below the headline, one paragraph each."""
    shown = isinstance(privacy, PrivateRun) and config.privacy.show_diagnostics
    losses = (
        "**Training losses and the duration of each step were shown during training"
        " (`privacy.show_diagnostics=true`). ε does not cover them.**"
    )
    sentences = [f"Warning: {symbols(warning)}" for warning in privacy.warnings]
    sentences += unprotected_canaries(config, privacy)
    return [losses, *sentences] if shown else sentences


def training_rows(config: TrainConfig, privacy: RunPrivacy) -> list[Row]:
    """Return a row (quantity, value) for each setting of the training."""
    plan = privacy.plan
    phases = plan.phases if isinstance(plan, ClippingPlan) else ()
    units = isinstance(plan, PrivacyPlan) and plan.unit != EXAMPLE
    rate = f"{config.train.learning_rate:g}, schedule {config.scheduler.name}"
    held_out = config.eval.held_out
    kept = (
        f"each {'unit' if units else 'record'} with probability {held_out or 0:g}, chosen by a"
        " secret key; scored, but not used for training"
    )
    parameters = privacy.parameters
    task = config.task
    is_of_labels = isinstance(task, CustomLabels)
    is_default = is_of_labels and config.method.name == "linear_probe"
    return [
        *origin_rows(config, privacy),
        *([("method", DEFAULT_FOR_LABELS)] if is_default else []),
        ("trainable parameters", f"{parameters.trainable:,} of {parameters.total:,}"),
        ("new parameters", f"{parameters.new:,}"),
        ("steps", f"{plan.steps}"),
        ("expected batch size", f"{plan.expected_batch_size}{' units' if units else ''}"),
        *_clipped_rows(privacy),
        *([] if held_out is None else [("held out", kept)]),
        ("learning rate", rate + (" (phase 1)" if len(phases) > 1 else "")),
        ("weight decay", f"{config.train.weight_decay:g}"),
        ("optimizer", config.optimizer.name),
        *input_rows(config),
        ("precision", precision_note(config.train.precision)),
    ]


def input_rows(config: TrainConfig) -> list[Row]:
    """Return rows on the public settings with which every record is prepared for the model."""
    task, model = config.task, config.model
    rows: list[Row] = []
    if isinstance(task, TextualTask) and task.max_length is not None:
        rows.append(("longest example", f"{task.max_length} tokens"))
    if isinstance(task, ImageTask):
        size, views = task.image_size, task.augmentations
        mean, deviation = (", ".join(map(str, values)) for values in (task.mean, task.std))
        preparation = f"{size} × {size} pixels, normalized by mean {mean} and deviation {deviation}"
        rows.append(("images", preparation))
        if views:
            rows.append(("random views of a record", f"{views}, clipped together"))
    if model.replace_batch_norm:
        rows.append(("BatchNorm", "replaced by GroupNorm before training"))
    if model.standardize_weights:
        rows.append(("convolutions", "standardized weights"))
    return rows


def precision_note(precision: str) -> str:
    """Return the precision of a model, and its effect on the sensitivity."""
    if precision == "fp32":
        return f"{precision}, without TF32 and without sums in half precision"
    return (
        f"{precision}; norms and sums in float32 without TF32. The longest record of a micro-batch"
        " determines the padding of the others, and so the rounding of their gradients. In"
        " measurements, bf16 changed the sum of the others by up to 2.6e-3 × max_grad_norm and the"
        " whole sum by up to 1.0001 × max_grad_norm; the sensitivity allows 1 × max_grad_norm. ε"
        " does not count this excess, and no bound on it is proven"
    )


def mechanism_rows(config: TrainConfig, privacy: RunPrivacy) -> list[Row]:
    """Return rows (quantity, value) on the mechanism; no rows for a run without privacy."""
    if not isinstance(privacy, PrivateRun):
        return []
    plan, ledger = privacy.plan, privacy.ledger
    examples = "examples" if plan.unit == EXAMPLE else "units"
    seeded = "predictable, seeded for a test"
    return [
        ("ε (upper bound)", eps_text(privacy.epsilon)),
        ("δ", delta_text(privacy.delta)),
        *_tokenizer_rows(privacy),
        ("accountant", privacy.accountant),
        ("neighboring relation", f"{plan.neighboring_relation.replace('_', ' ')} {plan.unit}"),
        ("privacy unit", plan.unit_definition),
        ("sampler", plan.sampler),
        ("sample rate", f"{plan.sample_rate:.8g}"),
        *_mechanism_rows(privacy),
        (
            f"number of {examples}",
            f"{plan.num_examples} ({privacy.num_examples_source}); ε does not hide this number",
        ),
        ("steps taken", f"{privacy.steps_taken} of {plan.steps} planned"),
        ("noise multiplier", f"{plan.noise_multiplier:.6g}, {_chosen_by(config, privacy)}"),
        *_clipping_rows(privacy),
        ("noise source", privacy.noise_source if privacy.private else seeded),
        *([("dropout", privacy.dropout_source)] if privacy.private else []),
        *process_rows(privacy),
        ("ledger", f"{ledger.lines} lines, head `{ledger.head}`"),
    ]


def _tokenizer_rows(privacy: PrivateRun) -> list[Row]:
    """Return the cost of a private tokenizer by itself and with the training; otherwise no rows."""
    if privacy.with_tokenizer is None:
        return []
    tokenizer = privacy.with_tokenizer.tokenizer
    epsilon, delta = guarantee(privacy)
    both = f"ε = {eps_text(epsilon)}, δ = {delta_text(delta)}, by {_composed_by(privacy)}"
    return [
        ("tokenizer", f"ε = {eps_text(tokenizer.epsilon)}, δ = {delta_text(tokenizer.delta)}"),
        ("tokenizer's ledger", f"{tokenizer.ledger.lines} lines, head `{tokenizer.ledger.head}`"),
        ("training and tokenizer", both),
    ]


def _composed_by(privacy: PrivateRun) -> str:
    """Return the method that composed the costs of the training and the tokenizer."""
    assert privacy.with_tokenizer is not None
    added_up = privacy.with_tokenizer.tokenizer.simple_composition
    if guarantee(privacy)[0] >= added_up:
        return "simple composition"
    return f"pld (simple composition: ε = {eps_text(added_up)})"


def coverage(
    config: TrainConfig, privacy: RunPrivacy, evaluations: Sequence[ScoreEntry]
) -> list[str]:
    """Return paragraphs on the parts that ε covers and the parts that it does not cover."""
    if not isinstance(privacy, PrivateRun):
        return starting_sentences(privacy)
    covered = [
        "Covered: the released model, as a function of the training records, against anyone who"
        " sees the model and this report.",
        "Not covered: other runs on the same records, and a choice among runs by their scores on"
        " private records. Their costs add up.",
    ]
    seeded = [
        "Nothing is covered: anyone who knows or guesses `privacy.noise_seed` can subtract the"
        " noise. The ε above is that of the same run with secret randomness."
    ]
    private = [entry for entry in evaluations if not entry.split_is_public and entry.metrics]
    shown = config.privacy.show_diagnostics
    counted = "examples" if privacy.plan.unit == EXAMPLE else "units"
    searched = _search(privacy.selection) if privacy.selection is not None else []
    return [
        *([covered[0], *searched, covered[1]] if privacy.private else seeded),
        "Not covered: everything under `private/`, which must not be released.",
        "Not covered: the duration of steps, because a step with more records takes longer. To blur"
        " this, the run showed its progress at most once in ten steps.",
        *([_SCORES_NOT_COVERED] if private else []),
        *([_LOSSES_NOT_COVERED] if shown else []),
        *starting_sentences(privacy),
        *network_sentences(privacy),
        *delta_notes(privacy.plan.num_examples, source=privacy.plan.delta_source),
        *canary_sentences(config),
        f"Not private: the configuration, including the number of {counted}.",
    ]


_SCORES_NOT_COVERED = (
    "Not covered: the scores of private records in this report, rounded to two digits"
    " (`eval.publish_private_scores=true`)."
)
_LOSSES_NOT_COVERED = (
    "Not covered: the training losses and the duration of each step, which were shown during"
    " training (`privacy.show_diagnostics=true`)."
)


def _search(selection: Selection) -> list[str]:
    """Return sentences on the parts that ε of a search covers in addition to one run."""
    return [
        "Covered: the choice of this run as the best of a secret random number of runs,"
        f" {selection.expected_trials:.4g} in expectation (eta {selection.eta:g}, gamma"
        f" {selection.gamma:g}), by a score on a public split ({selection.theorem}).",
        "Not covered: the number of runs, the models, scores and ledgers of the other runs, and the"
        " duration of the search, which reveals the number of runs. Public files contain the date"
        " on which the search started, so publish nothing that shows its end.",
    ]


def _chosen_by(config: TrainConfig, privacy: PrivateRun) -> str:
    guarantee, calibration = config.privacy.guarantee, privacy.plan.calibration
    if guarantee is not None and guarantee.total_eps is not None:
        asked = f"privacy.total_eps={guarantee.total_eps:g}, including the tokenizer"
        return f"the smallest that pld allows for {asked}"
    if guarantee is None or guarantee.eps is None or calibration is None:
        return "given"
    return f"the smallest that {calibration.accountant} allows for privacy.eps={guarantee.eps:g}"


def _mechanism_rows(privacy: PrivateRun) -> list[Row]:
    """Return rows on the relation of sampling and noise between steps; no rows for DP-SGD."""
    mechanism = privacy.plan.mechanism
    if mechanism == DPSGD():
        return []
    fields = {k: v for k, v in mechanism if not isinstance(v, list | dict | tuple)}
    words = [str(fields.pop("name")), *(f"{name}={value}" for name, value in fields.items())]
    rows = [("mechanism", ", ".join(words))]
    if privacy.participations is not None:
        most = privacy.participations
        rows.append(("steps with one unit", f"at most {most}, which determine the cost"))
    return rows


def _clipped_rows(privacy: RunPrivacy) -> list[Row]:
    """Return rows on sampling and clipping in a run without noise; no rows without clipping."""
    if isinstance(privacy, PrivateRun) or not isinstance(privacy.plan, ClippingPlan):
        return []
    return [
        ("noise", "none"),
        ("sampler", SAMPLER),
        ("sample rate", f"{privacy.plan.sample_rate:.8g}"),
        *_clipping_rows(privacy),
    ]


def _clipping_rows(privacy: RunPrivacy) -> list[Row]:
    plan = privacy.plan
    if not isinstance(plan, ClippingPlan):
        return []
    several = "clipping in phase {}, {method}, {steps} steps"
    return [
        (
            "clipping" if len(plan.phases) == 1 else several.format(number, **dict(phase)),
            f"{plan.clipping}, max_grad_norm {phase.max_grad_norm:g},"
            f" sensitivity {phase.sensitivity:g}, of which {privacy.rounding_headroom:.2%} is"
            " reserved for the rounding of the sum",
        )
        for number, phase in enumerate(plan.phases, start=1)
    ]


def _answer(name: str, value: Answer) -> tuple[str, str]:
    if isinstance(value, NoAnswer):
        return "–", f"not computed: {value.error}"
    if isinstance(value, Interval):
        return eps_text(value.upper), f"upper bound; estimate {value.estimate:.4f}"
    return eps_text(value), "estimate, not a bound" if name == "gdp" else "upper bound"
