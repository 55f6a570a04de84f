"""Models, layers and losses that library users bring: exact, or rejected in a clear sentence."""

import warnings
from itertools import product

import pytest

from tests.privacy.clipping.cases import (
    batches,
    calls,
    hooks,
    layers,
    losses,
    mixing,
    ordinary,
    weights,
)
from tests.privacy.clipping.cases.case import Case, Right, mixes, verdict_of
from tests.privacy.clipping.oracle import ENGINES
from tests.slowness import slow_but

FILES = (mixing, losses, calls, batches, hooks, layers, weights, ordinary)
CASES: dict[str, Case] = {
    f"{file.__name__.rpartition('.')[2]}/{case.name}": case
    for file in FILES
    for case in file.cases()
}
"""Every case, by the name of its file and its own."""
QUICK = [(name, ENGINES[k % len(ENGINES)]) for k, name in enumerate([*CASES][::31])]


@pytest.mark.parametrize(("name", "engine"), slow_but(QUICK, product(CASES, ENGINES)))
def test_the_sum_is_that_of_single_example_execution_or_rejected(name, engine):
    case = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdict = verdict_of(case, engine)
    right = case.right.allows(verdict.outcome, engine)
    assert right, f"{verdict.outcome.value}: {verdict.words}"


def test_every_case_has_a_name_of_its_own():
    assert len(CASES) == sum(len(list(file.cases())) for file in FILES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [n for n, case in CASES.items() if case.right in (Right.MIXING, Right.MIXING_GRADIENTS)],
)
def test_what_must_be_rejected_does_mix(name):
    assert mixes(CASES[name])
