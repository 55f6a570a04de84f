import gzip
import json
import re

import pytest

from benchmarks.embedded import pretraining_domains as domains
from benchmarks.embedded import pretraining_grammar as grammar
from benchmarks.embedded import pretraining_names as inventories
from benchmarks.embedded import pretraining_words as words
from benchmarks.embedded import sample, sample_grammar
from dpft.data.raw_rows import EMBEDDED_SAMPLE


@pytest.fixture(scope="module")
def shipped():
    return {
        split: gzip.decompress((EMBEDDED_SAMPLE / f"{split}.jsonl.gz").read_bytes())
        for split in ("train", "validation", "test")
    }


@pytest.fixture(scope="module")
def rows(shipped):
    return {
        split: [json.loads(line) for line in text.splitlines()] for split, text in shipped.items()
    }


def _phrases(*alternatives):
    return {phrase for text in alternatives for phrase in text.split("|") if phrase}


def _pretraining_phrases():
    facts = [fact for d in domains.DOMAINS for group in d.facts for fact in group]
    spoken = [form for fact in facts for form in (fact.before, fact.after, fact.says)]
    frames = (grammar.OPENINGS, grammar.BARE_OPENINGS, grammar.SAYING_OPENINGS, grammar.CLOSINGS)
    return _phrases(*spoken, *frames, grammar.PROSE)


def _sample_phrases():
    return _phrases(
        sample_grammar.PLACE_NOUNS,
        sample_grammar.AREA_PHRASES,
        sample_grammar.NEAR_PHRASES,
        sample_grammar.OPENINGS_WITH_FOOD,
        sample_grammar.OPENINGS,
        sample_grammar.BILLS,
        sample_grammar.SUMS,
        sample_grammar.VERDICTS,
        *sample_grammar.FAMILY_PHRASES.values(),
    )


@pytest.mark.slow
def test_the_grammar_writes_the_shipped_files_bit_for_bit(shipped):
    written = {split: sample.as_json_lines(rows) for split, rows in sample.splits().items()}
    assert written == shipped


@pytest.mark.slow
def test_writing_twice_gives_the_same_packed_bytes(tmp_path):
    for folder in ("first", "second"):
        sample.main(["--output", str(tmp_path / folder)])
    for split in ("train", "validation", "test"):
        first, second = (tmp_path / f / f"{split}.jsonl.gz" for f in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()


def test_the_splits_have_the_stated_sizes(rows):
    assert len(rows["train"]) == sample.NUM_TRAIN_EXAMPLES
    for split in ("validation", "test"):
        records = [row["meaning_representation"] for row in rows[split]]
        assert len(set(records)) == sample.NUM_HELD_OUT_RECORDS
        assert 1 <= min(map(records.count, records)) <= max(map(records.count, records)) <= 4


def test_no_record_is_in_two_splits(rows):
    records = {s: {row["meaning_representation"] for row in of} for s, of in rows.items()}
    assert not records["train"] & (records["validation"] | records["test"])
    assert not records["validation"] & records["test"]


def test_records_are_in_the_notation_and_order_of_e2e(rows):
    order = [
        "name",
        "eatType",
        "food",
        "priceRange",
        "customer rating",
        "area",
        "familyFriendly",
        "near",
    ]
    for row in rows["test"] + rows["validation"]:
        fields = row["meaning_representation"].split(", ")
        found = [re.fullmatch(r"([^\[\]]+)\[([^\[\]]+)\]", field) for field in fields]
        assert all(found)
        attributes = [match[1] for match in found]
        assert attributes == [a for a in order if a in attributes]
        assert attributes[0] == "name"


def test_test_records_hold_names_that_train_never_shows(rows):
    held_out = set(sample_grammar.names(held_out=True)) - set(sample_grammar.names(held_out=False))
    text = "".join(row["meaning_representation"] for row in rows["train"])
    assert held_out and not any(name in text for name in held_out)
    assert any(name in row["human_reference"] for row in rows["test"] for name in held_out)


def test_no_wording_of_the_sample_is_in_the_pretraining_grammar():
    pretraining, wordings = _pretraining_phrases(), _sample_phrases()
    assert len(pretraining) > 150 and len(wordings) > 15
    assert not pretraining & wordings
    # The longest piece of a wording without a slot stands in no pre-training phrase either.
    for wording in wordings:
        piece = max(re.split(r"\{.\}", wording), key=len).strip(" ,")
        if len(piece.split()) > 1:
            assert not any(piece.lower() in phrase.lower() for phrase in pretraining), piece


def test_no_name_of_the_sample_can_be_put_together_by_the_pretraining_grammar():
    parts = {*inventories.ADJECTIVES, *inventories.NOUNS, *inventories.ENDINGS}
    parts |= {word.capitalize() for word in words.EVERYDAY}
    assert not parts & {*sample_grammar.FIRST_NAMES, *sample_grammar.LAST_NAMES}
    for landmark in sample_grammar.LANDMARKS:
        assert not set(landmark.split()) <= parts | {"the", "The"}
    assert not set(sample_grammar.VALUES["food"]) & {*inventories.NATIONS, *words.EVERYDAY}
