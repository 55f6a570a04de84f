"""A corpus's texts as rows of each kind of model, whole and in chunks."""

import gzip
import hashlib
import json
import traceback
from collections import Counter
from itertools import islice
from pathlib import Path

import datasets
import pyarrow
import pytest
from pyarrow import parquet
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dpft.constants import CAUSAL, IGNORED_LABEL, MASKED, SEQ2SEQ
from dpft.data import sources
from dpft.data.batches import TextLayout, ViewedRows
from dpft.data.corpora import corpus_files
from dpft.data.corpus_objectives import (
    CorpusEncoding,
    MaskedTokens,
    SpanCorruption,
    corrupted_lengths,
    noise_of,
    raw_length,
)
from dpft.data.rows import split_files
from dpft.data.sources import (
    has_split,
    has_training_split_alone,
    load_examples,
    read_examples,
)
from dpft.data.tokenization import TokenizedExample
from dpft.errors import InputError
from dpft.tasks.base import SPLITS, Example
from dpft.tasks.corpus import CorpusTask
from dpft.tokenizers import save_tokenizer
from tests.data.conftest import load_with_units
from tests.models import small
from tests.rejections import rejects

SECRET = "secret"


def corpus(place: Path | None, **settings: object) -> CorpusTask:
    return CorpusTask(name="corpus", data_dir=place and str(place), **settings)


def texts(place: Path, split: str = "train", **settings: object) -> list[str]:
    return [example.target for example in load_examples(corpus(place, **settings), split)]


def write(path: Path, content: str | bytes = "a text\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines_of(*values: object) -> str:
    return "".join(json.dumps({"text": value, "who": "ann"}) + "\n" for value in values)


def write_parquet(path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": ["one", " ", "two"]}), path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "one\n \n\ntwo\n"),
        ("a.txt", "one\r\n\r\ntwo"),
        ("a.txt", "\ufeffone\ntwo"),
        ("a.txt.gz", gzip.compress(b"one\n\ntwo\n", mtime=0)),
        ("a.jsonl", lines_of("one", " ", "two")),
        ("a.jsonl.gz", gzip.compress(lines_of("one", "", "two").encode(), mtime=0)),
        ("a.csv", "who,text\nann,one\nann, \nann,two\n"),
        ("a.parquet", None),
    ],
)
def test_each_format_gives_its_texts_and_blank_ones_are_none(tmp_path, name, content):
    path = tmp_path / name
    write_parquet(path) if content is None else write(path, content)
    assert texts(path) == texts(tmp_path) == ["one", "two"]


def test_a_line_is_kept_as_it_is_and_ended_by_a_line_feed_alone(tmp_path):
    content = " a\u2028b\x0bc\x85d\x1ee \nf\rg\r\r\n\ufeffh"
    assert texts(write(tmp_path / "a.txt", content)) == [
        " a\u2028b\x0bc\x85d\x1ee ",
        "f\rg\r",
        "\ufeffh",
    ]


def test_a_document_is_a_text_file_as_a_whole_with_one_kind_of_line_end(tmp_path):
    write(tmp_path / "a.txt", "\ufeffone\r\n\r\ntwo\r\n")
    write(tmp_path / "b.txt", " \n\n")
    write(tmp_path / "c.jsonl", lines_of("three\n", "four"))
    write(tmp_path / "d.txt.gz", gzip.compress(b"five\nsix", mtime=0))
    read = texts(tmp_path, record_kind="document")
    assert read == ["one\n\ntwo", "three\n", "four", "five\nsix"]


def test_a_folder_is_read_whole_in_the_order_of_the_names(tmp_path):
    for name in ("b.txt", "a/2.txt", "a/10.txt.gz", "c.csv", "a/deep/er/x.jsonl", "B.txt"):
        content = {".csv": f"text\n{name}\n", ".jsonl": lines_of(name)}.get(Path(name).suffix, name)
        packed = gzip.compress(name.encode()) if name.endswith(".gz") else content
        write(tmp_path / name, packed)
    order = ["B.txt", "a/10.txt.gz", "a/2.txt", "a/deep/er/x.jsonl", "b.txt", "c.csv"]
    assert texts(tmp_path) == order
    assert [
        path.relative_to(tmp_path).as_posix() for path in corpus_files(corpus(tmp_path))["train"]
    ] == order  # noqa: E501
    assert {path.relative_to(tmp_path).as_posix() for path in split_files(corpus(tmp_path))} == {
        *order
    }  # noqa: E501


