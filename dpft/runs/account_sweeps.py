"""``dpft account curve=true`` and ``batch_sizes=[...]``: accounting over one number at a time."""

import json
import logging
from pathlib import Path
from typing import Any

from dpft.config.account import AccountConfig
from dpft.files import SCHEMA_VERSION
from dpft.privacy.accounting import Accountants, AccountingReport
from dpft.privacy.accounting.batch_sizes import BatchSizeNoise, noise_over_batch_sizes
from dpft.privacy.accounting.over_steps import epsilon_over_steps
from dpft.privacy.accounting.rounding import delta_up
from dpft.privacy.plan import NEIGHBORING_RELATION, SAMPLER, default_delta
from dpft.reports.accounting.epsilon import delta_warnings
from dpft.reports.accounting.plots import plot_effective_noise, plot_epsilon_over_steps
from dpft.reports.accounting.sweeps import RULE_HOLDS, noise_record, noise_table

logger = logging.getLogger(__name__)


def curve_of(
    config: AccountConfig, report: AccountingReport, leader: str, accountants: Accountants
) -> list[AccountingReport]:
    """Returns the accounting over growing numbers of steps, drawn where ``to`` says so.

    Args:
        config: The command's.
        report: The accounting of all steps.
        leader: The accountant whose bound leads.
        accountants: Running accountants, which keep the answers of ``report``.

    Returns:
        The points, ascending; none where ``curve`` is off.
    """
    if not config.curve:
        return []
    curve = epsilon_over_steps(report.mechanism, accountant=leader, accountants=accountants)
    if config.to is not None:
        plot_epsilon_over_steps(curve, Path(config.to))
        logger.info("plot: %s", config.to)
    return curve


def over_batch_sizes(config: AccountConfig) -> str:
    """Returns what ``batch_sizes`` prints: noise for ``eps`` at fixed steps, at fixed epochs."""
    assert config.num_examples is not None
    delta = default_delta(config.num_examples) if config.delta is None else config.delta
    with Accountants() as accountants:
        sweeps = _sweeps(config, delta, accountants)
    warnings = delta_warnings(delta, config.num_examples)
    for warning in warnings:
        logger.warning(warning)
    if config.to is not None:
        panels = [(f"fixed {fixed}", points) for fixed, points in sweeps.items()]
        plot_effective_noise(panels, Path(config.to))
        logger.info("plot: %s", config.to)
    if config.output == "json":
        return json.dumps(_record(config, delta, sweeps, warnings), indent=2, sort_keys=True)
    head = f"noise for epsilon = {config.eps:g} at delta = {delta_up(delta)}, {config.num_examples}"
    return f"{head} examples\n\n{noise_table(sweeps)}"


def _sweeps(
    config: AccountConfig, delta: float, accountants: Accountants
) -> dict[str, list[BatchSizeNoise]]:
    assert config.batch_sizes is not None
    assert config.eps is not None
    assert config.num_examples is not None
    fixed: dict[str, dict[str, Any]] = {
        f"steps = {config.steps}": {"steps": config.steps},
        f"epochs = {config.epochs}": {"epochs": config.epochs},
    }
    return {
        name: noise_over_batch_sizes(
            config.batch_sizes,
            eps=config.eps,
            delta=delta,
            num_examples=config.num_examples,
            accountant=config.leader,
            accountants=accountants,
            **value,
        )
        for name, value in fixed.items()
        if None not in value.values()
    }


def _record(
    config: AccountConfig,
    delta: float,
    sweeps: dict[str, list[BatchSizeNoise]],
    warnings: list[str],
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "eps": config.eps,
        "delta": delta,
        "num_examples": config.num_examples,
        "neighboring_relation": NEIGHBORING_RELATION,
        "sampler": SAMPLER,
        "square_root_rule": RULE_HOLDS,
        "warnings": warnings,
    }
    for name, points in sweeps.items():
        fixed = name.partition(" ")[0]
        record[f"fixed_{fixed}"] = {
            fixed: getattr(config, fixed),
            "points": noise_record(points),
        }
    return record
