"""What several runs on the same records cost together, by basic composition.

Epsilons add up, and so do deltas (Dwork & Roth 2014, Theorem 3.16): a bound that always holds and
is never tight. ``dpft account runs=…`` composes the mechanisms themselves.
"""

import math
from collections.abc import Sequence

from dpft.privacy.accounting.rounding import delta_up, up
from dpft.reports.comparison.tables import bases
from dpft.reports.run.run_record import RunRecord, guarantee

STATED = "as its run's privacy.json states it; `dpft account run=…` computes it from the ledger."
APART = (
    "The ε here are not all by one accountant at one δ, so each names its own, and none compares to"
    " one of another δ. Each is"
)


def composed_costs(records: Sequence[RunRecord], unfinished: int) -> list[str]:
    """Returns what the runs on each data set cost together, a sentence each.

    That runs of one task from one source share their records is assumed, and said.

    Args:
        records: The finished runs.
        unfinished: How many more runs have begun.
    """
    data: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        task = record.config["task"]
        place = (str(task["name"]), str(task.get("source")), str(task.get("data_dir")))
        data.setdefault(place, []).append(record)
    sentences = [_cost(place[0], runs) for place, runs in data.items()]
    if unfinished:
        runs = "run has" if unfinished == 1 else "runs have"
        sentences.append(
            f"{unfinished} more {runs} begun and left no report: what was spent there is in none of"
            " these sums; the ledgers tell it."
        )
    found = bases(records)
    if found:
        whose = f"Every ε here is by {found.pop()}," if len(found) == 1 else APART
        sentences.append(f"{whose} {STATED}")
    return sentences


def _cost(task: str, runs: Sequence[RunRecord]) -> str:
    open_runs = [run for run in runs if "epsilon" not in run.privacy or not run.privacy["private"]]
    if open_runs:
        return (
            f"{task}: {len(open_runs)} of {len(runs)} runs were not private; nothing bounds what"
            " all of them together tell of their records."
        )
    kinds = {(run.privacy["unit"], run.privacy["neighboring_relation"]) for run in runs}
    if len(kinds) > 1:
        return (
            f"{task}: the {len(runs)} runs protect different units or neighboring relations, so"
            " their ε cannot be added up."
        )
    if len(runs) == 1:
        return f"{task}: one run, so its ε is the whole cost, if no other used these records."
    costs = [guarantee(run.privacy) for run in runs]
    epsilon = up(math.fsum(epsilon for epsilon, _ in costs))
    delta = delta_up(math.fsum(delta for _, delta in costs))
    return (
        f"{task}: {len(runs)} runs, taken to be on the same records. Whoever sees all of them, or"
        f" one chosen by its score, is covered by basic composition: their ε add up to"
        f" {epsilon}, their δ to {delta}; `dpft account runs=…` composes them by pld at the"
        " smallest of their δ, to a smaller ε."
    )