def test_files_and_folders_with_a_splits_name_are_that_split(tmp_path):
    write(tmp_path / "train" / "news" / "1.txt", "one\n")
    write(tmp_path / "train.2.jsonl", lines_of("two"))
    write(tmp_path / "validation.txt.gz", gzip.compress(b"three", mtime=0))
    assert texts(tmp_path) == ["one", "two"]
    assert texts(tmp_path, "validation") == ["three"]
    task = corpus(tmp_path)
    assert [has_split(task, split) for split in SPLITS] == [True, True, False]
    assert not has_training_split_alone(task)
    with rejects("task.data_dir", str(tmp_path)):
        texts(tmp_path, "test")


@pytest.mark.parametrize("name", ["a.txt", "folder/a.txt", "train.txt"])
def test_without_other_splits_all_is_the_training_split(tmp_path, name):
    write(tmp_path / name)
    for place in (tmp_path, tmp_path / name):
        task = corpus(place)
        assert has_training_split_alone(task)
        assert [has_split(task, split) for split in SPLITS] == [True, False, False]
        with rejects("task.data_dir", str(place)) as faults:
            texts(place, "validation")
        assert faults[0].hint == "eval.held_out=0.1"


@pytest.mark.parametrize(
    ("names", "place"),
    [
        (["a.txt", "b.pdf"], "b.pdf"),
        (["a/b/c.json", "d.txt"], "a/b/c.json"),
        (["a.txt", "z/.hidden.txt"], "z/.hidden.txt"),
        (["a.txt", ".git/config"], ".git"),
        (["train.txt", "notes.txt"], "."),
        (["train.txt", "test/x.zip"], "test/x.zip"),
    ],
)
def test_what_would_not_be_read_is_refused_and_not_passed_over(tmp_path, names, place):
    for name in names:
        write(tmp_path / name)
    with rejects("task.data_dir", str(tmp_path / place)):
        texts(tmp_path)


def test_a_place_without_files_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "a").symlink_to(tmp_path / "loop")
    for name in ("empty", "nowhere", write(tmp_path / "a.doc").name, "loop"):
        with rejects("task.data_dir"):
            texts(tmp_path / name)
    assert split_files(corpus(tmp_path / "nowhere")) == []


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.txt", b"fine\n\nsecret \xff\xfe\n", ", line 3"),
        ("a.txt", b"fine\nsecret\0secret\n", ", line 2"),
        ("a.txt.gz", gzip.compress(b"fine\nsecret\0\n", mtime=0), ", line 2"),
        ("a.txt.gz", gzip.compress(b"secret\n" * 999, mtime=0)[:-9], ""),
        ("a.txt.gz", b"secret", ""),
        ("a.csv", b"text\nsecret\0\n", ", line 2"),
        ("a.csv", b"note\nsecret\n", ", line 2"),
        ("a.jsonl", b'{"text": "secret\0"}\n', ", line 1"),
        ("a.jsonl", b'{"text": ["secret"]}\n', ", line 1"),
    ],
)
@pytest.mark.parametrize("record", ["line", "document"])
def test_a_file_that_is_not_text_is_named_by_line_and_never_quoted(
    tmp_path, name, content, place, record
):
    path = write(tmp_path / name, content)
    with pytest.raises(InputError) as caught:
        texts(tmp_path, record_kind=record)
    assert [fault.key for fault in caught.value.faults] == [f"{path}{place}"]
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt")
    monkeypatch.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "no")))
    with rejects(str(path)):
        texts(tmp_path)


def test_units_are_a_column_of_the_files_that_have_columns(tmp_path):
    write(tmp_path / "a.jsonl", lines_of("one", "", "two"))
    write(tmp_path / "b.csv", "text,who\nthree, bob \n")
    examples, units = load_with_units(corpus(tmp_path), "train", "who")
    assert [example.target for example in examples] == ["one", "two", "three"]
    assert units == ["ann", "ann", "bob"]
    write(tmp_path / "a" / "c.txt", f"{SECRET}\n")
    for column in ("who", "text"):
        with rejects("privacy.unit", column) as faults:
            load_with_units(corpus(tmp_path), "train", column)
        assert "c.txt, line 1" in str(faults[0]) and SECRET not in str(faults[0])


