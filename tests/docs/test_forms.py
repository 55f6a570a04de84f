"""Every schema against real files of real runs, and against files that were spoiled."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from docs.tools.reference.forms import schema
from tests.commands.test_tuning_search import SEARCH
from tests.conftest import sharing
from tests.stories.test_canaries import FEW
from tests.stories.test_canaries import RUN as CANARIES
from tests.stories.test_tokenizer import LINES, PIECES, TOKENIZER, TRAIN, WORDS
from tests.stories.tiny import (
    EVALUATION,
    SETTING,
    TRAINING,
    Workspace,
    make_workspace,
    write_rows,
)

pytestmark = pytest.mark.slow

QUICK = ("train.steps=2",)
OPEN = ("train", *SETTING, "train.expected_batch_size=8", "privacy=none")
SHORT = "decode.max_new_tokens=4"
TRAIN_ON = (*(word for word in TRAINING if word != "model.path=model"), "model.path=private/model")


def make_runs(root: Path) -> Workspace:
    """Return a workspace in which each folder is a run of its name's kind."""
    made = make_workspace(root)
    write_rows(made.root / "prompts.jsonl", [("name[Cafe 1], eatType[pub]", "x")])
    notes = [f"{' '.join(WORDS[n % 4 :: 4])} by the river\n" for n in range(LINES)]
    (made.root / "notes.txt").write_text("".join(notes))
    public = ("eval.split_is_public=true", *EVALUATION)
    commands = {
        "private": ("train", *TRAINING, *QUICK, "privacy.eps=8", *public),
        "phases": (
            *("train", *TRAINING, "method=two_phase", "method.full_epochs=0.2", *QUICK),
            *("privacy.noise_multiplier=1", "privacy.noise_seed=1", "eval.enabled=false"),
        ),
        "open": (*OPEN, "train.steps=1", *EVALUATION),
        "on": ("train", *TRAIN_ON, "privacy.eps=8", *QUICK, "eval.enabled=false"),
        "canaries": ("train", *CANARIES, *QUICK, "audit.canaries=12", "audit.white_box=true", *FEW),
        "open_canaries": (
            *(*OPEN, "train.steps=1", "eval.enabled=false"),
            *("audit.canaries=8", "audit.canary_words=4"),
        ),
        "vocabulary": (*TOKENIZER, *PIECES, "privacy.eps=4"),
        "open_vocabulary": (*TOKENIZER[:3], "tokenizer.algorithm=char", *PIECES, "privacy=none"),
        "with_vocabulary": (*TRAIN, "privacy.eps=4", "model.tokenizer=vocabulary"),
    }
    for folder, words in commands.items():
        done = made.run(*words, f"hydra.run.dir={folder}")
        assert done.code == 0, done.err
    return made


def check(name: str, content: Any) -> None:
    """Reject content that is not as its schema has it, in the words of the closest fault."""
    fault = best_match(Draft202012Validator(schema(name)).iter_errors(content))
    assert fault is None, f"{name}: {list(fault.absolute_path)}: {fault.message}"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def lines(path: Path) -> Iterator[Any]:
    return map(json.loads, path.read_text().splitlines())


@pytest.fixture(scope="module")
def workspace(
    tmp_path_factory: pytest.TempPathFactory, lasting_answers: dict[Any, Any]
) -> Workspace:
    """A workspace with runs of every kind, each trained once for all tests."""
    # They write to the environment, which commands are checked to leave alone.
    import joblib  # noqa: F401
    import sklearn.datasets  # noqa: F401

    with sharing(lasting_answers):
        return make_runs(tmp_path_factory.mktemp("schemas"))


@pytest.fixture(scope="module", autouse=True)
def _shared(shared_accounting: None) -> None:
    """Every command here shares its accountants."""


