"""Whole training on several ranks: the weights of one process, broken off and gone on with."""

import gc
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dpft.methods.base import METHODS
from dpft.parallel.ranks import ALONE, Ranks
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.ledger import read_ledger
from dpft.run_folder import LEDGER
from dpft.training import training_run as training_run_module
from dpft.training.optimizers import AdamW
from dpft.training.starting_point import Start
from tests.parallel.forked import LOST, on_ranks
from tests.parallel.small_steps import Case
from tests.privacy.test_methods_twin import REFUSED
from tests.training.shared_training import (
    Training,
    Weights,
    check_alike,
    train_on,
    train_ordinarily_on,
)

pytestmark = pytest.mark.slow

LONG = Case(noise_multiplier=1.0, steps=5)


def farthest(found: Weights, expected: Weights) -> float:
    assert found.keys() == expected.keys()
    return max(float((found[name] - expected[name]).abs().max()) for name in expected)


@pytest.mark.parametrize(
    ("method", "size"),
    [
        (method, size)
        for method in METHODS.entries()
        for size in (2, 4)
        if "gpt2" not in REFUSED.get(method, ())
    ],
)
def test_weights_equal_those_of_one_process(method: str, size: int, tmp_path: Path) -> None:
    """For every method: nothing that a rank draws for itself reaches a weight."""
    case = Case(method=method, noise_multiplier=1.0, steps=3)
    expected = train_on(ALONE, Training(folder=made(tmp_path / "alone"), case=case))
    shared = Training(folder=made(tmp_path / "shared"), case=case)
    answers = on_ranks(train_on, size, shared)
    check_alike(answers)
    assert farthest(answers[0], expected) < 1e-5
    assert read_ledger(shared.folder / LEDGER).steps == 3


@pytest.mark.parametrize(("clips", "size"), [*product([False, True], [2, 4])])
def test_weights_without_privacy_equal_those_of_one_process(
    clips: bool, size: int, tmp_path: Path
) -> None:
    run = Training(folder=made(tmp_path / "alone"), case=Case(steps=3), clips=clips)
    expected = train_ordinarily_on(ALONE, run)
    shared = replace(run, folder=made(tmp_path / "shared"))
    answers = on_ranks(train_ordinarily_on, size, shared)
    check_alike(answers)
    assert farthest(answers[0], expected) < 1e-5


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def first_mask(ranks: Ranks, run: Training) -> list[float]:
    """Return the first mask that a rank's model would draw in a run, outside of checks."""
    masks = []
    per_example_losses = training_run_module.per_example_losses

    def probed(*args: Any) -> Tensor:
        with torch.random.fork_rng(devices=()):
            masks.append(F.dropout(torch.ones(64)).tolist())
        return per_example_losses(*args)

    training_run_module.per_example_losses = probed
    train_on(ranks, run)
    return next(mask for mask in masks if 0.0 in mask)


def test_each_rank_drops_out_with_masks_of_its_own(tmp_path: Path) -> None:
    masks = on_ranks(first_mask, 3, Training(folder=tmp_path, case=replace(LONG, steps=1)))
    assert len(set(map(tuple, masks))) == 3


def starts_kept(ranks: Ranks, run: Training) -> int:
    """Return how many starts, which hold the first step's keys, are kept in the second step."""
    found = []
    draw = PrivacyEngine.draw

    def look_and_draw(engine: PrivacyEngine, num_units: int) -> list[int]:
        found.append(sum(isinstance(each, Start) for each in gc.get_objects()))
        return draw(engine, num_units)

    PrivacyEngine.draw = look_and_draw
    train_on(ranks, run)
    return found[1]


def test_trust_rule_4_no_rank_keeps_the_keys_that_it_began_with(tmp_path: Path) -> None:
    """Whoever reads a process's memory in a later step must not learn an earlier one's noise."""
    run = Training(folder=tmp_path, case=replace(LONG, steps=2))
    assert on_ranks(starts_kept, 2, run) == [0, 0]


@pytest.fixture
def broken(tmp_path: Path) -> Callable[..., Training]:
    """A run on two ranks with dropout that all died after step 3 of 5, checkpoint 2 behind it."""
    run = Training(folder=made(tmp_path / "broken"), case=LONG, dropout=0.3, optimizer=AdamW())
    answers = on_ranks(train_on, 2, replace(run, broken_after=3), dying=[0, 1])
    assert answers == [LOST, LOST]
    return replace(run, goes_on=True)


def test_a_run_that_goes_on_is_bit_identical_to_an_undisturbed_one(
    broken: Training, tmp_path: Path
) -> None:
    """Step 3 is taken again on both ranks, with the masks that each had."""
    undisturbed = replace(broken, folder=made(tmp_path / "whole"), goes_on=False)
    expected = on_ranks(train_on, 2, undisturbed)
    answers = on_ranks(train_on, 2, broken)
    check_alike([*expected, *answers])
    assert read_ledger(broken.folder / LEDGER).steps == 5


@pytest.mark.parametrize(
    ("size", "changed_record"),
    [(4, False), (1, False), (2, True)],
)
def test_what_cannot_be_taken_again_as_it_was_gets_new_noise_and_is_counted(
    broken: Training, size: int, changed_record: bool
) -> None:
    """On another number of ranks, and where a step does not come out the same."""
    answers = on_ranks(train_on, size, replace(broken, changed_record=changed_record))
    check_alike(answers)
    assert read_ledger(broken.folder / LEDGER).steps == 3 + 3
