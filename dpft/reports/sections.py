"""The sections of a run's report and of its model card.

Every part is public: it follows from config.yaml and privacy.json. Sentences mark code and stress
as Markdown does.
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
from dpft.reports.privacy_json import OpenRun, PrivateRun, RunPrivacy, Selection, guarantee
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
from dpft.reports.run_record import data_name, model_title
from dpft.run_folder import LEDGER
from dpft.strict_model import as_json
from dpft.tasks.base import TextualTask
from dpft.tasks.custom import CustomLabels
from dpft.tasks.images import ImageTask

HEAD_COMMAND = f"tail -n 1 {LEDGER} | tr -d '\\n' | sha256sum"
LEDGER_NOTE = (
    "The ledger has a first line with the plan (every public number that ε rests on) and a random"
    " number that names the run, one line per noisy step, written before the step moved a weight,"
    " and a closing line with the digest of the released weights. Each line holds, as `previous`,"
    " the SHA-256 of the line before (its UTF-8 bytes without the line end, in hexadecimal; 64"
    " zeros in the first line), and the head is the SHA-256 of the last line:"
    f" `{HEAD_COMMAND}` computes it. No other run has this head. Whoever owns the files could"
    " rewrite them all, so publish the head above elsewhere. `dpft account run=RUN head=HEAD`"
    " computes ε from the ledger, as this report did, and compares the head."
)
PREDICTABLE = "**NOT PRIVATE: reproducible run, its noise was predictable (`privacy.noise_seed`).**"
"""The headline of a run whose noise a test's seed made."""
Row = tuple[str, str]


def sections(
    config: TrainConfig, privacy: RunPrivacy, evaluations: Sequence[ScoreEntry]
) -> dict[str, Any]:
    """Return every part by the name that templates have for it."""
    answers = privacy.epsilons if isinstance(privacy, PrivateRun) else {}
    return {
        "title": title(config, privacy),
        "alarms": alarms(privacy),
        "headline": headline(privacy),
        "warnings": warnings(config, privacy),
        "training": training_rows(config, privacy),
        "mechanism": mechanism_rows(config, privacy),
        "accountants": [(name, *_answer(name, value)) for name, value in answers.items()],
        "audited": audited_rows(privacy),
        "ledger_note": LEDGER_NOTE,
        "coverage": coverage(config, privacy, evaluations),
    }


def title(config: TrainConfig, privacy: RunPrivacy) -> str:
    """Return what was trained on what, how, and when where that is known."""
    day = f", begun {privacy.date}" if privacy.date is not None else ""
    method = config.method.name
    return f"{model_title(config, privacy)} on {data_name(config.task)}, method {method}{day}"


def origin_rows(config: TrainConfig, privacy: RunPrivacy) -> list[Row]:
    """Return the names of model and data, the day and the versions as far as they are known."""
    versions = ", ".join(
        f"{name} {number}" for name, number in as_json(privacy.versions or {}).items()
    )
    rows = [("model", model_title(config, privacy)), ("data", data_name(config.task))]
    rows += [("begun on (UTC)", privacy.date)] if privacy.date is not None else []
    rows += [("versions", versions)] if versions else []
    rows += [("commit of dpft", f"`{privacy.commit}`")] if privacy.commit is not None else []
    return rows


def headline(privacy: RunPrivacy) -> str:
    """Return epsilon with all that it depends on (trust rule 6), or "NOT PRIVATE"."""
    if not isinstance(privacy, PrivateRun):
        return f"**NOT PRIVATE: {not_private(privacy)}.**{started_from(privacy)}"
    if not privacy.private:
        return f"{PREDICTABLE}{started_from(privacy)}"
    plan = privacy.plan
    relation = plan.neighboring_relation.replace("_", " ")
    return (
        f"**(ε = {eps_text(privacy.epsilon)}, δ = {delta_text(privacy.delta)})-differentially"
        " private**,"
        f" by {privacy.accountant} (upper bound), {relation} {plan.unit},"
        f" {plan.sampler} sampling, {privacy.steps_taken} steps taken of"
        f" {plan.steps} planned."
        f"{what_epsilon_is_of(privacy)}{started_from(privacy)}"
    )