def printed(workspace: Workspace, *words: str) -> Any:
    done = workspace.run(*words, "output=json")
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.parametrize(
    ("folder", "holds"),
    [
        ("private", {"plan", "epsilon_curve"}),
        ("phases", {"plan", "steps_taken"}),
        ("with_vocabulary", {"with_tokenizer"}),
        ("canaries", {"plan", "ledger"}),
        ("open", {"plan", "parameters"}),
        ("on", {"starting_models"}),
    ],
)
def test_privacy_json(workspace: Workspace, folder: str, holds: set[str]) -> None:
    found = read(workspace.root / folder / "privacy.json")
    assert holds <= set(found)
    check("privacy", found)


def test_privacy_json_of_a_tokenizer_and_what_its_command_prints(workspace: Workspace) -> None:
    for name in ("vocabulary", "open_vocabulary"):
        check("tokenizer_privacy", read(workspace.root / name / "privacy.json"))
    check("tokenizer_privacy", printed(workspace, "tokenizer", "resume=vocabulary", *PIECES))


@pytest.mark.parametrize("folder", ["private", "open"])
def test_scores_and_texts(workspace: Workspace, folder: str) -> None:
    run = workspace.root / folder
    check("metrics", read(run / "metrics.json"))
    if folder == "open":
        check("metrics", read(run / "private" / "metrics.json"))
        assert all(not each["metrics"] for each in read(run / "metrics.json")["evaluations"])
    texts = run / ("predictions.jsonl" if folder == "private" else "private/predictions.jsonl")
    for line in lines(texts):
        check("predictions_line", line)
    check("metrics", printed(workspace, "eval", f"run={folder}", "eval.limit=2", SHORT))


@pytest.mark.parametrize("folder", ["private", "phases", "vocabulary"])
def test_each_line_of_the_ledger(workspace: Workspace, folder: str) -> None:
    found = list(lines(workspace.root / folder / "ledger.jsonl"))
    assert len(found) >= 2
    for line in found:
        check("ledger_line", line)


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("private", ("prompts=prompts.jsonl",)),
        ("open", ("prompts=prompts.jsonl",)),
        ("phases", ("prompts=prompts.jsonl",)),
        ("with_vocabulary", ("num=2",)),
    ],
)
def test_what_synthetic_records_cost(
    workspace: Workspace, folder: str, words: tuple[str, ...]
) -> None:
    done = workspace.run("generate", f"run={folder}", *words, SHORT)
    assert done.code == 0, done.err
    (statement,) = (workspace.root / folder / "generated").glob("*.privacy.json")
    check("generated_privacy", read(statement))


@pytest.mark.parametrize(
    ("folder", "audit"),
    [
        ("canaries", "one_run"),
        ("canaries", "exposure"),
        ("private", "membership"),
        ("private", "memorization"),
        ("open_canaries", "one_run"),
        ("open", "membership"),
    ],
)
def test_what_audits_find(workspace: Workspace, folder: str, audit: str) -> None:
    check(f"audit_{audit}", printed(workspace, "audit", f"run={folder}", f"audit={audit}"))
    check(f"audit_{audit}", read(workspace.root / folder / f"private/audit/{audit}.json"))
    privacy = read(workspace.root / folder / "privacy.json")
    assert (audit in privacy.get("audited", {})) == (audit in ("one_run", "exposure"))
    check("privacy", privacy)


@pytest.mark.parametrize("folder", ["canaries", "open_canaries"])
def test_what_an_audit_finds_in_synthetic_records(workspace: Workspace, folder: str) -> None:
    done = workspace.run(
        "generate", f"run={folder}", "prompts=prompts.jsonl", f"to={folder}.jsonl", SHORT
    )
    assert done.code == 0, done.err
    words = ("audit=synthetic", f"synthetic={folder}.jsonl")
    check("audit_synthetic", printed(workspace, "audit", f"run={folder}", *words))


@pytest.mark.parametrize(
    "words",
    [
        ("num_examples=4000", "expected_batch_size=100", "epochs=2", "eps=3"),
        ("sample_rate=0.01", "steps=5", "noise_multiplier=1", "delta=1e-5", "curve=true"),
        ("run=private",),
        ("run=vocabulary",),
        ("runs=[private,canaries]",),
    ],
)
def test_what_account_prints(workspace: Workspace, words: tuple[str, ...]) -> None:
    check("account", printed(workspace, "account", *words))


