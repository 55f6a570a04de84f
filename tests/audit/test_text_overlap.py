"""What is called a near duplicate is one, and hardly any is missed."""

import json
import random
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.audit import base
from dpft.audit.synthetic_audit import runs_plot
from dpft.audit.text_overlap import (
    THRESHOLD,
    Leakage,
    NearDuplicates,
    allowed_share,
    canaries_found,
    grams_of,
    jaccard,
    leakage_of,
    longest_runs,
    most_found,
    prompt_sets,
    words_of,
)
from dpft.errors import InputError, StateError
from dpft.files import CANARIES, private_audit_path
from dpft.records.audits import CanariesInTexts, KeptCanaries, KeptCanary
from dpft.records.form import as_json

LONG = "the eagle is a pub by the river in the city center with a garden and a low price for all"
EDITED = LONG.replace("for all", "for you")
OTHER = "a museum of stones stands at the end of a road where nobody has lived for ninety years"


def random_texts() -> list[str]:
    """Two hundred texts of forty words, and of half of them one with some words changed."""
    order = random.Random(0)
    texts = [[f"w{order.randrange(60)}" for _ in range(40)] for _ in range(200)]
    for words in texts[:100]:
        changed = list(words)
        for _ in range(order.randrange(3)):
            changed[order.randrange(40)] = "other"
        texts.append(changed)
    return [" ".join(words) for words in texts]


def test_candidates_by_hashing_are_all_that_an_exact_comparison_finds() -> None:
    texts = random_texts()
    grams = [grams_of(text) for text in texts]
    expected = [
        any(jaccard(one, grams[at]) >= THRESHOLD for at in range(len(grams)) if at != number)
        for number, one in enumerate(grams)
    ]
    assert 60 < sum(expected) < 240
    held = NearDuplicates(texts)
    assert held.repeated(texts) == expected
    assert NearDuplicates(texts[:200]).near(texts[200:]) == expected[200:]


def test_a_text_is_no_duplicate_of_itself_but_of_its_equal() -> None:
    assert NearDuplicates([LONG, OTHER]).repeated([LONG, OTHER]) == [False, False]
    assert NearDuplicates([LONG, OTHER, LONG]).repeated([LONG, OTHER, LONG]) == [True, False, True]


def test_case_and_blanks_make_no_other_text() -> None:
    assert NearDuplicates([LONG]).near([LONG.upper(), f" {LONG}\n", OTHER]) == [True, True, False]


def test_few_words_are_near_to_the_same_alone() -> None:
    assert NearDuplicates(["a pub", ""]).near(["a pub", "a pub in town", "", "b"]) == [
        True, False, True, False,
    ]  # fmt: skip


def test_the_four_sets_hold_every_record_once() -> None:
    sets = prompt_sets([LONG, OTHER, EDITED], [LONG, "another text of five words"])
    assert sets.train_dup == (0, 2)
    assert sets.train_unique == (1,)
    assert sets.valid_in_train == (0,)
    assert sets.valid_unique == (1,)


def test_without_other_records_two_sets_are_empty() -> None:
    sets = prompt_sets([LONG], [])
    assert (sets.valid_in_train, sets.valid_unique) == ((), ())


def test_a_missing_library_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(base.importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"needs datasketch, .*pip install 'dpft\[audit\]'"):
        NearDuplicates([LONG])


TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=8), max_size=5)


def by_difflib(text: list[str], others: list[list[str]]) -> int:
    return max(
        (
            SequenceMatcher(None, text, other, autojunk=False).find_longest_match().size
            for other in others
        ),
        default=0,
    )


@given(TEXTS, TEXTS)
@settings(max_examples=150, deadline=None)
def test_the_longest_run_is_difflibs(texts: list[list[str]], others: list[list[str]]) -> None:
    assert longest_runs(texts, others).tolist() == [by_difflib(text, others) for text in texts]


def test_no_run_goes_over_the_end_of_a_text() -> None:
    assert longest_runs([["a", "b"]], [["a"], ["b"]]).tolist() == [1]
    assert longest_runs([["a"], ["b"]], [["a", "b"]]).tolist() == [1, 1]


def test_a_long_copy_is_found_whole() -> None:
    text = [str(number % 37) for number in range(500)]
    assert longest_runs([text], [["x", *text, "y"]]).tolist() == [500]


WORDS = [f"w{number}" for number in range(50)]


def texts(seed: int, count: int = 60) -> list[str]:
    order = random.Random(seed)
    return [" ".join(order.choices(WORDS, k=20)) for _ in range(count)]


@pytest.fixture(scope="module")
def clean() -> Leakage:
    return leakage_of(texts(0), texts(1), texts(2))


@pytest.fixture(scope="module")
def leaking() -> Leakage:
    """Every fourth training record is among the synthetic ones, blanks apart; some are repeated."""
    copied = [f" {text}" for text in texts(1)[::4]]
    return leakage_of([*texts(0), *copied, copied[0]], texts(1), texts(2))


