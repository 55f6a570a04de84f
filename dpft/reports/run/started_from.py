"""What a report says of the model that a run started from, where that one was private already."""

from collections.abc import Mapping
from typing import Any

from dpft.privacy.accounting.rounding import delta_up, up
from dpft.reports.run.run_record import guarantee


def started_from(privacy: Mapping[str, Any]) -> str:
    """Returns what is still promised to the records that made the starting model; or nothing.

    Args:
        privacy: Content of privacy.json.
    """
    return "".join(f" {_promised(entry)}" for entry in privacy.get("starting_models", []))


def starting_sentences(privacy: Mapping[str, Any]) -> list[str]:
    """Returns what the epsilons of a run and of the model that it started from are together."""
    promised = [entry for entry in privacy.get("starting_models", []) if entry["private"]]
    if not promised:
        return []
    costs = [guarantee(entry) for entry in promised]
    if "epsilon" in privacy:
        costs.append(guarantee(privacy))
    if len(costs) == 1:
        return []
    total, delta = (sum(each) for each in zip(*costs, strict=True))
    return [
        "Each ε is for the records of its own training. For somebody whose records are in all of"
        f" them the costs add up: at most ε = {up(total)} at δ = {delta_up(delta)} (simple"
        " composition)."
    ]


def _promised(entry: Mapping[str, Any]) -> str:
    what = f"the records of {entry.get('data', 'its training')}"
    if not entry["private"]:
        return (
            f"It started from a model that promises nothing to {what}: its noise was predictable."
        )
    epsilon, delta = guarantee(entry)
    relation = entry["neighboring_relation"].replace("_", " ")
    promise = f"(ε = {up(epsilon)}, δ = {delta_up(delta)})-differentially private"
    return (
        f"It started from a model that is **{promise}** for {what} ({relation} {entry['unit']}), as"
        " the privacy.json beside that model states; what is done to it without those records"
        " changes nothing of that."
    )