def test_files_are_read_as_far_as_records_are_asked_for(tmp_path):
    write(tmp_path / "a.txt", b"one\n" * 100_000 + b"\xff")
    write(tmp_path / "b.csv", b"\xff")
    read = read_examples(corpus(tmp_path), "train", None)
    assert [each.record.target for each in islice(read, 2)] == ["one", "one"]


def test_the_hub_is_read_as_a_stream_and_kept_nowhere(tmp_path, monkeypatch):
    path, asked = write(tmp_path / "c4.jsonl", lines_of("one", "two")), {}

    def load(name: str, config: str, **settings: object) -> datasets.IterableDataset:
        asked.update(settings, name=name, config=config)
        real = datasets.IterableDataset.from_generator
        return real(lambda: map(json.loads, path.read_text().splitlines()))

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(sources, "hub_is_reachable", lambda: True)
    task = corpus(None, source="hub", hub_name="allenai/c4", hub_config="en")
    assert [example.target for example in load_examples(task, "validation")] == ["one", "two"]
    assert asked == {
        "name": "allenai/c4", "config": "en", "revision": None, "split": "validation",
        "streaming": True,
    }  # fmt: skip


def test_a_stream_that_breaks_off_is_one_sentence(monkeypatch):
    def rows() -> object:
        yield {"text": "one"}
        raise ConnectionError("gone")

    stream = datasets.IterableDataset.from_generator(rows)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: stream)
    monkeypatch.setattr(sources, "hub_is_reachable", lambda: True)
    task = corpus(None, source="hub", hub_name="allenai/c4")
    with rejects("task.hub_name", "allenai/c4"):
        load_examples(task, "train")


LETTERS = "abcdefghij"
END, FIRST = 1, 4
"""Ids of the end-of-text token and of the first letter; a blank's piece is before it."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """A token for each letter; also the roles of [MASK], [CLS] and [SEP]."""
    pieces = [("▁", -9.0), *((letter, -1.0) for letter in LETTERS)]
    folder = tmp_path_factory.mktemp("letters")
    save_tokenizer(folder, pieces, algorithm="unigram", sentinels=4)
    made: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return made


def text_of(length: int) -> Example:
    """A word whose tokens are the blank's piece and ``length - 1`` letters."""
    word = (LETTERS * length)[: length - 1]
    return Example(prompt="", target=word, group=word, cut_target_end=True)


def ids_of(length: int) -> list[int]:
    return [3, *(FIRST + at % len(LETTERS) for at in range(length - 1))]


def encoding(
    tokenizer: PreTrainedTokenizerBase, kind: str, *, max_length: int, **changes: object
) -> CorpusEncoding:
    layout = TextLayout(kind=kind, pad_token_id=0)
    return CorpusEncoding(tokenizer=tokenizer, layout=layout, max_length=max_length, **changes)  # type: ignore[arg-type]


