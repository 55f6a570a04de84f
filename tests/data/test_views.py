"""Views of records: what is hidden is learned, nothing is lost, and others have no part in it."""

import hashlib
from collections import Counter

import pytest

from dpft.data.tokenization import TokenizedExample
from dpft.data.views import (
    MaskedTokens,
    SpanCorruption,
    ViewedRows,
    corrupted_lengths,
    noise_of,
    raw_length,
)
from dpft.kinds import IGNORED_LABEL

END, SENTINELS = 1, tuple(range(1000, 1030))
SPANS = SpanCorruption(noise_density=0.15, mean_span=3.0, sentinels=SENTINELS, end=END)
MASKS = MaskedTokens(noise_density=0.15, mask=4, special=frozenset({2, 3}), vocab_size=900)


class Hashed:
    """Bits that follow from step and record."""

    def bits(self, step: int, record: int, size: int) -> bytes:
        return hashlib.shake_256(f"{step} {record}".encode()).digest(size)


def row(length: int) -> TokenizedExample:
    ids = list(range(10, 10 + length))
    return TokenizedExample(input_ids=ids, labels=ids)


def viewed(view: SpanCorruption | MaskedTokens, length: int, number: int = 0) -> TokenizedExample:
    return view(row(length), lambda size: Hashed().bits(number, 0, size))


def filled(view: TokenizedExample) -> list[int]:
    """The text again: each sentinel in what is read replaced by its span of the target."""
    spans: dict[int, list[int]] = {}
    target = [int(label) for label in view.labels[:-1]]
    for token in target:
        if token in SENTINELS:
            last = spans[token] = []
        else:
            last.append(token)
    text = []
    for token in view.input_ids[:-1]:
        text += spans.pop(token) if token in spans else [token]
    assert spans == {}
    return text


def test_the_papers_lengths_come_out() -> None:
    """Ponomareva et al. 2022, section 4: 512 tokens read, 114 learned; of T5's 568."""
    assert corrupted_lengths(568, density=0.15, mean_span=3.0) == (512, 114)
    assert raw_length(512, density=0.15, mean_span=3.0) == 568
    view = viewed(SPANS, 568)
    assert (len(view.input_ids), len(view.labels)) == (512, 114)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 20, 64, 200])
def test_the_hidden_spans_and_the_rest_make_the_text_again(length: int) -> None:
    for number in range(20):
        view = viewed(SPANS, length, number)
        assert filled(view) == row(length).input_ids
        assert view.input_ids[-1] == view.labels[-1] == END
        read, written = corrupted_lengths(length, density=0.15, mean_span=3.0)
        assert (len(view.input_ids), len(view.labels)) == (read, written)


def test_every_way_of_cutting_is_as_likely() -> None:
    """Of 40 tokens 6 are hidden, in two spans: five ways, equally likely."""
    assert noise_of(40, density=0.15, mean_span=3.0) == (6, 2)
    first = Counter(
        viewed(SPANS, 40, number).labels.index(SENTINELS[1]) - 1 for number in range(2000)
    )
    assert set(first) == {1, 2, 3, 4, 5}, "6 tokens in two spans: five ways"
    assert max(abs(count - 400) for count in first.values()) < 90  # 5 deviations


def test_masked_tokens_are_learned_where_they_stood_and_special_ones_never() -> None:
    masked = other = kept = 0
    for number in range(200):
        ids = [2, *range(10, 50), 3]
        text = TokenizedExample(input_ids=ids, labels=ids)
        view = MASKS(text, lambda size, n=number: Hashed().bits(n, 1, size))
        chosen = [at for at, label in enumerate(view.labels) if label != IGNORED_LABEL]
        assert chosen and not {0, 41} & set(chosen)
        assert [view.labels[at] for at in chosen] == [ids[at] for at in chosen]
        for at, token in enumerate(view.input_ids):
            if at not in chosen:
                assert token == ids[at]
            masked += at in chosen and token == 4
            kept += at in chosen and token == ids[at]
            other += at in chosen and token not in (4, ids[at])
    total = masked + kept + other
    assert total / (200 * 40) == pytest.approx(0.15, abs=0.02)
    assert masked / total == pytest.approx(0.8, abs=0.05)
    assert kept / total == pytest.approx(0.1, abs=0.03)


def test_a_view_is_drawn_anew_at_each_step_and_does_not_depend_on_other_records() -> None:
    rows = [row(60), row(80), row(60)]
    at_step = [ViewedRows(rows, SPANS, Hashed(), step) for step in (0, 0, 1)]
    assert at_step[0][2] == at_step[1][2]
    assert at_step[0][0] != at_step[2][0]
    assert at_step[0][0] != at_step[0][2], "equal texts are viewed apart"
    others = ViewedRows([row(5), rows[1], row(9)], SPANS, Hashed(), 0)
    assert others[1] == at_step[0][1]
    assert at_step[0][0:2] == [at_step[0][0], at_step[0][1]]
    assert len(others) == 3