def test_copies_are_counted_on_both_sides(leaking: Leakage) -> None:
    assert leaking.unseen is not None
    assert (leaking.training.exact, leaking.unseen.exact) == (15, 0)
    assert (leaking.training.near, leaking.unseen.near) == (15, 0)
    assert leaking.copies == 16
    assert leaking.training.share_of_runs(20) == 0.25
    assert leaking.unseen.share_of_runs(20) == 0


def test_records_that_were_not_trained_on_are_the_control(clean: Leakage, leaking: Leakage) -> None:
    assert clean.auc == pytest.approx(0.5, abs=0.12)
    assert clean.p_value is not None and clean.p_value > 0.05
    assert leaking.auc is not None and leaking.auc > clean.auc
    assert leaking.p_value is not None and leaking.p_value < 0.05


def test_a_few_whole_copies_are_seen_where_runs_are_longest(
    clean: Leakage, leaking: Leakage
) -> None:
    assert clean.tail is not None and leaking.tail is not None
    assert clean.tail.training_share <= 0.05
    assert leaking.tail.training_share >= 0.25
    assert leaking.tail.unseen_share <= 0.01
    assert leaking.record().tail == leaking.tail


def test_without_a_control_nothing_is_compared() -> None:
    alone = leakage_of(texts(0), texts(1), None)
    assert (alone.unseen, alone.auc, alone.p_value) == (None, None, None)
    assert alone.tail is None
    assert alone.record().unseen is None
    assert runs_plot(alone, (1.0, 1e-5)).count("ε") == 0


def test_the_most_found_record_is_shown_first(leaking: Leakage) -> None:
    words, text = most_found(leaking.training, texts(1))[0]
    assert (words, text) == (20, texts(1)[0])


def test_what_epsilon_allows_of_a_share() -> None:
    assert allowed_share(0.0, 3.0, 1e-5) == 1e-5
    assert allowed_share(0.1, 0.0, 0.0) == 0.1
    assert allowed_share(0.5, 1e6, 0.0) == 1.0


def test_the_control_of_few_records_is_not_taken_for_all() -> None:
    """Of 60 records none: at 95 % fewer than 1 - 0.05^(1/60) of all."""
    found = leakage_of(texts(0), texts(1), texts(2)).unseen
    assert found is not None and found.share_of_runs(20) == 0
    assert found.limit_of_share(20) == pytest.approx(1 - 0.05 ** (1 / 60))
    assert found.limit_of_share(0) == 1


def test_the_bound_of_epsilon_is_drawn_beside_the_shares(leaking: Leakage) -> None:
    assert "most that ε allows" in runs_plot(leaking, (1.0, 1e-5))
    assert "most that ε allows" not in runs_plot(leaking, None)


VERSION = {"schema_version": 1}


def plant(run: Path, content: object) -> None:
    private_audit_path(run, CANARIES).write_text(json.dumps(content))


def kept(*texts: str, included: bool) -> KeptCanary:
    return KeptCanary(
        kind="coin",
        read=("a",),
        learned=("b",),
        number=0,
        copies=int(included),
        unit="u",
        included=included,
        texts=texts,
    )


def test_canaries_are_counted_by_their_coins(tmp_path: Path) -> None:
    canaries = (
        kept("kilo echo zulu", "other text", included=True),
        kept("never written down", included=True),
        kept("alpha beta gamma delta", included=False),
    )
    plant(tmp_path, as_json(KeptCanaries(canaries=canaries)))
    found = canaries_found(tmp_path, ["so kilo echo zulu ends", "alpha beta x"])
    assert found == {
        "included": CanariesInTexts(canaries=2, found=1, longest_run=3),
        "not_included": CanariesInTexts(canaries=1, found=0, longest_run=2),
    }


def test_a_run_without_canaries_has_none(tmp_path: Path) -> None:
    assert canaries_found(tmp_path, ["text"]) == {}
    plant(tmp_path, as_json(KeptCanaries(canaries=())))
    assert canaries_found(tmp_path, ["text"]) == {}


@pytest.mark.parametrize(
    "content", [[], VERSION | {"canaries": [{"texts": ["a"]}]}, VERSION | {"canaries": 3}]
)
def test_a_damaged_file_is_said(tmp_path: Path, content: object) -> None:
    plant(tmp_path, content)
    with pytest.raises(StateError, match=r"canaries\.json is damaged"):
        canaries_found(tmp_path, ["text"])


def test_texts_in_scripts_without_blanks_are_compared_by_characters():
    text = "这家餐厅在河边的市中心，有一个花园，价格低廉，适合所有人。"
    (length,) = longest_runs([words_of(text)], [words_of(text.replace("价格低廉", "价格很高"))])
    assert length == len("这家餐厅在河边的市中心，有一个花园，价格")
    assert words_of("हिन्दी भाषा।") == ["हिन्दी", "भाषा", "।"]