def not_private(privacy: OpenRun) -> str:
    """Return in what way a run with ``privacy=none`` is not private, a clause in Markdown."""
    without = "this model was trained without differential privacy (`privacy=none`)"
    if not isinstance(privacy.plan, ClippingPlan):
        return without
    norm = privacy.plan.phases[0].max_grad_norm
    return (
        f"{without}: each example's gradient was clipped (`privacy.max_grad_norm={norm:g}`), and no"
        " noise was added"
    )


def what_epsilon_is_of(privacy: PrivateRun) -> str:
    """Return what epsilon covers besides the training, and what a private tokenizer adds to it."""
    scope = "the training alone"
    if privacy.plan.counts is not None:
        scope = "the training and the histogram of its synthesis together"
    if privacy.with_tokenizer is None:
        return "" if privacy.plan.counts is None else f" That is {scope}."
    epsilon, delta = guarantee(privacy)
    return (
        f" That is {scope}; the model comes with a tokenizer that the records made, too,"
        f" and both together are **(ε = {eps_text(epsilon)}, δ = {delta_text(delta)})"
        "-differentially private**."
    )


def warnings(config: TrainConfig, privacy: RunPrivacy) -> list[str]:
    """Return the warnings below the headline, one sentence each."""
    shown = isinstance(privacy, PrivateRun) and config.privacy.show_diagnostics
    losses = (
        "**Training losses were shown while training (`privacy.show_diagnostics=true`), and with"
        " them the time of each step; ε does not cover them.**"
    )
    sentences = [f"Warning: {warning}" for warning in privacy.warnings]
    sentences += unprotected_canaries(config, privacy)
    return [losses, *sentences] if shown else sentences


def training_rows(config: TrainConfig, privacy: RunPrivacy) -> list[Row]:
    """Return how the model was trained, quantity and value."""
    plan = privacy.plan
    phases = plan.phases if isinstance(plan, ClippingPlan) else ()
    units = isinstance(plan, PrivacyPlan) and plan.unit != EXAMPLE
    rate = f"{config.train.learning_rate:g}, schedule {config.scheduler.name}"
    held_out = config.eval.held_out
    kept = (
        f"each {'unit' if units else 'record'} with probability {held_out or 0:g}, by a secret key:"
        " scored, not trained on"
    )
    parameters = privacy.parameters
    task = config.task
    is_of_labels = isinstance(task, CustomLabels)
    is_default = is_of_labels and config.method.name == "linear_probe"
    return [
        *origin_rows(config, privacy),
        *([("method", DEFAULT_FOR_LABELS)] if is_default else []),
        ("trainable parameters", f"{parameters.trainable:,} of {parameters.total:,}"),
        ("new parameters among them", f"{parameters.new:,}"),
        ("steps", f"{plan.steps}"),
        ("expected batch size", f"{plan.expected_batch_size}{' units' if units else ''}"),
        *_clipped_rows(privacy),
        *([] if held_out is None else [("held out", kept)]),
        ("learning rate", rate + ("; that of phase 1" if len(phases) > 1 else "")),
        ("weight decay", f"{config.train.weight_decay:g}"),
        ("optimizer", config.optimizer.name),
        *input_rows(config),
        ("precision", precision_note(config.train.precision)),
    ]


def input_rows(config: TrainConfig) -> list[Row]:
    """Return how every record is prepared before the model reads it; public constants."""
    task, model = config.task, config.model
    rows: list[Row] = []
    if isinstance(task, TextualTask) and task.max_length is not None:
        rows.append(("longest example", f"{task.max_length} tokens"))
    if isinstance(task, ImageTask):
        size, views = task.image_size, task.augmentations
        preparation = f"{size} x {size}, less mean {task.mean}, by {task.std}"
        rows.append(("images", preparation))
        if views:
            rows.append(("random views of a record", f"{views}, clipped as one"))
    if model.replace_batch_norm:
        rows.append(("BatchNorm", "each replaced by a GroupNorm before training"))
    if model.standardize_weights:
        rows.append(("convolutions", "their weights standardized"))
    return rows


