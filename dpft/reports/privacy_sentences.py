"""Sentences, table rows and alarms of a report that are derived from a run's privacy.json."""

from collections.abc import Sequence

from dpft.config.schema import TrainConfig
from dpft.parallel.parallel_config import LOOPBACK_OF_ONE_MACHINE, NOT_SHARDED, Process
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.reports.audit_findings import Guesses, GuessesInShort, OneRunAudit, ViewInShort
from dpft.reports.privacy_json import PrivateRun, RunPrivacy, StartingModel, guarantee

Row = tuple[str, str]

NETWORK_ASSUMED = (
    "Assumed: a trusted or encrypted network between the machines of the run. Keys and sums without"
    " noise were sent over it, and gloo and NCCL neither encrypt nor authenticate."
)


def process_rows(privacy: RunPrivacy) -> list[tuple[str, str]]:
    """Return a row of the report's table for each group of processes that took steps."""
    return [("processes", _words(session)) for session in privacy.processes or ()]


def network_sentences(privacy: RunPrivacy) -> list[str]:
    """Return the assumption about the network on which ε relies, if a run used several machines."""
    networks = [session.network for session in privacy.processes or ()]
    return [] if set(networks) <= {None, LOOPBACK_OF_ONE_MACHINE} else [NETWORK_ASSUMED]


def _words(session: Process) -> str:
    if session.world_size == 1:
        return "1"
    held = "the whole model" if session.sharding == NOT_SHARDED else "a shard of the model"
    return (
        f"{session.world_size}, each with {held} (sharding: {session.sharding});"
        f" network: {session.network}"
    )


def started_from(privacy: RunPrivacy) -> str:
    """Return the guarantee for the records of each starting model; empty without such a model."""
    return "".join(f" {_promised(entry)}" for entry in privacy.starting_models or ())


def starting_sentences(privacy: RunPrivacy) -> list[str]:
    """Return a sentence on the total ε of a run and of the models that it started from."""
    promised = [entry for entry in privacy.starting_models or () if entry.private]
    if not promised:
        return []
    costs = [guarantee(entry) for entry in promised]
    if isinstance(privacy, PrivateRun):
        costs.append(guarantee(privacy))
    if len(costs) == 1:
        return []
    total, delta = (sum(values) for values in zip(*costs, strict=True))
    return [
        "Each ε is for the records of its own training. For a person with records in all of them,"
        f" the costs add up to at most ε = {eps_text(total)}, δ = {delta_text(delta)} (simple"
        " composition)."
    ]


def _promised(entry: StartingModel) -> str:
    what = f"the records of {entry.data or 'its training'}"
    if not entry.private:
        return f"The starting model has no guarantee for {what}: its noise was predictable."
    epsilon, delta = guarantee(entry)
    relation = str(entry.neighboring_relation).replace("_", " ")
    promise = f"(ε = {eps_text(epsilon)}, δ = {delta_text(delta)})-differentially private"
    return (
        f"The starting model is **{promise}** for {what} ({relation} {entry.unit}), according to"
        " the record of its training. Training without those records does not change this."
    )


NO_MIXING = "if the scores of one canary reveal nothing about another canary's coin"
"""Assumption of a test of the mechanism by white-box scores (``dpft.audit.guessing``)."""


def is_contradicted(entry: Guesses) -> str | None:
    """Return an alarm if a lower bound is above the reported ε, otherwise None."""
    if entry.epsilon is None or entry.epsilon_lower <= entry.epsilon:
        return None
    return (
        "**THE GUARANTEE IS CONTRADICTED: an audit found that ε is at least"
        f" {entry.epsilon_lower:.2f}, but this report states {eps_text(entry.epsilon)}.** If the"
        f" guarantee holds, an audit finds this {_chance(entry.confidence)}. Audit another run, and"
        " do not release this model."
    )


