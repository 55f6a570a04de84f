"""Optimizers by name, a module each."""

from dpft.training.optimizers.base import (
    OPTIMIZERS,
    OptimizerConfig,
    check_works_on_shards,
    make_optimizer,
    optimizer_class,
)

__all__ = [
    "OPTIMIZERS",
    "OptimizerConfig",
    "check_works_on_shards",
    "make_optimizer",
    "optimizer_class",
]
