from dpft.privacy.accounting.selection import ACCOUNTANT, TrialCount
from dpft.records.form import as_json
from dpft.records.ledger import Calibration
from dpft.reports.privacy_record import with_selection
from tests.reports.plain import privacy_of, render
from tests.reports.test_report import BOTH, CONFIG, private

SPACE = {"train.learning_rate": (0.1, 0.2)}


def selected(**more: object) -> dict:
    curve = {"steps": [1], "epsilons": [0.1], "accountants": ["prv"]}
    alone = {**private(), **more, "epsilon_curve": curve}
    alone["warnings"] = [*alone["warnings"], "prv gave no bound: it is late.", "delta is large"]
    bound = Calibration(accountant=ACCOUNTANT, epsilon=2.98765, grid="orders")
    count = TrialCount(eta=1, gamma=0.1)
    return as_json(with_selection(privacy_of(alone), bound, count, space=SPACE))


def test_nothing_of_the_record_is_what_one_trial_alone_would_have_spent() -> None:
    record = selected()
    assert (record["epsilon"], record["accountant"]) == (2.98765, ACCOUNTANT)
    assert record["epsilons"] == {ACCOUNTANT: 2.98765}
    assert "epsilon_curve" not in record
    assert "delta is large" in record["warnings"]
    assert not [text for text in record["warnings"] if "prv" in text]


def test_the_record_says_how_the_choice_was_made() -> None:
    selection = selected()["selection"]
    assert (selection["eta"], selection["gamma"]) == (1, 0.1)
    assert abs(selection["expected_trials"] - 10) < 1e-9
    assert selection["search_space"] == {"train.learning_rate": [0.1, 0.2]}


def test_the_report_leads_with_the_bound_and_says_what_it_covers() -> None:
    report = render(CONFIG, selected(), BOTH)
    assert report.startswith("**(ε = 2.9877, ")
    assert f"by {ACCOUNTANT} (upper bound)" in report.splitlines()[0]
    assert "best of a secret random number of runs, of 10 in expectation (eta 1, gamma" in report
    assert "how long the search took, which tells how many there were" in report
    assert "secret random number" not in render(CONFIG, private(), BOTH)


def test_a_search_and_its_tokenizer_cost_the_sum_not_what_the_winner_cost_with_it() -> None:
    own = {"epsilon": 0.5, "delta": 1e-6, "simple_composition": 3.0}
    own["ledger"] = {"lines": 2, "head": "ab" * 32}
    both = {"epsilon_with_tokenizer": 2.6, "delta_with_tokenizer": 2e-6, "tokenizer": own}
    record = selected(**both)
    assert record["epsilon_with_tokenizer"] == 2.98765 + 0.5
    assert record["tokenizer"]["simple_composition"] == 2.98765 + 0.5
    assert record["delta_with_tokenizer"] == 2e-6
    report = render(CONFIG, record, BOTH)
    assert "both together are **(ε = 3.4877, " in report.splitlines()[0]
    assert "composed by pld" not in report