def is_another_mechanism(entry: Guesses) -> str | None:
    """Return an alarm if the mechanism differs from the plan, otherwise None."""
    if not entry.other_mechanism:
        return None
    views: Sequence[Guesses | ViewInShort] = [entry]
    if isinstance(entry, GuessesInShort | OneRunAudit):
        views = entry.views
    telling = [view for view in views if view.other_mechanism]
    assumed = f", {NO_MIXING}" if all(view.assumes_no_mixing for view in telling) else ""
    return (
        "**NOT THIS MECHANISM: an audit identified more canaries than the planned noise and"
        " sampling allow. The training differs from what was accounted for.** If the run follows"
        f" its plan, an audit finds this {_chance(entry.mechanism_confidence)}{assumed}. Audit"
        " another run, and do not release this model."
    )


def canary_sentences(config: TrainConfig) -> list[str]:
    """Return the effect of canaries on ε and δ; empty without canaries among the records."""
    if not _has_canaries(config):
        return []
    counted = (
        "Canaries: the number of examples includes the canaries of audits, whether or not their"
        " coins include them in the training. The sample rate, and a δ that depends on this number,"
        " are therefore those of records and canaries together. ε holds for each record and canary."
    )
    watched = (
        "White box: the noisy gradient of each step was compared with the gradient of every canary"
        " (`audit.white_box=true`). ε covers what this reveals about records. For canaries it"
        " reveals the coins, and is stored under `private/`."
    )
    return [counted, watched] if config.audit.white_box else [counted]


def unprotected_canaries(config: TrainConfig, privacy: RunPrivacy) -> list[str]:
    """Return a warning on canaries in a run without privacy; otherwise an empty list."""
    if isinstance(privacy, PrivateRun) or not _has_canaries(config):
        return []
    return [
        "Warning: the records of this run include canaries of audits, but the run is not private."
        " There is no ε to compare a lower bound with."
    ]


def alarms(privacy: RunPrivacy) -> list[str]:
    """Return the alarms of audits, which a report shows before the guarantee."""
    if privacy.audited is None or privacy.audited.one_run is None:
        return []
    entry = privacy.audited.one_run
    verdicts = [is_contradicted(entry), is_another_mechanism(entry)]
    return [verdict for verdict in verdicts if verdict]


def audited_rows(privacy: RunPrivacy) -> list[Row]:
    """Return a row (quantity, value) for each audit result; no rows without an audit."""
    audited = privacy.audited
    if audited is None:
        return []
    rows = [] if audited.one_run is None else one_run_rows(audited.one_run)
    return rows + ([] if audited.exposure is None else list(audited.exposure.rows))


def one_run_rows(entry: Guesses) -> list[Row]:
    """Return the rows (quantity, value) for the results of an audit in one run."""
    promised = "none: this run is not private" if entry.epsilon is None else eps_text(entry.epsilon)
    sure = f"{100 * entry.confidence:g} %"
    return [
        ("threat model", entry.threat_model),
        (f"lower bound of ε ({sure} confidence)", f"{entry.epsilon_lower:.2f}"),
        ("upper bound of ε (accountant)", promised),
        ("δ of both bounds", delta_text(entry.delta)),
        ("canaries, each included by a secret coin", str(entry.canaries)),
        ("guesses", f"{entry.guesses}, of which {entry.correct} are correct"),
        ("largest lower bound with these canaries", f"{entry.largest_epsilon_lower:.2f}"),
        ("lower bound of ε for Gaussian noise", f"{entry.epsilon_lower_if_gaussian:.2f}"),
        *_against_plan(entry),
    ]


def _has_canaries(config: TrainConfig) -> bool:
    return bool(config.audit.canaries or config.audit.exposure_canaries)


def _against_plan(entry: Guesses) -> list[Row]:
    if entry.p_value_of_plan is None:
        return []
    verdict = "no" if entry.other_mechanism else "yes"
    assumed = f", {NO_MIXING}" if entry.assumes_no_mixing else ""
    value = f"{verdict} (p = {entry.p_value_of_plan:.2g}{assumed})"
    return [("consistent with the planned mechanism", value)]


def _chance(confidence: float) -> str:
    return f"by chance with a probability of at most {100 * (1 - confidence):.2g} %"
