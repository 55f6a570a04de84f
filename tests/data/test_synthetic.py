import pytest

from dpft.data.collation import TextLayout
from dpft.data.synthetic import synthetic_rows
from dpft.kinds import CAUSAL, CLASSES, CLASSIFIER, LABEL_WORDS, MASKED, SCORE, SEQ2SEQ, TEXT

LAYOUTS = [
    TextLayout(),
    TextLayout(kind=SEQ2SEQ),
    TextLayout(kind=SEQ2SEQ, answer=LABEL_WORDS, words=(1, 2)),
    TextLayout(kind=MASKED, answer=LABEL_WORDS, words=(1, 2, 3)),
    TextLayout(kind=CAUSAL, answer=LABEL_WORDS, words=(1, 2)),
    TextLayout(kind=CLASSIFIER, answer=CLASSES, outputs=3),
    TextLayout(kind=CLASSIFIER, answer=SCORE),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.kind}-{layout.answer}")
def test_rows_are_ragged_within_the_vocabulary_and_fit_the_layout(layout):
    rows = synthetic_rows(layout, 3, 12, vocab_size=5)
    lengths = [len(row.input_ids) for row in rows]
    assert lengths == sorted(set(lengths), reverse=True) and lengths[0] == 12
    assert all(0 < token < 5 for row in rows for token in row.input_ids)
    batch = layout.collate(rows)
    assert len(batch) == 3
    if layout.answer != TEXT:
        assert batch.labels.shape == (3, len(layout.words) or layout.outputs)


def test_rows_of_one_length_are_all_the_longest():
    rows = synthetic_rows(TextLayout(), 4, 9, vocab_size=5, ragged=False)
    assert {len(row.input_ids) for row in rows} == {9}