def precision_note(precision: str) -> str:
    """Return what a model computed in, and what that does to how far a record moves a sum."""
    if precision == "fp32":
        return f"{precision}, TF32 and sums in half precision switched off"
    return (
        f"{precision}, norms and sums float32 without TF32. A longer record pads the others of its"
        " micro-batch, which rounds their gradients anew: bf16 was measured to move the others' sum"
        " by up to 2.6e-3 of max_grad_norm and the whole sum by up to 1.0001 of it, where the"
        " sensitivity says 1; ε does not count that excess, and no bound on it is proved"
    )


def mechanism_rows(config: TrainConfig, privacy: RunPrivacy) -> list[Row]:
    """Return the mechanism, quantity and value; none for a run without privacy."""
    if not isinstance(privacy, PrivateRun):
        return []
    plan, ledger = privacy.plan, privacy.ledger
    examples = "examples" if plan.unit == EXAMPLE else "units"
    seeded = "seeded for a test: predictable"
    return [
        ("ε (upper bound)", eps_text(privacy.epsilon)),
        ("δ", delta_text(privacy.delta)),
        *_tokenizer_rows(privacy),
        ("accountant", privacy.accountant),
        ("neighboring relation", plan.neighboring_relation),
        ("unit", f"{plan.unit}: {plan.unit_definition}"),
        ("sampler", plan.sampler),
        ("sample rate", f"{plan.sample_rate:.8g}"),
        *_mechanism_rows(privacy),
        (
            f"number of {examples}",
            f"{plan.num_examples} ({privacy.num_examples_source}); ε does not hide it",
        ),
        ("steps taken of planned", f"{privacy.steps_taken} of {plan.steps}"),
        ("noise multiplier", f"{plan.noise_multiplier:.6g}, {_chosen_by(config, privacy)}"),
        *_clipping_rows(privacy),
        ("noise source", privacy.noise_source if privacy.private else seeded),
        *([("dropout", privacy.dropout_source)] if privacy.private else []),
        *process_rows(privacy),
        ("ledger", f"{ledger.lines} lines, head `{ledger.head}`"),
    ]


def _tokenizer_rows(privacy: PrivateRun) -> list[Row]:
    """Return the cost of a private tokenizer, alone and with the training; no rows otherwise."""
    if privacy.with_tokenizer is None:
        return []
    tokenizer = privacy.with_tokenizer.tokenizer
    epsilon, delta = guarantee(privacy)
    composed = f" composed by pld; added up ε {eps_text(tokenizer.simple_composition)}"
    if epsilon >= tokenizer.simple_composition:
        composed = " added up"
    both = f"ε {eps_text(epsilon)}, δ {delta_text(delta)},{composed}"
    return [
        ("tokenizer", f"ε {eps_text(tokenizer.epsilon)}, δ {delta_text(tokenizer.delta)}"),
        ("tokenizer's ledger", f"{tokenizer.ledger.lines} lines, head `{tokenizer.ledger.head}`"),
        ("training and tokenizer", both),
    ]


