"""A private vocabulary, from a corpus to a trained model and one epsilon for both."""

import errno
import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dpft.commands.finished_run import open_run
from dpft.privacy.accounting.summary import eps_text
from dpft.privacy.mechanisms.histogram import GaussianHistogram
from tests.stories.tiny import MARKER, TRAINING, Workspace, make_workspace

pytestmark = pytest.mark.slow

LINES = 400
WORDS = (
    "low", "wide", "slow", "town", "house", "green", "bridge", "water", "boat", "morning",
    "light", "north", "garden", "winter", "market", "people", "summer", "stone", "under", "quiet",
)  # fmt: skip
DATA = ("task=corpus", "task.data_dir=notes.txt", "privacy.delta=1e-4")
TOKENIZER = ("tokenizer", *DATA, "tokenizer.words_per_record=8")
EPS = ("privacy.eps=4",)
PIECES = ("tokenizer.vocab_size=30",)
COMES_WITH = "The tokenizer of the model was made from the same records; both together are"
TRAIN = (
    "train", *DATA, "model=tiny", "model.path=model", "model.init=random", "task.max_length=16",
    "train.expected_batch_size=8", "train.steps=2", "privacy.accountant=rdp", "eval.enabled=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a corpus ``notes.txt`` and a finished tokenizer in ``vocabulary``."""
    made = make_workspace(tmp_path_factory.mktemp("tokenizer"))
    lines = [f"{' '.join(WORDS[n % 4 :: 4])} by the river\n" for n in range(LINES - 1)]
    (made.root / "notes.txt").write_text("".join([*lines, f"{MARKER} lives here\n"]))
    rows = [json.dumps({"text": line, "who": n % 50}) + "\n" for n, line in enumerate(lines)]
    (made.root / "rows.jsonl").write_text("".join(rows))
    done = made.run(*TOKENIZER, *PIECES, *EPS, "output=json", "hydra.run.dir=vocabulary")
    assert done.code == 0, done.err
    (made.root / "printed.json").write_text(done.out)
    return made


@pytest.fixture(scope="module")
def trained(workspace: Workspace) -> dict[str, Any]:
    """privacy.json of a run with that tokenizer."""
    done = workspace.run(
        *TRAIN, "privacy.eps=4", "model.tokenizer=vocabulary", "hydra.run.dir=trained"
    )
    assert done.code == 0, done.err
    return read(workspace.root / "trained" / "privacy.json")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_what_is_printed_says_what_it_cost_and_what_came_of_it(workspace: Workspace) -> None:
    printed = read(workspace.root / "printed.json")
    plan = printed["plan"]
    noise_std = plan["histogram"]["noise_std"]
    histogram = GaussianHistogram(
        noise_std=noise_std, l2_cap=1.0, linf_cap=1.0, words_per_record=8, delta=1e-4
    )
    assert printed["epsilon"] == histogram.epsilon <= 4
    assert printed["epsilon_classical"] == histogram.epsilon_classical
    assert plan["histogram"]["threshold"] == histogram.threshold
    assert (plan["delta"], plan["num_examples"], printed["private"]) == (1e-4, LINES, True)
    assert (printed["pieces"]["vocab_size"], printed["pieces"]["tokens"]) == (30, 133)
    words = (workspace.root / "vocabulary" / "histogram.tsv").read_text().splitlines()
    assert printed["words_kept"] == len(words) >= 19


def test_no_public_file_holds_a_word_of_one_record_alone(workspace: Workspace) -> None:
    folder = workspace.root / "vocabulary"
    files = [path for path in folder.rglob("*") if path.is_file()]
    public = [path for path in files if "private" not in path.parts]
    assert {"tokenizer.json", "histogram.tsv", "report.md", "report.html"} <= {
        p.name for p in public
    }
    assert not [path for path in public if MARKER.encode() in path.read_bytes()]
    private = [path for path in folder.rglob("*") if "private" in path.parts]
    assert [oct(path.stat().st_mode)[-2:] for path in private] == ["00"] * len(private)


def test_the_ledger_has_one_step_and_accounts_for_itself(workspace: Workspace) -> None:
    lines = (workspace.root / "vocabulary" / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line).get("step") for line in lines] == [None, 1, None]
    done = workspace.run("account", "run=vocabulary", "output=json")
    printed, found = read(workspace.root / "printed.json"), json.loads(done.out)
    assert found["epsilon"] == pytest.approx(printed["epsilon"], rel=1e-6)
    assert (found["delta"], found["plan"]) == (printed["plan"]["delta"], printed["plan"])
    assert found["plan"]["sampler"] == "none"


