"""The statement beside synthetic records says what they cost, or that they are not private."""

import pytest

from tests.reports.plain import DECODE, TOKENIZER, stated
from tests.reports.test_privacy_record import record as private
from tests.reports.test_privacy_record import without_privacy

PRIVATE = {**private(), "epsilon": 2.99812, "delta": 1.19e-5}
SEEDED = {**PRIVATE, "private": False, "reproducible": True}
ORDINARY = without_privacy(num_examples=9, expected_batch_size=3, steps=9)


def record(privacy, *, prompted=True, unparsed=None):
    return stated(privacy, prompted=prompted, unparsed=unparsed)


def test_a_private_runs_records_cost_what_the_run_cost():
    found = record(PRIVATE)
    assert {"epsilon", "delta", "accountant", "unit", "sampler", "steps_taken", "ledger"} <= set(
        found
    )
    assert {key: PRIVATE[key] for key in found if key in PRIVATE} == {
        key: value for key, value in found.items() if key in PRIVATE
    }
    assert (found["run"], found["records"], found["decode"]) == ("outputs/x", 3, DECODE)
    # rounded up, never down
    assert "the same (epsilon = 2.9982, delta = 1.19e-05)" in found["notes"][0]
    assert "post-processing" in found["notes"][0]


def test_texts_that_are_no_rows_are_counted_where_they_may_be():
    found = record(PRIVATE, prompted=False, unparsed=0)
    assert (found["retries"], found["records"], found["unparsed"]) == (2, 3, 0)
    assert "unparsed" not in record(PRIVATE)


def test_prompts_are_said_not_to_be_covered_where_there_are_any():
    assert "epsilon does not cover the prompts" in record(PRIVATE)["notes"][1]
    assert len(record(PRIVATE, prompted=False)["notes"]) == 1


@pytest.mark.parametrize(("privacy", "why"), [(SEEDED, "noise_seed"), (ORDINARY, "privacy=none")])
def test_a_run_that_is_not_private_says_so_first(privacy, why):
    found = record(privacy)
    assert found["private"] is False
    assert found["notes"][0].startswith("NOT PRIVATE") and why in found["notes"][0]
    assert not any("post-processing" in note for note in found["notes"])
    assert ("epsilon" in found) == ("epsilon" in privacy)


def test_texts_of_a_model_with_a_private_tokenizer_cost_what_both_cost():
    both = {"epsilon_with_tokenizer": 4.25, "delta_with_tokenizer": 2e-5, "tokenizer": TOKENIZER}
    found = record({**PRIVATE, **both})
    assert found.items() >= both.items()
    assert "model and its tokenizer" in found["notes"][0]
    assert "(epsilon = 4.2500, delta = 2e-05)" in found["notes"][0]
