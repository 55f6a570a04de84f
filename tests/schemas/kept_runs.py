"""Runs of every kind in one workspace, whose files are held to their schemas."""

from pathlib import Path

from tests import slowness
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

QUICK = ("train.steps=2", "privacy.self_check=false")
OPEN = ("train", *SETTING, "train.expected_batch_size=8", "privacy=none")
SHORT = "decode.max_new_tokens=4"
FOR_SLOW_TESTS = ("on", "open_canaries")
"""Runs that no test of ``make test`` looks at."""
TRAIN_ON = (*(word for word in TRAINING if word != "model.path=model"), "model.path=private/model")


def make_runs(root: Path) -> Workspace:
    """Returns a workspace in which each folder is a run of its name's kind."""
    made = make_workspace(root)
    write_rows(made.root / "prompts.jsonl", [("name[Cafe 1], eatType[pub]", "x")])
    notes = [f"{' '.join(WORDS[n % 4 :: 4])} by the river\n" for n in range(LINES)]
    (made.root / "notes.txt").write_text("".join(notes))
    public = ("eval.split_is_public=true", *EVALUATION, "privacy.witness=heads.jsonl")
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
        if folder in FOR_SLOW_TESTS and slowness.LEFT_OUT:
            continue
        done = made.run(*words, f"hydra.run.dir={folder}")
        assert done.code == 0, done.err
    return made
