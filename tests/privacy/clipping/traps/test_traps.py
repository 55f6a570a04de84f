"""Layers, losses and traps that library users bring: exact, or refused in a clear sentence."""

import warnings
from collections import Counter

import pytest

from tests.privacy.clipping.traps import (
    arguments,
    calls,
    closures,
    coincidences,
    engines,
    hooks,
    layers,
    loss_objects,
    losses,
    mixing,
    mixing_later,
    mixing_rarely,
    ordinary,
    pairs,
    recurrent,
    sequences,
    weights,
)
from tests.privacy.clipping.traps.known import NOT_YET
from tests.privacy.clipping.traps.trial import Case, Right, mixes, verdict_of
from tests.slowness import without_slow

FILES = (
    mixing,
    mixing_later,
    mixing_rarely,
    losses,
    loss_objects,
    pairs,
    calls,
    closures,
    coincidences,
    hooks,
    engines,
    arguments,
    layers,
    recurrent,
    sequences,
    weights,
    ordinary,
)
CASES: dict[str, Case] = {
    f"{file.__name__.rpartition('.')[2]}/{case.name}": case
    for file in FILES
    for case in file.cases()
}
"""Every case by the name of its file and its own."""


ORDINARY = (
    layers,
    ordinary,
    arguments,
    weights,
    sequences,
    recurrent,
    coincidences,
    engines,
    hooks,
)
"""Files of near twins, of which every fifth is for ``make test``."""
QUICK = {
    name
    for file in ORDINARY
    for name in [n for n in CASES if n.startswith(f"{file.__name__.rpartition('.')[2]}/")][::5]
}


def marked(name: str, case: Case):
    twin = name.partition("/")[0] in {f.__name__.rpartition(".")[2] for f in ORDINARY}
    slow = case.slow or twin and name not in QUICK and name not in NOT_YET
    marks = [pytest.mark.slow] if slow else []
    if name in NOT_YET:
        marks.append(pytest.mark.xfail(strict=True, reason=NOT_YET[name]))
    return pytest.param(case, id=name, marks=marks)


MARKED = [marked(*item) for item in CASES.items()]


@pytest.mark.parametrize("case", without_slow(MARKED))
def test_the_sum_is_that_of_examples_alone_or_refused(case):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdict = verdict_of(case)
    assert verdict.satisfies(case.right), f"{verdict.outcome.value}: {verdict.words}"


def test_the_trial_is_as_large_as_it_says_and_what_fails_is_known():
    right = Counter(case.right for case in CASES.values())
    assert len(CASES) == sum(len(list(file.cases())) for file in FILES)
    assert len(CASES) >= 275
    assert right[Right.REFUSED] >= 120
    assert right[Right.EXACT] >= 150
    assert set(NOT_YET) <= set(CASES)


NOT_LOSSES = ("arguments/returned", "arguments/units", "arguments/too few")
"""Cases to refuse for what they are, whether or not anything mixes."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, case in CASES.items()
        if case.right is Right.REFUSED and not name.startswith(NOT_LOSSES)
    ],
)
def test_what_must_be_refused_does_mix(name):
    assert mixes(CASES[name])