def test_what_account_prints_of_a_ledger_that_was_lodged(workspace: Workspace) -> None:
    head = read(workspace.root / "private" / "privacy.json")["ledger"]["head"]
    found = printed(workspace, "account", "run=private", f"head={head}")
    assert found["ledger"]["head_checked"]
    check("account", found)


@pytest.mark.parametrize(
    "words",
    [
        (*TRAINING, *QUICK, "privacy.eps=8"),
        (*OPEN[1:], "train.steps=2"),
        (*TRAINING, *QUICK, "privacy.noise_multiplier=1", "plan.measure=false"),
        (*TRAINING, *QUICK, "privacy.eps=8", "parallel=fsdp"),
        (*TRAIN[1:], "privacy.total_eps=6", "model.tokenizer=vocabulary"),
    ],
)
def test_what_plan_prints(workspace: Workspace, words: tuple[str, ...]) -> None:
    check("plan", printed(workspace, "plan", *words))


@pytest.mark.parametrize("what", ["tasks", "models", "methods", "recipes", "metrics"])
def test_what_list_prints(workspace: Workspace, what: str) -> None:
    check("list", printed(workspace, "list", what))


def test_what_the_doctor_prints(workspace: Workspace) -> None:
    check("doctor", json.loads(workspace.run("doctor", "output=json").out))


def test_what_a_search_publishes(workspace: Workspace) -> None:
    done = workspace.run("tune", *SEARCH, "tune.gamma=0.5", "hydra.run.dir=search")
    assert done.code == 0, done.err
    found = read(workspace.root / "search" / "privacy.json")
    assert "selection" in found
    check("privacy", found)


def test_images_have_the_classes_they_were_taken_for(workspace: Workspace) -> None:
    done = workspace.run(
        "train", "task=digits", "model=vit-tiny", "privacy=none", "train.steps=1",
        "eval.limit=20", "hydra.run.dir=digits",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = read(workspace.root / "digits" / "metrics.json")
    assert "confusion" in found["evaluations"][0]
    check("metrics", found)


SPOILED: dict[str, tuple[str, str, Callable[[Any], object]]] = {
    "a key that nobody writes": ("privacy", "privacy.json", lambda it: it.update(eps=3)),
    "a key that is gone": ("privacy", "privacy.json", lambda it: it.pop("delta")),
    "a text for a number": ("privacy", "privacy.json", lambda it: it.update(epsilon="3")),
    "delta above 1": ("privacy", "privacy.json", lambda it: it.update(delta=1.5)),
    "another version": ("privacy", "privacy.json", lambda it: it.update(schema_version=1)),
    "a head that is none": (
        *("privacy", "privacy.json"),
        lambda it: it["ledger"].update(head="0"),
    ),
    "an epsilon without privacy": (
        *("privacy", "../open/privacy.json"),
        lambda it: it.update(epsilon=1.0),
    ),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_file_fails(workspace: Workspace, what: str) -> None:
    name, file, spoil = SPOILED[what]
    whole = read(workspace.root / "private" / file)
    check(name, whole)
    spoiled = copy.deepcopy(whole)
    spoil(spoiled)
    assert not Draft202012Validator(schema(name)).is_valid(spoiled)


def test_a_spoiled_line_of_the_ledger_fails(workspace: Workspace) -> None:
    name, first, *_, last = lines(workspace.root / "private" / "ledger.jsonl")
    is_valid = Draft202012Validator(schema("ledger_line")).is_valid
    assert not is_valid({**first, "time": "12:00"})
    assert not is_valid({**first, "mechanism": {**first["mechanism"], "batch_size": 7}})
    assert not is_valid({**last, "closed": False})
    assert not is_valid({**name, "run_id": "mine"})
    assert not is_valid({**name, "date": "2026-01-31"})
    assert not is_valid({**name, "previous": last["previous"]})
