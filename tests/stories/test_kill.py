"""Murder: kill -9 at random moments, resume until done, and nothing shows that it happened."""

import random
import signal
from collections import Counter

import pytest

from tests.stories.murder import AIMS, SECONDS, kill_after_a_step, moment, start
from tests.stories.tiny import EVALUATION, TRAINING, Workspace, make_workspace, unnamed

RUN = (
    *TRAINING, "train.checkpoint_every=3", "train.num_threads=1",
    "privacy.noise_multiplier=1", "privacy.noise_seed=3", *EVALUATION,
)  # fmt: skip
AFTER_TRAINING = ("inside the evaluation", "inside the report")
WHILE_TRAINING = [aim for aim in AIMS if aim not in AFTER_TRAINING and "waiting" not in aim]
MURDERS = {"ten": (60, 1, 2), "thirty": (200, 3, 10)}
"""Steps, murders of each aim while training, and those at any time: 6 of these and 2 after it."""


def go(workspace: Workspace, *arguments: str) -> None:
    """Run ``dpft train`` to its end in a process of its own."""
    process = start(workspace.root, ["train", *arguments])
    process.join(SECONDS)
    assert process.exitcode == 0, (workspace.root / "log").read_text()


ADAFACTOR = (
    *RUN, "train.steps=12", "optimizer=adafactor", "optimizer.min_dim_size_to_factor=1",
    "scheduler=rsqrt", "scheduler.warmup_steps=4",
)  # fmt: skip
"""Its moments of matrices by rows and columns; the schedule falls after the fourth step."""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_killed_run_of_adafactor_and_its_schedule_ends_in_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = make_workspace(tmp_path_factory.mktemp("adafactor"))
    go(made, *ADAFACTOR, "hydra.run.dir=whole")
    arguments = [*ADAFACTOR, "hydra.run.dir=killed"]
    for aim in ("between ledger and update", "inside a step", "inside a checkpoint's write"):
        process = start(made.root, ["train", *arguments], aim, 2)
        process.join(SECONDS)
        assert process.exitcode == -signal.SIGKILL, (made.root / "log").read_text()
        arguments = ["resume=killed"]
    go(made, *arguments)
    for name in ("ledger.jsonl", "privacy.json", "model/model.safetensors"):
        assert unnamed(made.root / "killed" / name) == unnamed(made.root / "whole" / name)


@pytest.mark.slow
@pytest.mark.parametrize("number", MURDERS)
def test_trust_rule_9_a_run_survives_ten_or_thirty_murders_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, number: str
) -> None:
    workspace = make_workspace(tmp_path_factory.mktemp("kill"))
    steps, each_aim, any_time = MURDERS[number]
    run = (*RUN, f"train.steps={steps}")
    go(workspace, *run, "hydra.run.dir=whole")
    moments, folder, found = random.Random(7), workspace.root / "killed", Counter[str]()
    aims = [*WHILE_TRAINING * each_aim, *[""] * any_time]
    moments.shuffle(aims)
    arguments = [*run, "hydra.run.dir=killed"]
    for aim in [*aims, *AFTER_TRAINING]:
        at = (aim, 1 if aim in AFTER_TRAINING else moments.randint(2, 6)) if aim else ()
        process = start(workspace.root, ["train", *arguments], *at)
        if aim:
            process.join(SECONDS)
        else:
            kill_after_a_step(process, folder / "ledger.jsonl", moments.uniform(0, 0.1))
        assert process.exitcode == -signal.SIGKILL, "every murder must find the run at work"
        found[moment(folder)] += 1
        arguments = ["resume=killed"]
    go(workspace, *arguments)
    # A run killed while it repeats steps leaves the traces of another moment, so only the moments
    # that leave traces of their own are required.
    assert set(found) >= {
        "inside a checkpoint's write",
        "inside the ledger's write",
        "between journal and ledger",
        "after training",
    }
    for name in (
        "ledger.jsonl",
        "privacy.json",
        "metrics.json",
        "private/metrics.json",
        "model/model.safetensors",
    ):
        assert unnamed(folder / name) == unnamed(workspace.root / "whole" / name)
    assert not [path for path in folder.rglob("*") if "partial" in path.name]