def test_a_long_text_has_chunks_of_itself_alone_and_no_more_than_asked(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    made = encoding(tokenizer, CAUSAL, max_length=6, chunks=2)
    rows, counts = made.rows_in_chunks([text_of(12), text_of(3), text_of(5)])
    assert counts.tolist() == [2, 1, 1]
    whole = ids_of(12)
    assert [row.input_ids[1:] for row in rows] == [
        whole[:5], whole[5:10], [*ids_of(3), END], ids_of(5),
    ]  # fmt: skip
    assert [row.labels for row in rows] == [[IGNORED_LABEL, *row.input_ids[1:]] for row in rows]
    assert [row.truncated for row in rows] == [False, True, False, False]


def test_a_prefix_is_read_and_what_follows_is_written(tokenizer: PreTrainedTokenizerBase) -> None:
    """In the proportion of 512 to 114, as whole texts of 626 tokens are."""
    made = encoding(tokenizer, SEQ2SEQ, max_length=512)
    assert made.raw_length == 626
    (whole, short) = made.rows([text_of(700), text_of(9)])
    assert (len(whole.input_ids), len(whole.labels)) == (512, 114)
    assert [*whole.input_ids, *whole.labels] == ids_of(700)[:626]
    assert whole.truncated
    assert [*short.input_ids, *short.labels] == [*ids_of(9), END]
    assert len(short.labels) == 2


def test_spans_are_hidden_of_a_chunk_that_fills_the_model(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    made = encoding(tokenizer, SEQ2SEQ, max_length=24, span_corruption=True)
    (row,) = made.rows_together([text_of(40)])
    assert len(row.input_ids) == made.raw_length == 26
    (read,) = made.rows([text_of(40)])
    assert len(read.input_ids) <= 24
    assert len(read.labels) <= 24
    assert made.rows([text_of(40)]) == [read], "a score does not change by chance"


def test_a_tokenizer_of_too_few_sentinels_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with rejects("task.objective", "span_corruption"):
        encoding(tokenizer, SEQ2SEQ, max_length=512, span_corruption=True)


def test_a_masked_model_reads_a_text_between_its_marks(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    marked = AutoTokenizer.from_pretrained(tmp_path, mask_token="<extra_id_0>")
    made = encoding(marked, MASKED, max_length=8)
    (row,) = made.rows_together([text_of(20)])
    around = len(marked("").input_ids)
    assert len(row.input_ids) == 8
    assert made.raw_length == 8 - around
    (read,) = made.rows([text_of(20)])
    learned = [at for at, label in enumerate(read.labels) if label != IGNORED_LABEL]
    assert learned
    assert [read.labels[at] for at in learned] == [row.input_ids[at] for at in learned]


def test_gaps_of_a_prompt_are_sentinels_and_it_ends_as_all_that_is_read(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    made = encoding(tokenizer, SEQ2SEQ, max_length=40, span_corruption=True)
    (found,) = prompts(made, "ab ____ cd _____")
    blank, first = 3, FIRST
    one, two = made.asked_sentinels[:2]
    assert found == [blank, first, first + 1, one, blank, first + 2, first + 3, two, END]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("abc", "task.objective", "span_corruption"),
        ("____ a " * 4, "prompts", 4),
        ("abcdefghij" * 2 + "____", "prompts", 23),
    ],
)
def test_a_prompt_whose_gaps_cannot_be_filled_is_refused(
    tokenizer: PreTrainedTokenizerBase, text: str, key: str, value: object
) -> None:
    made = encoding(tokenizer, SEQ2SEQ, max_length=16, span_corruption=True)
    with rejects(key, value):
        prompts(made, text)


def test_what_a_model_goes_on_from_is_the_end_of_a_beginning_or_nothing(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    prefix = encoding(tokenizer, SEQ2SEQ, max_length=6)
    assert prompts(prefix, "abcdefgh") == [[FIRST + at for at in range(2, 8)]]
    assert prefix.asked_sentinels == ()
    causal = encoding(tokenizer, CAUSAL, max_length=6, chunks=2)
    assert prompts(causal, "") == [[END]], "the start token, from which a whole text is written"


def prompts(made: CorpusEncoding, text: str) -> list[list[int]]:
    example = Example(prompt=text, target="", group=text)
    return made.prompts([example], max_length=made.max_length, max_new_tokens=2)


def test_a_masked_model_needs_no_end_of_text_token_for_a_text_of_several_chunks(
    tmp_path: Path,
) -> None:
    """BERT's tokenizer has none."""
    bert = small.wordpiece(tmp_path / "bert")
    assert bert.eos_token_id is None
    made = encoding(bert, MASKED, max_length=6, chunks=2)
    text = Example(prompt="", target="the film was great and the play was dull", group="")
    rows, counts = made.rows_in_chunks([text])
    assert counts.tolist() == [2]
    assert [len(row.input_ids) for row in rows] == [6, 6]


END_OF_TEXT, SENTINELS = 1, tuple(range(1000, 1030))
SPANS = SpanCorruption(noise_density=0.15, mean_span=3.0, sentinels=SENTINELS, end=END_OF_TEXT)
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
        assert view.input_ids[-1] == view.labels[-1] == END_OF_TEXT
        read, written = corrupted_lengths(length, density=0.15, mean_span=3.0)
        assert (len(view.input_ids), len(view.labels)) == (read, written)


@pytest.mark.slow
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