def coverage(
    config: TrainConfig, privacy: RunPrivacy, evaluations: Sequence[ScoreEntry]
) -> list[str]:
    """Return what epsilon covers and what it does not, a sentence each."""
    if not isinstance(privacy, PrivateRun):
        return starting_sentences(privacy)
    covered = [
        "Covered: the released model, as a function of the training records, against anyone who"
        " sees the model and this report.",
        "Not covered: other runs on the same records, and any choice among runs by their scores on"
        " private records; their costs add up.",
    ]
    seeded = [
        "Nothing is covered: whoever knows or guesses `privacy.noise_seed` can subtract the noise."
        " ε above is what the same run would have with secret randomness."
    ]
    private = [entry for entry in evaluations if not entry.split_is_public and entry.metrics]
    shown = config.privacy.show_diagnostics
    counted = "examples" if privacy.plan.unit == EXAMPLE else "units"
    searched = _search(privacy.selection) if privacy.selection is not None else []
    return [
        *([covered[0], *searched, covered[1]] if privacy.private else seeded),
        "Not covered: everything under `private/`, which must not be released.",
        "Not covered: how long steps took, since a step that drew more records takes longer. To"
        " blur this, the run showed its progress once in ten steps, or less often.",
        *([_SCORES_NOT_COVERED] if private else []),
        *([_LOSSES_NOT_COVERED] if shown else []),
        *starting_sentences(privacy),
        *network_sentences(privacy),
        *delta_notes(privacy.plan.num_examples, source=privacy.plan.delta_source),
        *canary_sentences(config),
        f"Not private at all: the configuration, the number of {counted} above among it.",
    ]


_SCORES_NOT_COVERED = (
    "Not covered: the scores of private records that this report shows, rounded to two digits"
    " (`eval.publish_private_scores=true`)."
)
_LOSSES_NOT_COVERED = (
    "Not covered: the training losses that were shown while training"
    " (`privacy.show_diagnostics=true`), and with them the time of each step."
)


def _search(selection: Selection) -> list[str]:
    """Return what a search's epsilon covers beyond a run's, and what it does not."""
    return [
        "Covered: that it is the best of a secret random number of runs, of"
        f" {selection.expected_trials:.4g} in expectation (eta {selection.eta:g}, gamma"
        f" {selection.gamma:g}), chosen by a score on a public split ({selection.theorem}).",
        "Not covered: how many runs there were, the others' models, scores and ledgers, and how"
        " long the search took, which tells how many there were: public files have the time of its"
        " beginning, so publish nothing that shows its end.",
    ]


def _chosen_by(config: TrainConfig, privacy: PrivateRun) -> str:
    guarantee, calibration = config.privacy.guarantee, privacy.plan.calibration
    if guarantee is not None and guarantee.total_eps is not None:
        asked = f"privacy.total_eps={guarantee.total_eps:g}, tokenizer included"
        return f"the least that pld allows for {asked}"
    if guarantee is None or guarantee.eps is None or calibration is None:
        return "given"
    return f"the least that {calibration.accountant} allows for privacy.eps={guarantee.eps:g}"


def _mechanism_rows(privacy: PrivateRun) -> list[Row]:
    """Return how noise and draws hang together; nothing of DP-SGD, where they do not."""
    mechanism = privacy.plan.mechanism
    if mechanism == DPSGD():
        return []
    fields = {k: v for k, v in mechanism if not isinstance(v, list | dict | tuple)}
    words = [str(fields.pop("name")), *(f"{name}={value}" for name, value in fields.items())]
    rows = [("mechanism", ", ".join(words))]
    if privacy.participations is not None:
        most = privacy.participations
        rows.append(("steps that a unit is in", f"{most} at most, which are what costs"))
    return rows


def _clipped_rows(privacy: RunPrivacy) -> list[Row]:
    """Return how a run without noise draws and clips; nothing of ordinary training."""
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
            f" sensitivity {phase.sensitivity:g}, of which {privacy.rounding_headroom:.2%} is left"
            " for the rounding of the sum",
        )
        for number, phase in enumerate(plan.phases, start=1)
    ]


def _answer(name: str, value: Answer) -> tuple[str, str]:
    if isinstance(value, NoAnswer):
        return "–", f"not computed: {value.error}"
    if isinstance(value, Interval):
        return eps_text(value.upper), f"upper bound; estimate {value.estimate:.4f}"
    return eps_text(value), "estimate, no guarantee" if name == "gdp" else "upper bound"