def test_training_composes_both_below_their_sum(
    workspace: Workspace, trained: dict[str, Any]
) -> None:
    tokenizer = read(workspace.root / "vocabulary" / "privacy.json")
    both, delta = trained["with_tokenizer"]["epsilon"], trained["with_tokenizer"]["delta"]
    assert delta == trained["delta"] + tokenizer["plan"]["delta"]
    assert tokenizer["epsilon"] < both < trained["epsilon"] + tokenizer["epsilon"]
    done = workspace.run("account", "runs=[vocabulary,trained]", "output=json")
    together = json.loads(done.out)
    assert together["epsilon"] == pytest.approx(both, rel=1e-9)
    assert together["delta"] == delta
    simple = together["simple_composition"]
    assert simple["epsilon"] == pytest.approx(trained["epsilon"] + tokenizer["epsilon"], rel=1e-6)
    alone = workspace.run("account", "run=trained", "output=json")
    warnings = json.loads(alone.out)["warnings"]
    said = [text for text in warnings if "covers only the training" in text]
    assert f"learned from the same records, epsilon = {eps_text(both)}" in said[0]
    report = (workspace.root / "trained" / "report.md").read_text()
    assert "both together are" in report.partition("\n## ")[0]
    words = f"of 2 planned. It covers the training alone. {COMES_WITH} (ε = {eps_text(both)}"
    again = workspace.run("train", "resume=trained")
    assert (again.code, words in again.out) == (0, True), again.err
    opened = open_run(workspace.root / "trained")
    assert (opened.epsilon, opened.delta) == (both, delta)
    wrote = workspace.run("generate", "run=trained", "num=2")
    assert wrote.code == 0, wrote.err
    statements = (workspace.root / "trained" / "generated").rglob("*.json")
    notes = [note for path in statements for note in read(path)["notes"]]
    assert any(f"(epsilon = {eps_text(both)}" in note for note in notes)


def test_a_total_budget_is_met_by_both(workspace: Workspace) -> None:
    words = (*TRAIN, "privacy.total_eps=6", "model.tokenizer=vocabulary")
    done = workspace.run("plan", *words[1:], "output=json")
    assert done.code == 0, done.err
    planned = json.loads(done.out)
    assert 5.9 < planned["with_tokenizer"]["epsilon"] <= 6
    table = workspace.run("plan", *words[1:]).out
    assert "for the training only, ε 6.000 with its tokenizer" in table.splitlines()[0]
    assert planned["with_tokenizer"]["delta"] == planned["delta"] + 1e-4


def test_the_model_speaks_the_vocabulary(workspace: Workspace, trained: dict[str, Any]) -> None:
    saved = workspace.root / "trained" / "model"
    assert read(saved / "config.json")["vocab_size"] == 133
    own, theirs = (
        read(folder / "tokenizer.json")["model"]["vocab"]
        for folder in (saved, workspace.root / "vocabulary" / "tokenizer")
    )
    assert own == theirs
    done = workspace.run("eval", "run=trained", "eval.split=train", "eval.limit=2", "output=json")
    assert done.code == 0, done.err


