"""Sentences, table rows and alarms that a report makes of a run's privacy.json."""

from collections.abc import Sequence

from dpft.config.schema import TrainConfig
from dpft.parallel.parallel_config import LOOPBACK_OF_ONE_MACHINE, NOT_SHARDED, Process
from dpft.privacy.accounting.summary import (
    delta_text,
    eps_text,
)
from dpft.reports.audit_findings import Guesses, GuessesInShort, OneRunAudit, ViewInShort
from dpft.reports.privacy_json import (
    PrivateRun,
    RunPrivacy,
    StartingModel,
    guarantee,
)

Row = tuple[str, str]

NETWORK_ASSUMED = (
    "Assumed: a trusted or encrypted network between the run's machines. Keys and sums without"
    " noise crossed it, and gloo and NCCL neither encrypt nor authenticate."
)


def process_rows(privacy: RunPrivacy) -> list[tuple[str, str]]:
    """Return the rows of the report's table."""
    return [("processes", _words(session)) for session in privacy.processes or ()]


def network_sentences(privacy: RunPrivacy) -> list[str]:
    """Return what epsilon rests on beside the arithmetic, where machines spoke to each other."""
    networks = [session.network for session in privacy.processes or ()]
    return [] if set(networks) <= {None, LOOPBACK_OF_ONE_MACHINE} else [NETWORK_ASSUMED]


def _words(session: Process) -> str:
    if session.world_size == 1:
        return "1"
    held = "the whole model" if session.sharding == NOT_SHARDED else "a shard of the model"
    return (
        f"{session.world_size}, each with {held} (sharding: {session.sharding});"
        f" between them: {session.network}"
    )


def started_from(privacy: RunPrivacy) -> str:
    """Return what is still promised to the records that made the starting model; or nothing."""
    return "".join(f" {_promised(entry)}" for entry in privacy.starting_models or ())


def starting_sentences(privacy: RunPrivacy) -> list[str]:
    """Return a sentence on the total epsilon of a run and of the models that it started from."""
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
        "Each ε is for the records of its own training. For somebody whose records are in all of"
        f" them the costs add up: at most ε = {eps_text(total)} at δ = {delta_text(delta)} (simple"
        " composition)."
    ]


def _promised(entry: StartingModel) -> str:
    what = f"the records of {entry.data or 'its training'}"
    if not entry.private:
        return (
            f"It started from a model that promises nothing to {what}: its noise was predictable."
        )
    epsilon, delta = guarantee(entry)
    relation = str(entry.neighboring_relation).replace("_", " ")
    promise = f"(ε = {eps_text(epsilon)}, δ = {delta_text(delta)})-differentially private"
    return (
        f"It started from a model that is **{promise}** for {what} ({relation} {entry.unit}), as"
        " that model's training recorded; what is done to it without those records"
        " changes nothing of that."
    )


NO_MIXING = "if what is seen of one canary tells nothing of another's coin"
"""What a test of the mechanism by white-box scores assumes (``dpft.audit.guessing``)."""


def is_contradicted(entry: Guesses) -> str | None:
    """Return what to say where a lower bound is above the report's epsilon; None where not."""
    if entry.epsilon is None or entry.epsilon_lower <= entry.epsilon:
        return None
    return (
        f"**THE GUARANTEE IS CONTRADICTED: an audit found ε to be at least"
        f" {entry.epsilon_lower:.2f}, and the report says {eps_text(entry.epsilon)}.** Of audits of"
        f" a right guarantee {_chance(entry.confidence)} say so by chance; audit another run,"
        " and do not release this model."
    )


def is_another_mechanism(entry: Guesses) -> str | None:
    """Return what to say where the mechanism is not the plan's; None where nothing shows it."""
    if not entry.other_mechanism:
        return None
    views: Sequence[Guesses | ViewInShort] = [entry]
    if isinstance(entry, GuessesInShort | OneRunAudit):
        views = entry.views
    telling = [view for view in views if view.other_mechanism]
    assumed = f", {NO_MIXING}," if all(view.assumes_no_mixing for view in telling) else ""
    return (
        "**NOT THIS MECHANISM: an audit found more canaries than the planned noise and sampling"
        " allow, so something else was carried out than what was accounted for.** Of audits of a"
        f" right run {_chance(entry.mechanism_confidence)} say so by chance{assumed}; audit"
        " another run, and do not release this model."
    )


def canary_sentences(config: TrainConfig) -> list[str]:
    """Return what canaries among the records do to epsilon and delta; nothing where none are."""
    if not _has_canaries(config):
        return []
    counted = (
        "Canaries: the number of examples counts canaries of audits, those with a coin whatever it"
        " said, so the sample rate, and a δ that follows from the number, are of records and"
        " canaries together; ε holds for each record, and for each canary, as for any other."
    )
    watched = (
        "White box: each step's noisy gradient was held against every canary's own"
        " (`audit.white_box=true`). ε covers what that shows of records; of canaries it tells the"
        " coins, and stands under `private/`."
    )
    return [counted, watched] if config.audit.white_box else [counted]


def unprotected_canaries(config: TrainConfig, privacy: RunPrivacy) -> list[str]:
    """Return what to say of canaries in a run without privacy; nothing where none are."""
    if isinstance(privacy, PrivateRun) or not _has_canaries(config):
        return []
    return [
        "Warning: canaries of audits are among the records of this run, which is not private: a"
        " lower bound of ε has nothing to stand beside."
    ]


def alarms(privacy: RunPrivacy) -> list[str]:
    """Return the alarms of audits, which a report shows before everything else."""
    if privacy.audited is None or privacy.audited.one_run is None:
        return []
    entry = privacy.audited.one_run
    verdicts = [is_contradicted(entry), is_another_mechanism(entry)]
    return [verdict for verdict in verdicts if verdict]


def audited_rows(privacy: RunPrivacy) -> list[Row]:
    """Return quantity and value of each finding of audits; no rows without an audit."""
    audited = privacy.audited
    if audited is None:
        return []
    rows = [] if audited.one_run is None else one_run_rows(audited.one_run)
    return rows + ([] if audited.exposure is None else list(audited.exposure.rows))


def one_run_rows(entry: Guesses) -> list[Row]:
    """Return what an audit in one run found, quantity and value in words."""
    promised = "none: this run is not private" if entry.epsilon is None else eps_text(entry.epsilon)
    sure = f"{100 * entry.confidence:g} %"
    return [
        ("threat model", entry.threat_model),
        (f"ε is at least, with {sure} confidence", f"{entry.epsilon_lower:.2f}"),
        ("ε is at most, by the accountant", promised),
        ("δ of both", f"{entry.delta:.3g}"),
        ("canaries, each trained on by a secret coin", str(entry.canaries)),
        ("coins guessed, and rightly", f"{entry.guesses}, {entry.correct}"),
        ("the most that so many canaries could show", f"{entry.largest_epsilon_lower:.2f}"),
        ("ε is at least, if the noise is Gaussian", f"{entry.epsilon_lower_if_gaussian:.2f}"),
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
    return [("possible under the planned mechanism", value)]


def _chance(confidence: float) -> str:
    return f"at most {100 * (1 - confidence):.2g} %"
