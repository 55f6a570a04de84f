"""A run of ``dpft train`` releases what DP-SGD computed by hand gives, record by record.

Each run is a few steps of plain SGD with fixed keys on twelve records of different lengths, in
micro-batches of three. The model ties its head to its embedding and has biases. The engine is
fixed, because ``auto`` replaces an engine that the self-check finds to be wrong.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tests.guarantees.by_hand import Phase, Row, difference, train_by_hand, write_rows
from tests.stories.tiny import EMBEDDED_MODEL, Workspace

TOLERANCE = 0.005
"""Share of the clipped updates' length by which a model may differ: clipping factors may be too
small by up to 0.2 %, because norms are over-estimated by their rounding."""
SEED = 42
"""Its draws have different sizes, and one draw of units is empty."""
NORM, BIAS_NORM = 4.0, 0.8
"""Clipping norms in the middle of the gradients' norms: some are shorter and some are longer."""
NOISE_MULTIPLIER, EXPECTED_BATCH_SIZE, LEARNING_RATE, STEPS = 0.5, 4, 0.01, 4
OFTEN_DRAWN = 11
"""A record that three of the four steps draw."""
QUESTION, ANSWER = "Where is the old river inn", "In town near a pub and hall"
ROWS: tuple[Row, ...] = tuple(
    {
        "question": " ".join(QUESTION.split()[: 1 + place % 5]) + "?",
        "answer": " ".join(ANSWER.split()[: 1 + (3 * place) % 7]),
        "customer": f"customer {place // 3}",
    }
    for place in range(12)
)


RECORDS = [[row] for row in ROWS]
"""Privacy units of one record."""


