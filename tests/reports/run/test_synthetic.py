"""The statement beside synthetic records says what they cost, or that they are not private."""

import pytest

from dpft.reports.run.synthetic import synthetic_record

PRIVATE = {
    "private": True,
    "epsilon": 2.99812,
    "delta": 1.19e-5,
    "accountant": "prv",
    "unit": "example",
    "neighboring_relation": "add_or_remove_one",
    "sampler": "poisson",
    "steps": 9,
    "steps_taken": 9,
    "ledger": {"lines": 10, "head": "ab"},
    "warnings": [],
    "noise_multiplier": 0.7,
}
SEEDED = {**PRIVATE, "private": False, "reproducible": True}
ORDINARY = {"private": False, "num_examples": 9, "steps": 9, "warnings": []}


def record(privacy, *, prompted=True, unparsed=None):
    return synthetic_record(
        privacy,
        run="outputs/x",
        task="e2e",
        decode={"seed": 0},
        retries=2,
        records=3,
        unparsed=unparsed,
        prompted=prompted,
    )


def test_a_private_runs_records_cost_what_the_run_cost():
    found = record(PRIVATE)
    headline = {key: value for key, value in PRIVATE.items() if key != "noise_multiplier"}
    assert found.items() >= headline.items()
    assert (found["run"], found["records"], found["decode"]) == ("outputs/x", 3, {"seed": 0})
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
    both = {"epsilon_with_tokenizer": 4.25, "delta_with_tokenizer": 2e-5}
    found = record({**PRIVATE, **both})
    assert found.items() >= both.items()
    assert "model and its tokenizer" in found["notes"][0]
    assert "(epsilon = 4.2500, delta = 2e-05)" in found["notes"][0]
