"""Exact match, token accuracy and two edit distances, by hand and by their relations."""

import json
import random
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    GPT2LMHeadModel,
    PreTrainedTokenizerBase,
    T5ForConditionalGeneration,
)

from dpft.audit.base import AuditedRun
from dpft.audit.memorization import (
    SETS,
    Attempt,
    MemorizationAudit,
    MemorizationConfig,
    edit_distance,
    scores_of,
    t5_words,
)
from dpft.audit.prompted_rows import PromptedRow, prompted_rows
from dpft.commands.guarantee import privacy_of
from dpft.commands.ledger_account import saved_run
from dpft.constants import CAUSAL, MASKED, SEQ2SEQ, TEXT
from dpft.data.batches import TextLayout
from dpft.data.corpus_objectives import (
    CorpusEncoding,
)
from dpft.data.encoding import TextEncoding
from dpft.strict_model import as_json
from dpft.tasks.base import Example
from dpft.tokenizers import save_tokenizer
from dpft.training.training_config import DeviceConfig
from tests.models import small
from tests.rejections import rejects
from tests.stories.tiny import Workspace, make_workspace

TOKENS = st.lists(st.integers(0, 3), max_size=6).map(tuple)


def attempt(continuation: tuple[int, ...], written: tuple[int, ...]) -> Attempt:
    texts = (" ".join(map(str, tokens)) for tokens in (continuation, written))
    said, wrote = texts
    return Attempt(
        continuation=continuation, written=written, continuation_text=said, written_text=wrote
    )


def test_scores_by_hand() -> None:
    scores = scores_of(
        [
            [attempt((1, 2, 3, 4), (1, 2, 3, 4))],
            [attempt((1, 2, 3, 4), (1, 9, 3))],  # one changed, one left out; two in their places
            [attempt((5, 6), (6,))],  # none in its place
        ],
        records=3,
    )
    assert scores.records == 3
    assert scores.exact_match == pytest.approx(100 / 3)
    assert scores.token_accuracy == pytest.approx(100 * (1 + 2 / 4 + 0) / 3)
    assert scores.median_edit_distance == 1
    assert scores.mean_continuation_tokens == pytest.approx(10 / 3)


def test_of_a_row_with_several_spans_all_must_be_filled_and_each_counts_by_its_tokens() -> None:
    row = [attempt((1, 2, 3), (1, 2, 3)), attempt((4,), ()), attempt((5, 6), (6, 5, 7))]
    scores = scores_of([row, row[:1]], records=1)
    assert (scores.records, scores.rows) == (1, 2)
    assert scores.exact_match == 50
    assert scores.token_accuracy == pytest.approx(100 * (3 / 6 + 1) / 2)
    assert scores.median_edit_distance == (0 + (0 + 1 + 2)) / 2
    assert scores.mean_continuation_tokens == (6 + 3) / 2


