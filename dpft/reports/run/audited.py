"""What a run's report says of its audits: lower bounds beside epsilon, which they never change."""

from collections.abc import Sequence

from dpft.privacy.accounting.rounding import up
from dpft.records.audits import Guesses, GuessesInShort, OneRunAudit, ViewInShort
from dpft.records.configuration import RunConfiguration
from dpft.records.privacy_file import RunPrivacy
from dpft.records.promises import PrivateRun

Row = tuple[str, str]
NO_MIXING = "if what is seen of one canary tells nothing of another's coin"
"""What a test of the mechanism by white-box scores assumes (``dpft.audit.guessing``)."""


def is_contradicted(entry: Guesses) -> str | None:
    """Returns what to say where a lower bound is above the report's epsilon; None where not."""
    if entry.epsilon is None or entry.epsilon_lower <= entry.epsilon:
        return None
    return (
        f"**THE GUARANTEE IS CONTRADICTED: an audit found ε to be at least"
        f" {entry.epsilon_lower:.2f}, and the report says {up(entry.epsilon)}.** Of audits of"
        f" a right guarantee {_chance(entry.confidence)} say so by chance; audit another run,"
        " and do not release this model."
    )


def is_another_mechanism(entry: Guesses) -> str | None:
    """Returns what to say where the mechanism is not the plan's; None where nothing shows it."""
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


def canary_sentences(config: RunConfiguration) -> list[str]:
    """Returns what canaries among the records do to epsilon and delta; nothing where none are."""
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
    is_watched = config.audit is not None and config.audit.white_box
    return [counted, watched] if is_watched else [counted]


def unprotected_canaries(config: RunConfiguration, privacy: RunPrivacy) -> list[str]:
    """Returns what to say of canaries in a run without privacy; nothing where none are."""
    if isinstance(privacy, PrivateRun) or not _has_canaries(config):
        return []
    return [
        "Warning: canaries of audits are among the records of this run, which is not private: a"
        " lower bound of ε has nothing to stand beside."
    ]


def alarms(privacy: RunPrivacy) -> list[str]:
    """Returns what stands before everything else in a report, as found by audits."""
    if privacy.audited is None or privacy.audited.one_run is None:
        return []
    entry = privacy.audited.one_run
    return [said for said in (is_contradicted(entry), is_another_mechanism(entry)) if said]


def audited_rows(privacy: RunPrivacy) -> list[Row]:
    """Returns quantity and value of what audits found; none where none was made."""
    found = privacy.audited
    if found is None:
        return []
    rows = [] if found.one_run is None else one_run_rows(found.one_run)
    return rows + ([] if found.exposure is None else list(found.exposure.rows))


def one_run_rows(entry: Guesses) -> list[Row]:
    """Returns what an audit in one run found, quantity and value in words."""
    promised = "none: this run is not private" if entry.epsilon is None else up(entry.epsilon)
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


def _has_canaries(config: RunConfiguration) -> bool:
    asked = config.audit
    return asked is not None and bool(asked.canaries or asked.exposure_canaries)


def _against_plan(entry: Guesses) -> list[Row]:
    if entry.p_value_of_plan is None:
        return []
    verdict = "no" if entry.other_mechanism else "yes"
    assumed = f", {NO_MIXING}" if entry.assumes_no_mixing else ""
    value = f"{verdict} (p = {entry.p_value_of_plan:.2g}{assumed})"
    return [("possible under the planned mechanism", value)]


def _chance(confidence: float) -> str:
    return f"at most {100 * (1 - confidence):.2g} %"
