"""Processes that share the work of ``dpft eval`` and ``dpft generate``, and who may start them."""

import pytest

from tests.stories.ranks import run_ranks
from tests.stories.tiny import (
    EVALUATION,
    STEPS,
    TRAIN,
    TRAINING,
    Workspace,
    make_workspace,
    own_entries,
    write_rows,
)  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, shared_accounting: None) -> Workspace:
    """A workspace with a finished run ``run`` and prompts."""
    made = make_workspace(tmp_path_factory.mktemp("shared"))
    words = (*TRAINING, STEPS, "privacy.noise_multiplier=1", "privacy.noise_seed=3")
    made.finished(*words, *EVALUATION, "hydra.run.dir=run")
    write_rows(made.root / "prompts.jsonl", [(f"name[Inn {i}], near[x]", "") for i in range(5)])
    return made


def shared(workspace: Workspace, *words: str) -> str:
    """Run a command in two processes; return what they say together."""
    return run_ranks(workspace.root, *words, "parallel=ddp")


def test_scores_of_two_processes_are_those_of_one(workspace: Workspace) -> None:
    words = ("eval", "run=run", "eval.limit=5", "output=json")
    alone = workspace.run(*words)
    assert alone.code == 0, alone.err
    run = workspace.root / "run"
    predictions = run / "private" / "predictions.jsonl"
    metrics, texts = own_entries(run), predictions.read_bytes()
    said = shared(workspace, *words)
    assert said.count('"evaluations"') == 1
    assert predictions.read_bytes() == texts
    assert own_entries(run) == metrics
    assert len(texts.splitlines()) == 5 < TRAIN


def test_texts_of_two_processes_are_those_of_one(workspace: Workspace) -> None:
    words = ("generate", "run=run", "prompts=prompts.jsonl", "decode.max_new_tokens=6")
    assert workspace.run(*words, "to=alone.jsonl").code == 0
    said = shared(workspace, *words, "to=both.jsonl")
    assert said.count("INFO: records: ") == 1
    alone, both = (workspace.root / f"{name}.jsonl" for name in ("alone", "both"))
    assert both.read_bytes() == alone.read_bytes()
    assert len(both.read_bytes().splitlines()) == 5


def test_one_prompt_leaves_a_process_without_work(workspace: Workspace) -> None:
    write_rows(workspace.root / "one.jsonl", [("name[Inn]", "")])
    shared(workspace, "generate", "run=run", "prompts=one.jsonl", "to=one_out.jsonl")
    assert len((workspace.root / "one_out.jsonl").read_bytes().splitlines()) == 1
