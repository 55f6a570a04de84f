"""``audit=memorization`` over a finished run: what is written, where it goes, what is refused."""

import json
import random
import stat
from pathlib import Path
from typing import Any

import pytest
from transformers import BertForMaskedLM, GPT2LMHeadModel, T5ForConditionalGeneration

from dpft.audit.kinds.memorization import Memorization
from dpft.audit.memorization_audit import (
    SETS,
    MemorizationResult,
    audit_memorization,
)
from dpft.errors import InputError
from dpft.kinds import CAUSAL, MASKED, SEQ2SEQ
from dpft.records.form import as_json
from dpft.training.training_config import DeviceConfig
from tests.models import small
from tests.slowness import slow_but
from tests.stories.tiny import Workspace, make_workspace

CPU = DeviceConfig(device="cpu")


def audited(run: str, **options: Any) -> MemorizationResult:
    asked = vars(Memorization(**options)) | {"device": CPU}
    return audit_memorization(Path(run), **{key: asked[key] for key in asked if key != "name"})


def test_scores_of_every_set_are_written_for_the_owner_alone(texts_runs: Workspace) -> None:
    result = audited("pairs", limit=5)
    path = texts_runs.root / "pairs/private/audit/memorization.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    record = json.loads(path.read_text())
    assert record == as_json(result.record())
    assert record["private"] is True
    assert set(record["exact_match"]) | set(record["not_there"]) == set(SETS)
    for kind in ("exact_match", "token_accuracy", "median_edit_distance", "records"):
        assert set(record[kind]) == set(record["exact_match"])
    assert record["records"]["train_unique"] == 5
    assert "private: it is about the training records" in str(result.parts()[-1])


def test_nothing_of_it_is_public(texts_runs: Workspace) -> None:
    before = {path for path in texts_runs.root.rglob("*") if "private" not in path.parts}
    audited("held", limit=3)
    assert {path for path in texts_runs.root.rglob("*") if "private" not in path.parts} == before


def test_held_out_records_are_the_control(texts_runs: Workspace) -> None:
    result = audited("held", limit=4)
    assert result.scores["valid_unique"].records == 4
    assert "train_unique" in result.scores


def test_sets_that_are_not_there_are_named(texts_runs: Workspace) -> None:
    (texts_runs.root / "data/test.jsonl").unlink()
    result = audited("pairs", limit=2)
    assert "holds no test split" in result.not_there["valid_unique"]
    assert result.not_there["train_dup"] == "no training record has a near duplicate"
    assert any(str(part).startswith("valid_in_train is not there:") for part in result.parts())


def test_a_run_whose_private_folder_is_gone_says_what_can_still_be_done(
    texts_runs: Workspace,
) -> None:
    (texts_runs.root / "held/private").rename(texts_runs.root / "away")
    with pytest.raises(InputError, match=r"private/held_out\.key.* What can be done without: aud"):
        audited("held")


@pytest.mark.parametrize("key", ["prefix_tokens", "continuation_tokens", "limit"])
def test_counts_are_positive(key: str) -> None:
    with pytest.raises(InputError, match=rf"audit\.{key} must be at least 1, got 0\."):
        Memorization(**{key: 0})


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
    with pytest.raises(InputError, match="a model that writes texts, got task=custom, whose answ"):
        audited(str(tmp_path / "run"))


def test_a_run_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run must be the folder of a dpft run"):
        audited(str(tmp_path / "none"))


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
    """Returns an objective of ``CORPORA`` once there is a run of it, in a folder of its name."""
    if not (workspace.root / objective / "config.yaml").exists():
        kind, words = CORPORA[objective]
        done = workspace.run(
            "train", "task=corpus", "task.data_dir=texts.txt", f"model.path={kind}", *words,
            "eval.held_out=0.4", "eval.enabled=false", "train.expected_batch_size=8",
            "train.steps=1", "train.micro_batch_size=3", "privacy.noise_multiplier=1",
            "privacy.accountant=rdp", "privacy.self_check=false", f"hydra.run.dir={objective}",
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


@pytest.mark.parametrize("objective", slow_but(["span_corruption"], CORPORA))
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


@pytest.mark.parametrize("objective", slow_but(["span_corruption"], CORPORA))
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
        with pytest.raises(InputError, match="in the same order, got others"):
            audited(objective)
    finally:
        path.write_text(before)


def test_what_follows_a_prefix_is_asked_of_a_model_of_hidden_spans_too(
    corpora: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Table 3 of Ponomareva et al. 2022 has it; a model of a prefix has no spans to fill."""
    monkeypatch.chdir(corpora.root)
    result = audited(trained(corpora, "span_corruption"), hidden="continuation", limit=4)
    assert result.scores["train_unique"].records == 4
    assert result.record().hidden == "continuation"


@pytest.mark.parametrize(
    ("objective", "hidden"),
    slow_but([("prefix_lm", "spans")], [("prefix_lm", "spans"), ("mlm", "continuation")]),
)
def test_what_an_objective_does_not_hide_is_not_asked_for(
    corpora: Workspace, monkeypatch: pytest.MonkeyPatch, objective: str, hidden: str
) -> None:
    monkeypatch.chdir(corpora.root)
    with pytest.raises(InputError, match=rf"audit\.hidden={hidden} needs a"):
        audited(trained(corpora, objective), hidden=hidden)


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
        "task.max_length=64", "model=tiny", "train.steps=200", "train.expected_batch_size=25",
        "train.learning_rate=3e-3", "eval.enabled=false", "hydra.run.dir=run",
        "privacy=none" if eps is None else f"privacy.eps={eps}",
    )  # fmt: skip
    assert done.code == 0, done.err
    scores = audited(str(tmp_path / "run"), prefix_tokens=6).scores
    assert scores["train_unique"].records == scores["valid_unique"].records == 50
    assert scores["train_unique"].exact_match == expected
    assert scores["valid_unique"].exact_match <= 2
