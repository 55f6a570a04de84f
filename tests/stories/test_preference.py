"""Preference pairs from the command line: train, resume, score, generate and export."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
)

from dpft.models.source import EMBEDDED_MODEL
from dpft.training import loop
from tests.stories.ranks import run_ranks
from tests.stories.tiny import Workspace, make_workspace, own_entries

pytestmark = pytest.mark.slow
TASK = ("task=preference", "task.data_dir=pairs", "task.max_length=48", "model=tiny",
        "model.path=model")  # fmt: skip
TRAIN = (
    *TASK, "train.expected_batch_size=8", "train.steps=3", "train.learning_rate=0.01",
    "eval.split=validation", "decode.max_new_tokens=4", "decode.num_beams=1",
)  # fmt: skip
PRIVATE = (*TRAIN, "privacy.eps=8", "privacy.accountant=rdp")
SCORES = {"preference_accuracy", "preference_margin", "chosen_log_likelihood", "mean_length"}


def row(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "prompt": f"Where is place {number}?",
        "chosen": f"Place {number} is near the river.",
        "rejected": "I do not know." + " Really." * (number % 3),
        "person": f"person {number % 9}",
        **changes,
    }


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = make_workspace(tmp_path_factory.mktemp("preference"))
    (made.root / "pairs").mkdir()
    write(made.root / "pairs" / "train.jsonl", [row(number) for number in range(40)])
    write(made.root / "pairs" / "validation.jsonl", [row(number) for number in range(50, 58)])
    return made


def trained(workspace: Workspace, name: str, *words: str) -> Path:
    outcome = workspace.run("train", *words, f"hydra.run.dir={name}")
    assert outcome.code == 0, outcome.err
    return workspace.root / name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dpo", ("method=lora", "task.label_smoothing=0.1")),
        (
            "ipo",
            (
                "task.objective=ipo",
                "privacy.unit=person",
                "privacy.records_per_unit=3",
                "train.expected_batch_size=4",
            ),
        ),
        ("orpo", ("task.objective=orpo", "method=bitfit")),
    ],
)
def test_a_run_is_scored_before_and_after_and_can_be_used(
    workspace: Workspace, name: str, words: tuple[str, ...]
) -> None:
    folder = trained(workspace, name, *PRIVATE, *words)
    before, after = own_entries(folder)
    assert set(before["metrics"]) == set(after["metrics"]) == SCORES
    assert before["metrics"] != after["metrics"]
    references = folder / "private" / "references.safetensors"
    assert references.exists() == (name != "orpo")
    if references.exists():
        assert references.stat().st_mode & 0o777 == 0o600
    assert workspace.run("eval", f"run={name}").code == 0
    write(workspace.root / "prompts.jsonl", [{"prompt": "Where is place 1?"}])
    asked = ("prompts=prompts.jsonl", f"to={name}.jsonl", "decode.max_new_tokens=4")
    assert workspace.run("generate", f"run={name}", *asked).code == 0
    exported = ("base_model=acme/tiny", f"to={name}-export")
    assert workspace.run("export", f"run={name}", *exported).code == 0


def test_the_reference_of_a_prefix_is_the_model_without_it(workspace: Workspace) -> None:
    numbers = []
    for method in ("full", "prefix"):
        folder = trained(workspace, method, *PRIVATE, f"method={method}", "train.steps=1")
        path = folder / "private" / "references.safetensors"
        numbers.append(load_file(path)["log_probabilities"])
    assert numbers[0].shape == (40, 2) and (numbers[0] < 0).all()
    assert numbers[1] == pytest.approx(numbers[0], abs=1e-4)


def test_training_without_privacy_keeps_pairs_together(workspace: Workspace) -> None:
    folder = trained(workspace, "open", *TRAIN, "privacy=none")
    assert set(own_entries(folder)[-1]["metrics"]) == SCORES


def test_an_interrupted_run_resumes_with_its_references(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(model: Any, step: int) -> None:
        if step == 2:
            raise RuntimeError("power")

    with monkeypatch.context() as patch:
        patch.setattr(loop, "check_weights", breaks)
        words = ("train.checkpoint_every=1", "hydra.run.dir=cut")
        assert workspace.run("train", *PRIVATE, *words).code == 1
    path = workspace.root / "cut" / "private" / "references.safetensors"
    before = path.read_bytes()
    outcome = workspace.run("train", "resume=cut")
    assert outcome.code == 0, outcome.err
    assert path.read_bytes() == before


def test_two_processes_reach_the_weights_of_one(workspace: Workspace) -> None:
    """The sums of pairs are exact in DDP and in FSDP2; only their roundings differ."""
    words = (*TRAIN, "privacy.noise_multiplier=0.1", "privacy.noise_seed=3", "optimizer=sgd",
             "train.learning_rate=1", "eval.enabled=false")  # fmt: skip
    expected = load_file(trained(workspace, "alone", *words) / "model" / "model.safetensors")
    untrained = load_file(workspace.root / "model" / "model.safetensors")
    for parallel in ("ddp", "fsdp"):
        folder = f"hydra.run.dir={parallel}"
        run_ranks(workspace.root, "train", *words, f"parallel={parallel}", folder)
        found = load_file(workspace.root / parallel / "model" / "model.safetensors")
        moved = max(abs(expected[name] - untrained[name]).max() for name in expected)
        apart = max(abs(expected[name] - found[name]).max() for name in expected)
        assert apart < 1e-4 * moved, (apart, moved)


def test_invalid_pairs_are_reported_by_line_or_skipped(workspace: Workspace) -> None:
    rows = [row(number) for number in range(24)]
    rows[3]["rejected"] = ""
    rows[5]["rejected"] = rows[5]["chosen"]
    del rows[9]["chosen"]
    write(workspace.root / "bad.jsonl", rows)
    words = ("task.data_dir=bad.jsonl", "eval.enabled=false", "hydra.run.dir=bad")
    sentence = workspace.run("train", *PRIVATE, *words).err
    for line in (4, 6, 10):
        assert f"line {line}: " in sentence, sentence
    outcome = workspace.run("train", *PRIVATE, *words, "task.invalid=skip")
    assert outcome.code == 0, outcome.err


def test_a_pair_that_does_not_fit_is_reported_by_line_or_skipped(workspace: Workspace) -> None:
    rows = [row(number) for number in range(24)]
    rows[7]["prompt"] = "word " * 90
    write(workspace.root / "long.jsonl", rows)
    words = ("task.data_dir=long.jsonl", "eval.enabled=false", "hydra.run.dir=long")
    outcome = workspace.run("train", *PRIVATE, *words)
    assert outcome.code == 2 and "line 8: " in outcome.err and "task.max_length" in outcome.err
    assert "word word" not in outcome.err
    outcome = workspace.run("train", *PRIVATE, *words, "task.invalid=skip")
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("kind", ["seq2seq", "masked"])
def test_another_kind_of_model_is_rejected_in_one_sentence(workspace: Workspace, kind: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    folder = workspace.root / kind
    if kind == "seq2seq":
        sizes = {"d_model": 16, "d_ff": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2}
        model = T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), **sizes))
    else:
        model = BertForMaskedLM(
            BertConfig(
                vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1,
                num_attention_heads=2, intermediate_size=16,
            )
        )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sentence = workspace.refusal("train", *PRIVATE, f"model.path={kind}")
    assert "task=preference needs a causal model" in sentence and kind in sentence


def test_audits_are_not_supported(workspace: Workspace) -> None:
    sentence = workspace.refusal("train", *PRIVATE, "audit.canaries=20")
    assert "audit.canaries" in sentence and "task=preference" in sentence
    trained(workspace, "audited", *PRIVATE, "train.steps=1", "eval.enabled=false")
    for audit in ("memorization", "membership", "one_run"):
        assert "task=preference" in workspace.refusal("audit", "run=audited", f"audit={audit}")


def test_smoothing_applies_to_dpo_only(workspace: Workspace) -> None:
    sentence = workspace.refusal(
        "train", *PRIVATE, "task.objective=ipo", "task.label_smoothing=0.1"
    )
    assert "task.label_smoothing" in sentence and "ipo" in sentence


def test_a_plan_counts_both_rows(workspace: Workspace) -> None:
    words = ("model=tiny", "task.max_length=48", "privacy.eps=8", "privacy.num_examples=8000",
             "train.micro_batch_size=64", "train.expected_batch_size=64", "train.steps=3",
             "plan.measure=false", "output=json")  # fmt: skip
    tasks = {
        "pair": ("task=preference", "task.data_dir=pairs"),
        "single": ("task=e2e", "task.source=embedded"),
    }
    activations = {}
    for name, task in tasks.items():
        outcome = workspace.run("plan", *task, *words)
        assert outcome.code == 0, outcome.err
        activations[name] = json.loads(outcome.out)["memory_per_rank_bytes"]["activations"]
    assert activations["pair"] == pytest.approx(2 * activations["single"], rel=0.01)
