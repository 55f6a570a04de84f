"""Which tests run in ``make test``, which in ``make test-slow`` and which in neither.

``make test`` runs what is not marked as slow. CI runs ``make test-slow`` as well. The slow tests
of the files in ``ONE_IN`` take too long for CI. It runs a sample of them, and
``make test-exhaustive`` runs the others, those that ``exhaustive_but`` leaves out, and those with
the mark ``exhaustive``. ``make release`` runs them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

LEFT_OUT = False
"""Whether slow cases are not even made, set by tests/conftest.py where none of them is asked for:
they are a third of all tests, and making them is a third of what collection takes."""
ONE_IN = {
    "audit/test_memorization.py": 2,
    "benchmarks/test_architectures.py": 0,
    "benchmarks/test_capacity.py": 0,
    "benchmarks/test_clipping.py": 0,
    "benchmarks/test_complexity.py": 0,
    "benchmarks/test_records.py": 0,
    "benchmarks/test_whole_runs.py": 0,
    "cli/test_hydra_errors.py": 4,
    "cli/test_list.py": 6,
    "commands/test_closing_summary.py": 7,
    "commands/test_loading_shards.py": 8,
    "commands/test_published_epsilons.py": 8,
    "commands/test_resuming.py": 3,
    "commands/test_tuning_search.py": 5,
    "config/test_conf.py": 10,
    "config/test_numbers.py": 4,
    "config/test_recipe_sweeps.py": 8,
    "config/test_recipes.py": 12,
    "docs/test_migrate.py": 3,
    "docs/test_reference.py": 8,
    "evaluation/test_challenge_outputs.py": 2,
    "evaluation/test_local_metric.py": 4,
    "fixtures/test_ledgers_of_v0_3.py": 8,
    "methods/test_all.py": 3,
    "methods/test_lora.py": 6,
    "methods/test_peft_method.py": 6,
    "models/test_quantization.py": 2,
    "parallel/test_exact.py": 16,
    "parallel/test_shards.py": 3,
    "privacy/accounting/test_rdp.py": 4,
    "privacy/accounting/test_whole_range.py": 0,
    "privacy/clipping/architectures/test_architectures.py": 5,
    "privacy/clipping/test_cases.py": 10,
    "privacy/clipping/test_crafted_records.py": 30,
    "privacy/clipping/test_released_state.py": 2,
    "privacy/clipping/test_rules.py": 3,
    "privacy/clipping/test_styles.py": 4,
    "privacy/test_methods_twin.py": 6,
    "privacy/test_pairs.py": 2,
    "privacy/test_units_twin.py": 2,
    "stories/test_bad_folders.py": 4,
    "stories/test_ending_ranks.py": 8,
    "stories/test_every_recipe.py": 30,
    "stories/test_faulty_records.py": 4,
    "stories/test_glue.py": 6,
    "stories/test_images.py": 4,
    "stories/test_kill.py": 2,
    "stories/test_killed_ranks.py": 10,
    "stories/test_mechanisms.py": 3,
    "stories/test_methods.py": 5,
    "stories/test_multimodal.py": 10,
    "stories/test_planted_bugs.py": 10,
    "stories/test_signals.py": 4,
    "stories/test_submitted.py": 10,
    "synthesis/test_synthesis.py": 5,
    "test_pretended_device.py": 3,
    "training/test_banded_on_ranks.py": 4,
    "training/test_banded_run.py": 4,
    "training/test_frozen_state.py": 3,
    "training/test_loss_scale.py": 3,
    "training/test_private_run.py": 4,
    "training/test_session_on_ranks.py": 6,
    "training/test_sharded_checkpoint.py": 20,
    "training/test_sharded_runs.py": 30,
    "training/test_windows.py": 8,
    "zoo/test_families.py": 4,
}
"""By file: CI runs the first slow case of each test function and then one in so many. It runs none
if the number is 0; such a file has other tests of the same code."""


def mark_exhaustive(items: Iterable[pytest.Item], root: Path) -> None:
    """Mark the slow cases that CI does not run.

    Args:
        items: The collected cases.
        root: The folder of the tests, which the names in ``ONE_IN`` are relative to.

    Raises:
        ValueError: A file of ``ONE_IN`` does not exist.
    """
    if missing := [file for file in ONE_IN if not (root / file).is_file()]:
        raise ValueError(f"ONE_IN must name files of tests, got {missing}")
    seen: Counter[tuple[str, str]] = Counter()
    for item in items:
        file = item.path.relative_to(root).as_posix()
        if file not in ONE_IN or item.get_closest_marker("slow") is None:
            continue
        function = (file, getattr(item, "originalname", item.name))
        if ONE_IN[file] == 0 or seen[function] % ONE_IN[file]:
            item.add_marker(pytest.mark.exhaustive)
        seen[function] += 1


def slow(*cases: Sequence[Any]) -> list[Any]:
    """Return cases of several values each that ``make test`` leaves to ``make test-slow``."""
    return [] if LEFT_OUT else [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


def slow_but(fast: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return all values, those that are not among ``fast`` as slow cases.

    Raises:
        ValueError: One of ``fast`` is not among the values: it would silently not be tested.
    """
    listed = list(values)
    missing = [value for value in fast if value not in listed]
    if missing:
        raise ValueError(f"fast must be among the values, got {missing}")
    if LEFT_OUT and fast:
        return [value for value in listed if value in fast]
    return [value if value in fast else _slow(value) for value in listed]


def exhaustive_but(kept: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return all values, those that are not among ``kept`` as cases that CI leaves out.

    Raises:
        ValueError: One of ``kept`` is not among the values.
    """
    listed = list(values)
    if missing := [value for value in kept if value not in listed]:
        raise ValueError(f"kept must be among the values, got {missing}")
    if LEFT_OUT:
        return [value for value in listed if value in kept]
    marks = (pytest.mark.slow, pytest.mark.exhaustive)
    return [v if v in kept else pytest.param(*_parts(v), marks=marks) for v in listed]


def slow_but_every(number: int, values: Iterable[Any]) -> list[Any]:
    """Return all values, of which ``make test`` has the first of each so many: they are alike."""
    listed = list(values)
    return slow_but(listed[::number], listed)


def slow_but_each(*values: Collection[Any]) -> list[Any]:
    """Return the whole grid of some values, of which ``make test`` has each value at least once.

    The fast cases are as many as the longest list has values. A shorter list begins anew where it
    ends, each time one further on, so that it does not meet the same values of another again.
    """
    lists = [list(each) for each in values]
    fast = [
        tuple(each[(row + row // len(each)) % len(each)] for each in lists)
        for row in range(max(map(len, lists)))
    ]
    return slow_but(fast, product(*lists))


def without_slow(cases: Iterable[Any]) -> list[Any]:
    """Return cases that may be marked as slow, less those where no slow one is asked for."""
    return [case for case in cases if not (LEFT_OUT and pytest.mark.slow in case.marks)]


def _slow(value: Any) -> Any:
    if hasattr(value, "marks"):  # one that is slow already
        return value
    return pytest.param(*_parts(value), marks=pytest.mark.slow)


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