@pytest.mark.slow
@given(st.lists(st.tuples(TOKENS.filter(bool), TOKENS), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_match_has_all_its_tokens_and_no_distance(pairs: list[tuple[tuple, tuple]]) -> None:
    scores = scores_of([[attempt(*pair)] for pair in pairs], records=len(pairs))
    assert scores.exact_match <= scores.token_accuracy + 1e-9
    for continuation, written in pairs:
        one = scores_of([[attempt(continuation, written)]], records=1)
        assert (one.exact_match == 100) == (one.median_edit_distance == 0)


def test_the_distance_of_words_is_not_that_of_tokens() -> None:
    one = Attempt(
        continuation=(1, 2, 3), written=(1, 2), continuation_text="A pub, cheap",
        written_text="a PUB",
    )  # fmt: skip
    scores = scores_of([[one]], records=1)
    assert scores.median_edit_distance == 1
    assert scores.median_edit_distance_words == 2  # the item between comma and blank, and "cheap"


def test_words_are_split_as_t5_splits_them() -> None:
    assert t5_words("It's £20-25.") == ["it", "s", "", "20", "25", ""]
    assert t5_words("") == [""]


def test_a_distance_counts_put_in_left_out_and_changed() -> None:
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance([1, 2, 3], []) == 3


def asked(**options: Any) -> dict[str, Any]:
    """Return what ``prompted_rows`` is told by an audit of these options."""
    audit = MemorizationConfig(**options)
    keys = ("hidden", "prefix_tokens", "continuation_tokens")
    return {key: getattr(audit, key) for key in keys}


PROMPT, TARGET = "it was", "the film and a great play"


def encoding(kind: str) -> TextEncoding:
    layout = TextLayout(kind=kind, answer=TEXT, pad_token_id=0, takes_position_ids=kind == CAUSAL)
    tokenizer = small.blank_words(closes=kind == SEQ2SEQ)
    return TextEncoding(tokenizer=tokenizer, layout=layout, max_length=32)


def cut(kind: str, prefix_tokens: int, example: Example, most: int = 114) -> PromptedRow:
    made = encoding(kind)
    (found,) = prompted_rows([example], made, prefix_tokens=prefix_tokens, continuation_tokens=most)
    return found


def ids(kind: str, text: str) -> tuple[int, ...]:
    found: Any = encoding(kind).tokenizer(text, add_special_tokens=False)["input_ids"]
    return tuple(found)


PAIR = Example(prompt=PROMPT, target=TARGET, group="")
PLAIN = Example(prompt="", target=TARGET, group="", cut_target_end=True)
LEARNED = Example(prompt=PROMPT, target=TARGET, group="", after_start=True, learns_prompt=True)


@pytest.mark.parametrize("prefix_tokens", [1, 2])
def test_the_whole_prompt_is_given_however_short_the_prefix(prefix_tokens: int) -> None:
    found = cut(CAUSAL, prefix_tokens, PAIR)
    assert found.beginning.read == ids(CAUSAL, PROMPT)
    assert found.targets[0] == ids(CAUSAL, TARGET)
    assert found.beginning.max_new_tokens == len(found.targets[0])


def test_a_longer_prefix_takes_of_the_target() -> None:
    found = cut(CAUSAL, 4, PAIR)
    whole = ids(CAUSAL, PROMPT) + ids(CAUSAL, TARGET)
    assert found.beginning.read + found.targets[0] == whole
    assert len(found.beginning.read) == 4


def test_a_record_no_longer_than_the_prefix_gives_its_first_half() -> None:
    found = cut(CAUSAL, 512, PLAIN)
    target = ids(CAUSAL, TARGET)
    # a start token stands before a plain text, and is one of its tokens
    assert (len(found.beginning.read), len(found.targets[0])) == (3, 4)
    assert found.beginning.read[1:] + found.targets[0] == target


def test_a_prompt_that_was_learned_may_be_cut_too() -> None:
    found = cut(CAUSAL, 2, LEARNED)
    assert found.beginning.read[1:] == ids(CAUSAL, PROMPT)[:1]
    assert found.targets[0] == ids(CAUSAL, PROMPT)[1:] + ids(CAUSAL, TARGET)


def test_a_continuation_has_at_most_so_many_tokens() -> None:
    assert cut(CAUSAL, 1, PAIR, most=2).targets[0] == ids(CAUSAL, TARGET)[:2]


@pytest.mark.parametrize(("prefix_tokens", "begun"), [(1, 0), (2, 0), (5, 3)])
def test_a_seq2seq_model_reads_the_prompt_and_has_begun_the_target(
    prefix_tokens: int, begun: int
) -> None:
    found = cut(SEQ2SEQ, prefix_tokens, PAIR)
    target = ids(SEQ2SEQ, TARGET)
    assert found.beginning.read == (*ids(SEQ2SEQ, PROMPT), 1)
    assert (found.beginning.decoder_tokens, found.targets[0]) == (target[:begun], target[begun:])


def test_a_seq2seq_model_of_plain_texts_has_begun_them() -> None:
    found = cut(SEQ2SEQ, 2, PLAIN)
    assert (found.beginning.read, found.beginning.decoder_tokens) == (
        (1,),
        ids(SEQ2SEQ, TARGET)[:2],
    )


@pytest.mark.parametrize("kind", [CAUSAL, SEQ2SEQ])
def test_a_record_with_nothing_to_write_is_left_out(kind: str) -> None:
    empty = Example(prompt=PROMPT, target="", group="")
    assert prompted_rows([empty], encoding(kind), **asked(prefix_tokens=1)) == []


LETTERS = "abcdefghij"
END = 1


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """A token for each letter, sentinels, and a mask."""
    pieces = [("▁", -9.0), *((letter, -1.0) for letter in LETTERS)]
    folder = tmp_path_factory.mktemp("letters")
    save_tokenizer(folder, pieces, algorithm="unigram", sentinels=9)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    return tokenizer


def corpus(tokenizer: PreTrainedTokenizerBase, kind: str, **changes: Any) -> CorpusEncoding:
    layout = TextLayout(kind=kind, answer=TEXT, pad_token_id=0)
    return CorpusEncoding(tokenizer=tokenizer, layout=layout, **{"max_length": 24, **changes})


def word(length: int) -> Example:
    """A word whose tokens are the blank's piece and ``length - 1`` letters."""
    text = (LETTERS * length)[: length - 1]
    return Example(prompt="", target=text, group=text, cut_target_end=True)


def tokens_of(tokenizer: PreTrainedTokenizerBase, length: int) -> tuple[int, ...]:
    found: Any = tokenizer(word(length).target, add_special_tokens=False)["input_ids"]
    return tuple(found)


def test_a_prefix_of_a_corpus_text_is_read_by_the_encoder_as_in_training(
    letters: PreTrainedTokenizerBase,
) -> None:
    """No end-of-text token follows it, and the decoder writes from its own first token on."""
    made = corpus(letters, SEQ2SEQ)
    for prefix_tokens, read in ((10, 10), (26, 24), (512, 24)):
        (found,) = prompted_rows([word(40)], made, **asked(prefix_tokens=prefix_tokens))
        whole = tokens_of(letters, 40)[: made.raw_length]
        assert found.beginning.read == whole[:read]
        assert found.beginning.decoder_tokens == ()
        assert found.targets == (whole[read:],)
        assert found.written((3, 4)) == [(3, 4)]
    (row,), (short,) = made.rows([word(9)]), prompted_rows([word(9)], made, **asked())
    assert list(short.beginning.read) == row.input_ids, "of a short text as much as in training"
    assert [*short.targets[0], END] == row.labels


def test_a_prefix_before_a_model_of_hidden_spans_ends_as_all_that_it_reads(
    letters: PreTrainedTokenizerBase,
) -> None:
    made = corpus(letters, SEQ2SEQ, span_corruption=True)
    options = asked(hidden="continuation", prefix_tokens=10, continuation_tokens=5)
    (found,) = prompted_rows([word(40)], made, **options)
    whole = tokens_of(letters, 40)
    assert found.beginning.read == (*whole[:10], END)
    assert (found.targets, found.beginning.max_new_tokens) == ((whole[10:15],), 5)
    (short,) = prompted_rows([word(9)], made, **options | {"prefix_tokens": 512})
    assert short.beginning.read == (*tokens_of(letters, 9)[:4], END)


def test_hidden_spans_are_those_of_the_row_as_it_is_scored(
    letters: PreTrainedTokenizerBase,
) -> None:
    made = corpus(letters, SEQ2SEQ, span_corruption=True)
    (found,), (row,) = prompted_rows([word(26)], made, **asked()), made.rows([word(26)])
    assert list(found.beginning.read) == row.input_ids
    target = [int(label) for label in row.labels]
    assert found.beginning.max_new_tokens == len(target) - 1, "the end of the text aside"
    assert found.written(target[:-1]) == list(found.targets)
    assert sum(map(len, found.targets)) == 4, "15 % of 26"


def test_what_is_written_is_parted_by_any_sentinel_and_what_is_left_out_is_nothing(
    letters: PreTrainedTokenizerBase,
) -> None:
    made = corpus(letters, SEQ2SEQ, span_corruption=True, max_length=40)
    options = asked(continuation_tokens=2)
    (found,) = prompted_rows([word(40)], made, **options)
    assert sum(map(len, found.targets)) == 2
    first, second = made.sentinels[:2]
    assert found.written([9, first, 5, 6, second, 7])[0] == (5, 6)
    assert found.written([second, 7])[0] == ()
    assert found.written([]) == [()] * len(found.targets)
    assert found.written([first, 5, first, 6])[0] == (5,), "the first filling counts"


def test_a_masked_model_reads_masks_in_the_place_of_spans(letters: PreTrainedTokenizerBase) -> None:
    made = corpus(letters, MASKED)
    (found,) = prompted_rows([word(22)], made, **asked())
    (raw,) = made.rows_together([word(22)])
    places = [n for n, token in enumerate(found.beginning.read) if token == letters.mask_token_id]
    assert len(places) == found.beginning.max_new_tokens == sum(map(len, found.targets)) == 3
    there = [raw.input_ids[place] for place in places]
    assert found.written(there) == list(found.targets)
    kept = [n for n in range(len(raw.input_ids)) if n not in places]
    assert all(found.beginning.read[n] == raw.input_ids[n] for n in kept)


def test_each_chunk_that_was_trained_on_is_asked_about(letters: PreTrainedTokenizerBase) -> None:
    made = corpus(letters, CAUSAL, chunks=3)
    options = asked(prefix_tokens=4)
    found = prompted_rows([word(50), word(9)], made, **options)
    assert [each.record for each in found] == [0, 0, 0, 1]
    whole = tokens_of(letters, 50)
    assert [each.beginning.read[1:] + each.targets[0] for each in found[:2]] == [
        whole[:23],
        whole[23:46],
    ]
    chosen = prompted_rows([word(50), word(9)], made, **options, rows=[[1], [0]])
    assert chosen == [found[1], found[3]]


@pytest.mark.parametrize(
    ("kind", "hidden", "changes"),
    [
        (CAUSAL, "spans", {}),
        (SEQ2SEQ, "spans", {}),
        (MASKED, "continuation", {}),
    ],
)
def test_what_a_model_has_not_learned_to_write_is_refused(
    letters: PreTrainedTokenizerBase, kind: str, hidden: str, changes: dict[str, Any]
) -> None:
    with rejects("audit.hidden", hidden):
        prompted_rows([], corpus(letters, kind, **changes), **asked(hidden=hidden))


CPU = DeviceConfig(device="cpu")


def audited(run: str, **options: Any) -> MemorizationAudit:
    folder = Path(run)
    audited_run = AuditedRun(
        folder=folder, config=saved_run(run), privacy=privacy_of(folder), device=CPU
    )
    record: MemorizationAudit = MemorizationConfig(**options).find(audited_run).record
    return record


@pytest.mark.slow
def test_scores_of_every_set_are_written_for_the_owner_alone(texts_runs: Workspace) -> None:
    result = audited("pairs", limit=5)
    path = texts_runs.root / "pairs/private/audit/memorization.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    record = json.loads(path.read_text())
    assert record == as_json(result)
    assert record["private"] is True
    assert set(record["scores"]) | set(record["not_there"]) == set(SETS)
    assert record["scores"]["train_unique"]["records"] == 5
    assert "private: it is about the training records" in str(result.parts()[-1])


@pytest.mark.slow
def test_nothing_of_it_is_public(texts_runs: Workspace) -> None:
    before = {path for path in texts_runs.root.rglob("*") if "private" not in path.parts}
    audited("held", limit=3)
    assert {path for path in texts_runs.root.rglob("*") if "private" not in path.parts} == before


@pytest.mark.slow
def test_held_out_records_are_the_control(texts_runs: Workspace) -> None:
    result = audited("held", limit=4)
    assert result.scores["valid_unique"].records == 4
    assert "train_unique" in result.scores


@pytest.mark.slow
def test_sets_that_are_not_there_are_named(texts_runs: Workspace) -> None:
    (texts_runs.root / "data/test.jsonl").unlink()
    result = audited("pairs", limit=2)
    assert "no test split" in result.not_there["valid_unique"]
    assert result.not_there["train_dup"] == "no training record has a near duplicate"
    assert any(str(part).startswith("valid_in_train is empty:") for part in result.parts())


@pytest.mark.slow
def test_a_run_whose_private_folder_is_gone_says_what_can_still_be_done(
    texts_runs: Workspace,
) -> None:
    (texts_runs.root / "held/private").rename(texts_runs.root / "away")
    with rejects("run") as faults:
        audited("held")
    assert faults[0].hint == "audit=synthetic"


@pytest.mark.slow
def test_a_model_that_writes_no_texts_is_refused(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    rows = "".join(f"it was {'good' if n % 2 else 'bad'},{n % 2}\n" for n in range(40))
    (tmp_path / "labels.csv").write_text("text,label\n" + rows)
    done = workspace.run(
        "train", "task=custom", "task.data_dir=labels.csv", 'task.text="{text}"',
        "task.label=label", "task.labels=[no,yes]", "model=tiny", "model.path=model",
        "privacy=none", "train.expected_batch_size=8", "train.steps=1", "eval.enabled=false",
        "hydra.run.dir=run", "task.max_length=16",
    )  # fmt: skip
    assert done.code == 0, done.err
    with rejects("run"):
        audited(str(tmp_path / "run"))


CORPORA = {
    "span_corruption": (SEQ2SEQ, ["task.max_length=12", "task.chunks_per_record=2"]),
    "prefix_lm": (SEQ2SEQ, ["task.objective=prefix_lm", "task.max_length=12"]),
    "causal": (CAUSAL, ["task.max_length=12", "task.chunks_per_record=3"]),
    "mlm": (MASKED, ["task.max_length=12", "task.chunks_per_record=2", "privacy.unit=chunk"]),
}
"""Runs of each objective, most of them in chunks: the kind of their model, and their words."""


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Where ``trained`` makes runs on the lines of ``texts.txt``, the longest of several chunks."""
    workspace = Workspace(tmp_path_factory.mktemp("corpora"))
    order = random.Random(2)
    lines = [" ".join(order.choices(small.WORDS[5:], k=4 + 8 * (n % 4))) for n in range(48)]
    (workspace.root / "texts.txt").write_text("".join(line + "\n" for line in lines))
    for kind in (SEQ2SEQ, CAUSAL, MASKED):
        save_model(kind, workspace.root / kind)
    return workspace


def trained(workspace: Workspace, objective: str) -> str:
    """Return an objective of ``CORPORA`` once there is a run of it, in a folder of its name."""
    if not (workspace.root / objective / "config.yaml").exists():
        kind, words = CORPORA[objective]
        done = workspace.run(
            "train", "task=corpus", "task.data_dir=texts.txt", f"model.path={kind}", *words,
            "eval.held_out=0.4", "eval.enabled=false", "train.expected_batch_size=8",
            "train.steps=1", "train.micro_batch_size=3", "privacy.noise_multiplier=1",
            "privacy.accountant=rdp", f"hydra.run.dir={objective}",
        )  # fmt: skip
        assert done.code == 0, done.err
    return objective


def save_model(kind: str, folder: Path) -> None:
    tokenizer = small.wordpiece(folder) if kind == MASKED else small.blank_words(closes=True)
    if kind == SEQ2SEQ:
        names = [f"<extra_id_{number}>" for number in range(9)]
        tokenizer.add_special_tokens({"additional_special_tokens": names})
    size = {"vocab_size": len(tokenizer)}
    made: Any = {
        SEQ2SEQ: lambda: T5ForConditionalGeneration(small.t5_config(**size)),
        CAUSAL: lambda: GPT2LMHeadModel(small.gpt2_config(**size)),
        MASKED: lambda: BertForMaskedLM(small.bert_config(**size)),
    }[kind]()
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("objective", CORPORA)
def test_a_run_of_every_objective_is_audited_on_the_rows_that_it_was_trained_on(
    corpora: Workspace, monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    monkeypatch.chdir(corpora.root)
    result = audited(trained(corpora, objective), prefix_tokens=3)
    assert result.hidden == ("spans" if objective in ("span_corruption", "mlm") else "continuation")
    scores = result.scores["train_unique"]
    assert 0 < scores.records <= scores.rows
    in_chunks = any("chunks" in word for word in CORPORA[objective][1])
    assert (scores.records < scores.rows) == in_chunks
    assert (f"({scores.rows} rows)" in str(result.parts()[0])) == in_chunks
    assert scores.exact_match <= scores.token_accuracy
    assert scores.mean_continuation_tokens >= 1
    assert result.scores["valid_unique"].records > 0


@pytest.mark.slow
@pytest.mark.parametrize("objective", CORPORA)
def test_other_texts_than_those_trained_on_are_seen_of_a_corpus_in_chunks(
    corpora: Workspace, monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    monkeypatch.chdir(corpora.root)
    trained(corpora, objective)
    path = corpora.root / "texts.txt"
    before = path.read_text()
    lines = before.splitlines(keepends=True)
    # The second chunk of a long line is another one.
    lines = [line[:-5] + "film\n" if len(line.split()) > 20 else line for line in lines]
    assert lines != before.splitlines(keepends=True)
    path.write_text("".join(lines))
    try:
        with rejects("run"):
            audited(objective)
    finally:
        path.write_text(before)


@pytest.mark.slow
def test_what_follows_a_prefix_is_asked_of_a_model_of_hidden_spans_too(
    corpora: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Table 3 of Ponomareva et al. 2022 has it; a model of a prefix has no spans to fill."""
    monkeypatch.chdir(corpora.root)
    result = audited(trained(corpora, "span_corruption"), hidden="continuation", limit=4)
    assert result.scores["train_unique"].records == 4
    assert result.hidden == "continuation"


def sentences() -> list[str]:
    """A hundred sentences that nobody can go on with who has not read them."""
    order = random.Random(1)
    kinds = "red blue green old new quiet busy cheap fine small large warm".split()  # noqa: SIM905
    places = "pub cafe hotel bridge garden museum river market".split()  # noqa: SIM905
    numbers = order.sample(range(100, 1000), 100)
    return [
        f"House {number} is a {' '.join(order.choices(kinds, k=3))} {order.choice(places)} by a"
        f" {order.choice(kinds)} {order.choice(places)}."
        for number in numbers
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("eps", "expected"), [(None, 100.0), (3, 0.0)])
def test_a_model_without_privacy_repeats_its_fifty_records_and_one_under_epsilon_none(
    tmp_path: Path, eps: int | None, expected: float
) -> None:
    workspace, texts = Workspace(tmp_path), sentences()
    (tmp_path / "data").mkdir()
    for split, chosen in (("train", texts[:50]), ("test", texts[50:])):
        lines = (json.dumps({"text": text}) + "\n" for text in chosen)
        (tmp_path / "data" / f"{split}.jsonl").write_text("".join(lines))
    done = workspace.run(
        "train", "task=custom", f"task.data_dir={tmp_path / 'data'}", 'task.text="{text}"',
        "task.max_length=64", "model=tiny", "train.steps=100", "train.expected_batch_size=25",
        "train.learning_rate=3e-3", "eval.enabled=false", "hydra.run.dir=run",
        "privacy=none" if eps is None else f"privacy.eps={eps}",
    )  # fmt: skip
    assert done.code == 0, done.err
    scores = audited(str(tmp_path / "run"), prefix_tokens=6).scores
    assert scores["train_unique"].records == scores["valid_unique"].records == 50
    assert scores["train_unique"].exact_match == expected
    assert scores["valid_unique"].exact_match <= 2