def large_model(config: GPT2Config) -> GPT2LMHeadModel:
    """Return a model with large weights.

    Each parameter holds at least 0.3 % of a squared gradient norm, so that none can be forgotten.
    """
    model = GPT2LMHeadModel(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".ln_" not in name or is_bias(name):
                parameter.normal_(0, 0.3, generator=generator)
    return model


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A folder with the model and the records."""
    root = tmp_path_factory.mktemp("by_hand")
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    large_model(config).save_pretrained(root / "model")
    tokenizer.save_pretrained(root / "model")
    write_rows(root / "rows.jsonl", ROWS)
    return Workspace(root)


def run_words(name: str, *words: str, max_grad_norm: float) -> tuple[str, ...]:
    """Return the arguments of a run with the setting of this file, whose folder is ``name``."""
    return (
        "train", "task=custom", "task.data_dir=rows.jsonl", 'task.prompt="{question}"',
        'task.target="{answer}"', "task.max_length=32", "task.metrics=[perplexity]",
        "model=tiny", "model.path=model", "optimizer=sgd",
        f"train.learning_rate={LEARNING_RATE}", f"train.steps={STEPS}",
        f"train.expected_batch_size={EXPECTED_BATCH_SIZE}",
        "train.micro_batch_size=3", "train.num_threads=1", "eval.enabled=false",
        f"privacy.noise_multiplier={NOISE_MULTIPLIER}", "privacy.accountant=rdp",
        f"privacy.max_grad_norm={max_grad_norm}", f"privacy.noise_seed={SEED}",
        "privacy.engine=book_keeping",
        f"hydra.run.dir={name}", *words,
    )  # fmt: skip


def released(workspace: Workspace, name: str, *words: str, max_grad_norm: float) -> Path:
    """Train in this process; return the folder of the released model."""
    done = workspace.run(*run_words(name, *words, max_grad_norm=max_grad_norm))
    assert done.code == 0, done.err
    return workspace.root / name / "model"


def compare(
    workspace: Workspace,
    released_model: Path,
    *phases: Phase,
    units: Sequence[Sequence[Row]] = RECORDS,
    model: str = "model",
    expected_batch_size: int = EXPECTED_BATCH_SIZE,
) -> None:
    """Assert that the released model is the one computed by hand."""
    by_hand, moved = train_by_hand(
        workspace.root / model, units, phases, noise_multiplier=NOISE_MULTIPLIER,
        expected_batch_size=expected_batch_size, learning_rate=LEARNING_RATE, seed=SEED,
    )  # fmt: skip
    apart = difference(by_hand, released_model)
    assert apart, "no tensor was compared"
    assert max(apart.values()) <= TOLERANCE * moved, {k: v / moved for k, v in apart.items()}


def is_bias(name: str) -> bool:
    """Return whether BiTFiT trains the parameter."""
    return name.endswith("bias")


def any_parameter(_: str) -> bool:
    """Return True: full fine-tuning trains every parameter."""
    return True


FULL = Phase(steps=STEPS, trains=any_parameter, max_grad_norm=NORM)


def test_full_fine_tuning(workspace: Workspace) -> None:
    model = released(workspace, "full", "method=full", max_grad_norm=NORM)
    compare(workspace, model, FULL)


@pytest.mark.slow
def test_biases_alone(workspace: Workspace) -> None:
    model = released(workspace, "bitfit", "method=bitfit", max_grad_norm=BIAS_NORM)
    compare(workspace, model, replace(FULL, trains=is_bias, max_grad_norm=BIAS_NORM))


@pytest.mark.slow
def test_two_phases_with_clipping_norms_of_their_own(workspace: Workspace) -> None:
    """One epoch has three steps; two thirds of it train everything, and the rest the biases."""
    model = released(
        workspace, "phases", "method=two_phase", "method.full_epochs=0.7",
        f"method.bitfit_max_grad_norm={BIAS_NORM}", max_grad_norm=NORM,
    )  # fmt: skip
    biases = Phase(steps=2, trains=is_bias, max_grad_norm=BIAS_NORM)
    compare(workspace, model, replace(FULL, steps=2), biases)


@pytest.mark.slow
def test_per_layer_clipping(workspace: Workspace) -> None:
    model = released(
        workspace, "groups", "method=full", "privacy.clipping=per_layer",
        'privacy.groups=["*wte*","*attn*","*"]', max_grad_norm=NORM,
    )  # fmt: skip
    compare(workspace, model, replace(FULL, groups=("*wte*", "*attn*", "*")))


@pytest.mark.slow
def test_units_of_several_records(workspace: Workspace) -> None:
    model = released(
        workspace, "units", "method=full", "privacy.unit=customer", "privacy.records_per_unit=3",
        "train.expected_batch_size=2", max_grad_norm=2 * NORM,
    )  # fmt: skip
    units = [ROWS[first : first + 3] for first in range(0, len(ROWS), 3)]
    phase = replace(FULL, max_grad_norm=2 * NORM)
    compare(workspace, model, phase, units=units, expected_batch_size=2)


@pytest.mark.slow
def test_a_record_whose_loss_is_not_finite_adds_nothing(workspace: Workspace) -> None:
    """A token of one record has a huge embedding, so that its loss overflows."""
    tokenizer = AutoTokenizer.from_pretrained(workspace.root / "model")
    config = GPT2Config.from_pretrained(workspace.root / "model", tie_word_embeddings=False)
    huge = large_model(config)
    used = [set(tokenizer(f"{row['question']} {row['answer']}")["input_ids"]) for row in ROWS]
    (token,) = tokenizer("\u00e9", add_special_tokens=False)["input_ids"][:1]
    assert not any(token in ids for ids in used)
    with torch.no_grad():
        huge.get_input_embeddings().weight[token] = 3e38
    huge.save_pretrained(workspace.root / "huge")
    tokenizer.save_pretrained(workspace.root / "huge")
    rows = list(ROWS)
    rows[OFTEN_DRAWN] = {**rows[OFTEN_DRAWN], "question": "\u00e9"}
    write_rows(workspace.root / "huge.jsonl", rows)
    model = released(
        workspace, "not_finite", "method=full", "model.path=huge", "task.data_dir=huge.jsonl",
        max_grad_norm=NORM,
    )  # fmt: skip
    compare(workspace, model, FULL, units=[[row] for row in rows], model="huge")
    last = (model.parent / "private" / "diagnostics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["non_finite_examples_so_far"] == 3


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
    compare(workspace, model, FULL)
