"""A run of ``dpft train`` releases what DP-SGD computed by hand gives, record by record.

Each run is a few steps of plain SGD with fixed keys on twelve records of different lengths, in
micro-batches of three. The model ties its head to its embedding and has biases.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tests.guarantees.by_hand import Row, difference, train_by_hand, write_rows
from tests.stories.tiny import EMBEDDED_MODEL, Workspace

TOLERANCE = 0.005
"""Share of the clipped updates' length by which a model may differ: clipping factors may be too
small by up to 0.2 %, because norms are over-estimated by their rounding."""
SEED = 42
"""Its draws have different sizes, and one draw of units is empty."""
NORM, BIAS_NORM = 4.0, 0.8
"""Clipping norms in the middle of the gradients' norms: some are shorter and some are longer."""
SETTING = {
    "noise_multiplier": 0.5,
    "expected_batch_size": 4,
    "learning_rate": 0.01,
    "steps": 4,
}
QUESTION, ANSWER = "Where is the old river inn", "In town near a pub and hall"
ROWS: tuple[Row, ...] = tuple(
    {
        "question": " ".join(QUESTION.split()[: 1 + place % 5]) + "?",
        "answer": " ".join(ANSWER.split()[: 1 + (3 * place) % 7]),
        "customer": f"customer {place // 3}",
    }
    for place in range(12)
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A folder with the model and the records.

    The weights are so large that each parameter holds at least 0.3 % of a squared gradient norm.
    """
    root = tmp_path_factory.mktemp("by_hand")
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            if ".ln_" not in name or name.endswith("bias"):
                parameter.normal_(0, 0.3, generator=generator)
    model.save_pretrained(root / "model")
    tokenizer.save_pretrained(root / "model")
    write_rows(root / "rows.jsonl", ROWS)
    return Workspace(root)


def run_words(name: str, *words: str, max_grad_norm: float) -> tuple[str, ...]:
    """Return the arguments of a run with the setting of this file, whose folder is ``name``."""
    return (
        "train", "task=custom", "task.data_dir=rows.jsonl", 'task.prompt="{question}"',
        'task.target="{answer}"', "task.max_length=32", "task.metrics=[perplexity]",
        "model=tiny", "model.path=model", "optimizer=sgd",
        f"train.learning_rate={SETTING['learning_rate']}", f"train.steps={SETTING['steps']}",
        f"train.expected_batch_size={SETTING['expected_batch_size']}",
        "train.micro_batch_size=3", "train.num_threads=1", "eval.enabled=false",
        f"privacy.noise_multiplier={SETTING['noise_multiplier']}", "privacy.accountant=rdp",
        f"privacy.max_grad_norm={max_grad_norm}", f"privacy.noise_seed={SEED}",
        f"hydra.run.dir={name}", *words,
    )  # fmt: skip


def released(workspace: Workspace, name: str, *words: str, max_grad_norm: float) -> Path:
    """Train in this process; return the folder of the released model."""
    done = workspace.run(*run_words(name, *words, max_grad_norm=max_grad_norm))
    assert done.code == 0, done.err
    return workspace.root / name / "model"


def compare(
    workspace: Workspace,
    model: Path,
    units: Sequence[Sequence[Row]],
    trains: Callable[[str], bool],
    **setting: float,
) -> None:
    """Assert that the released model is the one computed by hand."""
    by_hand, moved = train_by_hand(
        workspace.root / "model", units, trains=trains, seed=SEED, **(SETTING | setting)
    )
    apart = difference(by_hand, model)
    assert apart, "no tensor was compared"
    assert max(apart.values()) <= TOLERANCE * moved, {k: v / moved for k, v in apart.items()}


def test_full_fine_tuning(workspace: Workspace) -> None:
    model = released(workspace, "full", "method=full", max_grad_norm=NORM)
    compare(workspace, model, [[row] for row in ROWS], lambda _: True, max_grad_norm=NORM)


def test_biases_alone(workspace: Workspace) -> None:
    model = released(workspace, "bitfit", "method=bitfit", max_grad_norm=BIAS_NORM)
    compare(
        workspace,
        model,
        [[row] for row in ROWS],
        lambda name: name.endswith("bias"),
        max_grad_norm=BIAS_NORM,
    )


def test_units_of_several_records(workspace: Workspace) -> None:
    model = released(
        workspace, "units", "method=full", "privacy.unit=customer", "privacy.records_per_unit=3",
        "train.expected_batch_size=2", max_grad_norm=2 * NORM,
    )  # fmt: skip
    units = [ROWS[first : first + 3] for first in range(0, len(ROWS), 3)]
    compare(workspace, model, units, lambda _: True, max_grad_norm=2 * NORM, expected_batch_size=2)


@pytest.mark.slow
def test_two_processes(workspace: Workspace, tmp_path: Path) -> None:
    """The noise is added once, not once per process, and no record is added twice."""
    words = run_words("two", "method=full", max_grad_norm=NORM)
    done = subprocess.run(
        [sys.executable, "-m", "dpft", *words, "parallel=ddp", "launch=local",
         "launch.processes=2"],
        cwd=workspace.root, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    model = workspace.root / "two" / "model"
    compare(workspace, model, [[row] for row in ROWS], lambda _: True, max_grad_norm=NORM)