def test_another_vocabulary_of_the_same_histogram_costs_nothing(workspace: Workspace) -> None:
    shutil.copytree(workspace.root / "vocabulary", workspace.root / "again")
    before = (workspace.root / "again" / "ledger.jsonl").read_bytes()
    words = ("tokenizer.vocab_size=25", "tokenizer.algorithm=bpe")
    done = workspace.run("tokenizer", "resume=again", *words, "output=json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["pieces"]["vocab_size"] == 25
    assert (workspace.root / "again" / "ledger.jsonl").read_bytes() == before


def test_a_vocabulary_that_the_words_do_not_allow_says_what_is_spent(workspace: Workspace) -> None:
    done = workspace.run(*TOKENIZER, "tokenizer.vocab_size=5000", *EPS, "hydra.run.dir=large")
    assert done.code == 2
    sentence = done.err.splitlines()[-1]
    assert "tokenizer.vocab_size must be at most" in sentence
    assert "epsilon = " in sentence
    assert "resume=large" in sentence.replace(str(workspace.root) + "/", "")
    assert len((workspace.root / "large" / "ledger.jsonl").read_text().splitlines()) == 3
    again = workspace.run("tokenizer", "resume=large", *PIECES)
    assert again.code == 0, again.err


def test_a_corpus_of_one_record_keeps_no_word(workspace: Workspace) -> None:
    (workspace.root / "one.txt").write_text(f"{MARKER} alone\n")
    done = workspace.run(
        *TOKENIZER, *PIECES, *EPS, "task.data_dir=one.txt", "privacy.num_examples=400",
        "hydra.run.dir=one",
    )  # fmt: skip
    assert done.code == 2
    assert "No word reached the threshold" in done.err and "epsilon = " in done.err


def test_noise_that_hides_every_word_is_refused_before_it_is_paid_for(
    workspace: Workspace,
) -> None:
    (workspace.root / "few.txt").write_text("".join(f"{MARKER} {n}\n" for n in range(5)))
    done = workspace.run(
        *TOKENIZER, *PIECES, "privacy.eps=0.1", "task.data_dir=few.txt", "hydra.run.dir=few",
    )  # fmt: skip
    assert done.code == 2
    assert "With 5 records" in done.err
    assert not (workspace.root / "few" / "ledger.jsonl").exists()


def test_more_pieces_than_words_are_likely_to_give_are_warned_of(workspace: Workspace) -> None:
    words = (*TOKENIZER, *EPS, "task.data_dir=notes.txt")
    done = workspace.run(*words, "tokenizer.vocab_size=5000", "hydra.run.dir=many")
    assert "tokenizer.vocab_size=5000 is probably too large" in done.err
    assert done.err.index("probably too large") < done.err.index("has cost epsilon")


def test_rows_of_one_unit_are_bounded_together(workspace: Workspace) -> None:
    words = (*TOKENIZER, *PIECES, "tokenizer.noise_std=0.5", "task.data_dir=rows.jsonl")
    done = workspace.run(*words, "privacy.unit=who", "output=json", "hydra.run.dir=units")
    assert done.code == 0, done.err
    plan = json.loads(done.out)["plan"]
    assert (plan["num_examples"], plan["unit"]) == (50, "who")
    most = (workspace.root / "units" / "histogram.tsv").read_text().split("\n")[0].split("\t")[1]
    assert int(most) <= 50, "each unit moves a count by at most 1"


def test_what_is_missing_or_does_not_fit_is_refused_before_anything_is_spent(
    workspace: Workspace, trained: dict[str, Any]
) -> None:
    (workspace.root / "empty.txt").write_text("\n \n")
    (workspace.root / "bytes.txt").write_bytes(b"fine\n\xff\xfe\n")
    refused = workspace.refusal
    assert "exactly one of privacy.eps" in refused(*TOKENIZER, *PIECES)
    assert "task.data_dir=empty.txt" in refused(
        *TOKENIZER, *PIECES, *EPS, "task.data_dir=empty.txt"
    )
    assert "bytes.txt, line 2" in refused(*TOKENIZER, *PIECES, *EPS, "task.data_dir=bytes.txt")
    used = refused(*TOKENIZER, *PIECES, *EPS, "hydra.run.dir=vocabulary")
    assert "dpft tokenizer resume=" in used
    for tiny in ("tokenizer.noise_std=1e-300", "tokenizer.noise_std=1e-5"):
        assert "must be at least 2^-16" in refused(*TOKENIZER, *PIECES, tiny)
    small = ("tokenizer.l2_cap=1e-9", "tokenizer.linf_cap=1e-9")
    assert "got 9.97e-10" in refused(*TOKENIZER, *PIECES, *EPS, *small)
    assert "privacy.eps" in refused("tokenizer", "resume=vocabulary", "privacy.eps=9")
    assert refused("tokenizer", "resume=trained").startswith("resume ")
    assert "trains no model" in refused("eval", "run=vocabulary")
    assert "model.init=random" in refused(
        *TRAIN, "privacy.eps=4", "model.tokenizer=vocabulary", "model.init=pretrained"
    )
    assert "out of reach" in refused(*TRAIN, "privacy.total_eps=1", "model.tokenizer=vocabulary")
    assert "model.tokenizer" in refused(*TRAIN, "privacy.total_eps=6")


def test_a_tokenizer_of_another_unit_or_without_a_ledger_is_refused(workspace: Workspace) -> None:
    private = (*TRAIN, "privacy.eps=4")
    rows = (*private, "task.data_dir=rows.jsonl", "privacy.unit=who", "privacy.records_per_unit=1")
    assert "unit of the run, 'who'" in workspace.refusal(*rows, "model.tokenizer=vocabulary")
    shutil.copytree(workspace.root / "vocabulary" / "tokenizer", workspace.root / "plain")
    assert "Try: model.tokenizer_is_public=true" in workspace.refusal(
        *private, "model.tokenizer=plain"
    )
    done = workspace.run(
        *private, "model.tokenizer=plain", "model.tokenizer_is_public=true", "hydra.run.dir=public"
    )
    assert done.code == 0, done.err
    privacy = read(workspace.root / "public" / "privacy.json")
    assert "with_tokenizer" not in privacy
    assert any("taken as public" in warning for warning in privacy["warnings"])


OPEN = ("tokenizer", *DATA[:2], *PIECES, "privacy=none")


@pytest.mark.parametrize("algorithm", ["unigram", "char"])
def test_a_vocabulary_without_privacy_says_so(workspace: Workspace, algorithm: str) -> None:
    """Ponomareva et al. 2022, Table 1: SentencePiece on C4 and on Wikipedia, and by characters."""
    folder = workspace.root / f"open_{algorithm}"
    words = (f"tokenizer.algorithm={algorithm}", f"hydra.run.dir={folder.name}")
    done = workspace.run(*OPEN, *words)
    assert done.code == 0, done.err
    assert done.out.startswith("NOT PRIVATE: this vocabulary was made without differential privacy")
    record = read(folder / "privacy.json")
    assert record["private"] is False and not {"epsilon", "plan"} & set(record)
    assert {path.name for path in folder.iterdir()} & {"histogram.tsv", "ledger.jsonl"} == set()
    assert f"{MARKER}\t1\n" in (folder / "private/histogram.tsv").read_text()
    letters = {letter for line in (*WORDS, MARKER, "by", "lives") for letter in line}
    pieces = read(folder / "tokenizer" / "tokenizer.json")["model"]["vocab"]
    names = {piece for piece, _ in pieces}
    assert algorithm != "char" or letters & names == {n for n in names if len(n) == 1} - {"\u2581"}
    assert "\n> **NOT PRIVATE: this vocabulary" in (folder / "report.md").read_text()


def test_a_vocabulary_without_privacy_is_no_private_runs_unless_it_is_public(
    workspace: Workspace,
) -> None:
    done = workspace.run(*OPEN, "tokenizer.algorithm=unigram", "hydra.run.dir=open")
    assert done.code == 0, done.err
    shutil.copytree(workspace.root / "open" / "tokenizer", workspace.root / "copied")
    embedded = ("train", *TRAINING, "model.init=random")
    for given, private in product(("copied", "open", "open/tokenizer"), (TRAIN, embedded)):
        assert "made with privacy=none" in workspace.refusal(
            *private, "privacy.eps=4", f"model.tokenizer={given}"
        )
    trained = workspace.run(
        *TRAIN[:3], *TRAIN[4:-3], "model.tokenizer=open/tokenizer", "train.steps=1",
        "privacy=none", "eval.enabled=false", "hydra.run.dir=open_run",
    )  # fmt: skip
    assert trained.code == 0, trained.err
    assert "made with privacy=none" in workspace.refusal("tokenizer", "resume=open")
    assert "made with privacy=none" in workspace.refusal(
        *TRAIN, "privacy.eps=4", "model.tokenizer=open_run/model"
    )
    for more in ("privacy.eps=4", "tokenizer.noise_std=3", "privacy.delta=1e-4"):
        assert more.partition("=")[0] in workspace.refusal(*OPEN, more)


def test_the_tokenizers_own_folder_in_its_run_is_not_taken_as_public(workspace: Workspace) -> None:
    words = (*TRAIN[1:], "privacy.eps=4", "model.tokenizer=vocabulary/tokenizer", "output=json")
    for more in ((), ("model.tokenizer_is_public=true",)):
        done = workspace.run("plan", *words, *more)
        assert done.code == 0, done.err
        assert json.loads(done.out)["with_tokenizer"]["delta"] == 2e-4


def test_a_tokenizer_whose_noise_was_predictable_is_no_part_of_a_guarantee(
    workspace: Workspace,
) -> None:
    seeded = ("privacy.noise_seed=3", "hydra.run.dir=seeded")
    done = workspace.run(*TOKENIZER, *PIECES, *EPS, *seeded)
    assert done.code == 0, done.err
    private = (*TRAIN, "privacy.eps=4", "model.tokenizer=seeded")
    assert "privacy.noise_seed" in workspace.refusal(*private)
    done = workspace.run("plan", *private[1:], "privacy.noise_seed=3")
    assert done.code == 0, done.err


def test_a_tokenizer_whose_ledger_or_folder_is_gone_is_refused(workspace: Workspace) -> None:
    gone = workspace.root / "gone"
    shutil.copytree(workspace.root / "vocabulary", gone)
    (gone / "ledger.jsonl").unlink()
    words = (*TRAIN, "privacy.eps=4", "model.tokenizer_is_public=true")
    for name in ("gone", "gone/tokenizer"):
        done = workspace.run(*words, f"model.tokenizer={name}")
        assert (done.code, "gone/ledger.jsonl" in done.err) == (3, True)
    assert "'nowhere'" in workspace.refusal(*words, "model.tokenizer=nowhere")
    assert "privacy.unit=chunk" in workspace.refusal(
        *TOKENIZER, *PIECES, *EPS, "privacy.unit=chunk"
    )


def test_files_that_were_changed_since_are_refused(workspace: Workspace) -> None:
    changed = workspace.root / "changed"
    shutil.copytree(workspace.root / "vocabulary", changed)
    with (changed / "histogram.tsv").open("a") as file:
        file.write(f"{MARKER}\t100\n")
    done = workspace.run("tokenizer", "resume=changed", *PIECES)
    assert (done.code, "histogram.tsv" in done.err) == (3, True)
    definition = changed / "tokenizer" / "tokenizer.json"
    definition.write_text(definition.read_text() + "\n")
    done = workspace.run(*TRAIN, "privacy.eps=4", "model.tokenizer=changed")
    assert (done.code, "changed/tokenizer" in done.err) == (3, True)


def broken_off(workspace: Workspace, name: str, lines: int) -> Path:
    """Return a copy of the vocabulary as a crash leaves it: lines of the ledger, no report."""
    broken = workspace.root / name
    shutil.copytree(workspace.root / "vocabulary", broken)
    ledger = broken / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(True)[:lines]))
    (broken / "privacy.json").unlink()
    shutil.rmtree(broken / "tokenizer")
    return broken


