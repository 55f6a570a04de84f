"""Jobs of submitit, here on this machine: tasks that share a run, preempted, requeued and swept."""

import json
import shutil
import signal
from importlib.metadata import distributions
from pathlib import Path

import pytest

from dpft.privacy.ledger import read_ledger
from tests.stories.ranks import SECONDS, children, kill, started
from tests.stories.ranks import wait_until as wait
from tests.stories.test_lost_ranks import SAME, count
from tests.stories.tiny import EVALUATION, TRAINING, Workspace, make_workspace, unnamed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not list(distributions(name="hydra-submitit-launcher")),
        reason="needs the plugin behind hydra/launcher=submitit_local:"
        " pip install hydra-submitit-launcher",
    ),
]
STEPS = 40
RUN = (
    "train", "--multirun", "hydra/launcher=submitit_local", *TRAINING, f"train.steps={STEPS}",
    "train.checkpoint_every=3", "privacy.noise_multiplier=1", "privacy.noise_seed=3",
    *EVALUATION,
)  # fmt: skip
TOGETHER = ("hydra.launcher.tasks_per_node=2", "parallel=ddp")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a finished run ``whole/0`` of a job of two tasks."""
    made = make_workspace(tmp_path_factory.mktemp("submitted"))
    said = go(made, *RUN, *TOGETHER, "hydra.sweep.dir=whole")
    (made.root / "whole.log").write_text(said)
    return made


def go(workspace: Workspace, *words: str, code: int = 0) -> str:
    """Run a command to its end; return what is said."""
    with started(workspace.root, ["-m", "dpft", *words]) as process:
        assert process.wait(SECONDS) == code, (workspace.root / "log").read_text()
    return (workspace.root / "log").read_text()


def said_by_tasks(sweep: Path, task: int = 0) -> str:
    """Return what the tasks of that number said on stderr in all jobs of a sweep."""
    return "".join(log.read_text() for log in sweep.glob(f".submitit/*/*_{task}_log.err"))


def test_tasks_of_one_job_share_one_run(workspace: Workspace) -> None:
    sweep = workspace.root / "whole"
    assert read_ledger(sweep / "0" / "ledger.jsonl").steps == STEPS
    assert said_by_tasks(sweep).count("INFO: training model") == 1
    assert "dpft" not in said_by_tasks(sweep, task=1)
    assert "dpft account runs=" in (workspace.root / "whole.log").read_text()


@pytest.mark.exhaustive
@pytest.mark.parametrize("lines", [6, 0])
def test_a_preempted_job_is_requeued_and_nothing_shows_it(workspace: Workspace, lines: int) -> None:
    """In its steps, and while it loads."""
    name = f"preempted-{lines}"
    folder = workspace.root / name / "0"
    words = [*RUN, *TOGETHER, "resume=auto", f"hydra.sweep.dir={name}"]
    with started(workspace.root, ["-m", "dpft", *words]) as process:
        wait(lambda: said_by_tasks(folder.parent).count("INFO: training") == 1)
        wait(lambda: count(folder / "ledger.jsonl") >= lines)
        (controller,) = children(process.pid)
        tasks = children(controller)
        for task in tasks:
            kill(task, signal.SIGUSR2)
        assert process.wait(SECONDS) == 0, said_by_tasks(folder.parent)
    said = said_by_tasks(folder.parent)
    assert said.count("INFO: training model") == 2
    assert "Traceback" not in said
    assert (f"dpft: to resume: dpft train resume={name}/0" in said) == bool(lines)
    for file in SAME:
        whole = workspace.root / "whole" / "0" / file
        assert unnamed(folder / file) == unnamed(whole)


@pytest.mark.exhaustive
def test_a_second_start_by_hand_is_refused(workspace: Workspace) -> None:
    """Without resume=auto the same words in the same folder are refused."""
    ledger = workspace.root / "whole" / "0" / "ledger.jsonl"
    before = ledger.read_bytes()
    said = go(workspace, *RUN, *TOGETHER, "hydra.sweep.dir=whole", code=2)
    assert f"the job in {ledger.parent} failed with exit code 2; see " in said
    log = Path(said.partition("exit code 2; see ")[2].split()[0])
    assert "dpft train resume=" in log.read_text()
    assert ledger.read_bytes() == before


@pytest.mark.exhaustive
def test_tasks_that_would_each_spend_are_refused(workspace: Workspace) -> None:
    words = [*RUN, TOGETHER[0], "hydra.sweep.dir=apart"]
    go(workspace, *words, code=2)
    sweep = workspace.root / "apart"
    assert said_by_tasks(sweep).count("parallel=none runs in one process") == 1
    assert not (sweep / "0").exists()


@pytest.mark.exhaustive
def test_jobs_at_once_keep_their_bill_and_the_worst_exit_code(workspace: Workspace) -> None:
    words = [*RUN, "hydra.sweep.dir=many", "train.steps=2", "train.seed=-1,1"]
    said = go(workspace, *words, code=2)
    assert said.count("dpft account runs=") == 1
    assert said.count("failed with exit code 2; see ") == 1


def test_trust_rule_8_the_log_of_an_evaluation_has_no_private_score(workspace: Workspace) -> None:
    shutil.copytree(workspace.root / "whole" / "0", workspace.root / "scored")
    words = ("run=scored", "eval.split_is_public=false", *EVALUATION)
    launcher = ("--multirun", "hydra/launcher=submitit_local", "hydra.sweep.dir=scoring")
    go(workspace, "eval", *launcher, *words)
    kept = (workspace.root / "scored" / "private" / "metrics.json").read_text()
    after = json.loads(kept)["evaluations"][-1]
    logs = "".join(
        log.read_text() for log in (workspace.root / "scoring").glob(".submitit/*/*_log.*")
    )
    assert "private/metrics.json" in logs and "private: not covered" not in logs
    assert [v for v in after["metrics"].values() if f"{v:.4f}" in logs or repr(v) in logs] == []
    alone = workspace.run("eval", *words)
    assert alone.code == 0, alone.err
    said = alone.out + alone.err
    assert all(f"{value:.4f}" in said for value in after["metrics"].values())