def test_a_run_that_broke_off_before_its_words_were_on_disk_says_so(workspace: Workspace) -> None:
    broken = broken_off(workspace, "broken", 2)
    (broken / "histogram.tsv").unlink()
    done = workspace.run("tokenizer", "resume=broken", *PIECES)
    assert (done.code, "epsilon is spent" in done.err) == (2, True)
    account = workspace.run("account", "run=broken", "output=json")
    assert json.loads(account.out)["epsilon"] == pytest.approx(4, abs=1e-3)


@pytest.mark.parametrize("torn", ["", '{"clo', '{"closed": tr'])
def test_a_run_that_broke_off_with_its_words_on_disk_goes_on(
    workspace: Workspace, torn: str
) -> None:
    broken = broken_off(workspace, f"written{len(torn)}", 2)
    with (broken / "ledger.jsonl").open("a") as file:
        file.write(torn)
    done = workspace.run("tokenizer", f"resume={broken.name}", *PIECES)
    assert done.code == 0, done.err
    whole = (workspace.root / "vocabulary" / "ledger.jsonl").read_bytes()
    assert (broken / "ledger.jsonl").read_bytes() == whole


def test_a_run_that_broke_off_before_its_line_was_whole_spent_nothing(workspace: Workspace) -> None:
    broken = broken_off(workspace, "torn", 1)
    (broken / "histogram.tsv").unlink()
    with (broken / "ledger.jsonl").open("a") as file:
        file.write('{"mechanism": {"del')
    done = workspace.run("tokenizer", "resume=torn", *PIECES)
    assert (done.code, "spent nothing" in done.err) == (2, True)
    assert workspace.run(*TOKENIZER, *PIECES, *EPS, "hydra.run.dir=torn").code == 2
    named = broken_off(workspace, "named", 1)
    (named / "histogram.tsv").unlink()
    done = workspace.run(*TOKENIZER, *PIECES, *EPS, "hydra.run.dir=named")
    assert done.code == 0, "a ledger that but names its run is begun anew"


def test_words_that_cannot_be_written_are_said_to_have_cost(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dpft.commands.tokenizer.write_text", full)
    done = workspace.run(*TOKENIZER, *PIECES, *EPS, "hydra.run.dir=full")
    assert done.code == 1
    sentence = done.err.splitlines()[-1]
    assert "(No space left on device)" in sentence and "epsilon = 4.0000" in sentence
    assert len((workspace.root / "full" / "ledger.jsonl").read_text().splitlines()) == 2
