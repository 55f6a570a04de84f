"""What a run learns from a text: its first loss equals the loss that transformers computes.

Each run takes one step on all its rows, without dropout. The expected values come from the model
folder that the run starts from and from token ids that the test writes out by hand.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from tests.models import small
from tests.stories.tiny import Workspace

pytestmark = pytest.mark.slow

IGNORED = -100
"""The label that transformers leaves out of a loss."""
SHORT, LONG = ("a great film", "yes"), ("it was a dull long play", "this is terrible")
"""Prompts and targets, in words of the small tokenizers."""
NO_DROPOUT = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "t5": {"dropout_rate": 0.0},
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}
MODELS = {"gpt2": "gpt2", "t5": "t5-small", "bert": "bert-base", "bytes": "gpt2"}
GENERATE = ('task.prompt="{question}"', 'task.target=" {answer}"')
PRIVATE = (
    "privacy.noise_multiplier=1", "privacy.accountant=rdp", "privacy.delta=0.01",
    
)  # fmt: skip
"""Noise changes no loss of the first step, and at a sample rate of 1 every row is drawn."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A folder with small models of every kind."""
    root = tmp_path_factory.mktemp("text")
    for name, settings in NO_DROPOUT.items():
        small.language_model(name, **settings).save_pretrained(root / name)
        small.tokenizer_of(name, root / name).save_pretrained(root / name)
    _save_byte_level_model(root / "bytes")
    return Workspace(root)


def _save_byte_level_model(folder: Path) -> None:
    """Save a GPT-2 model whose tokenizer, like GPT-2's own, has two tokens for a word.

    One token is the word at the beginning of a text, the other one the word after a blank.
    """
    words = ["<|endoftext|>", "<|unknown|>", "."]
    for word in ("a", "great", "dull", "film", "It", "was", "good", "bad"):
        words += [word, f"\u0120{word}"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unknown|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|endoftext|>", unk_token="<|unknown|>"
    )
    fast.save_pretrained(folder)
    sizes = {"vocab_size": len(words), "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    marks = {"bos_token_id": 0, "eos_token_id": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(**sizes, **marks, **NO_DROPOUT["gpt2"]))
    small.shaken(model).save_pretrained(folder)


def first_loss(
    workspace: Workspace,
    name: str,
    model: str,
    rows: Sequence[dict[str, Any]],
    *arguments: str,
) -> float:
    """Return the mean loss of a run's first step, which draws all ``rows``."""
    data = workspace.root / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = workspace.run(
        "train", "task=custom", f"task.data_dir={data}", f"model={MODELS[model]}",
        f"model.path={model}", "task.max_length=16", f"train.expected_batch_size={len(rows)}",
        "train.steps=1", "train.num_threads=1", "eval.enabled=false",
        f"hydra.run.dir={name}", *arguments,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    lines = (workspace.root / name / "private" / "diagnostics.jsonl").read_text().splitlines()
    step = next(entry for entry in map(json.loads, lines) if entry.get("step") == 1)
    return float(step["mean_loss"])


def pairs(*examples: tuple[str, str]) -> list[dict[str, Any]]:
    """Return rows with a question and an answer."""
    return [{"question": question, "answer": answer} for question, answer in examples]


def ids_of(folder: Path, text: str) -> list[int]:
    """Return the token ids of a text, without the tokens that a tokenizer adds."""
    return list(AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"])


def causal_loss(folder: Path, prompt: list[int], target: list[int]) -> float:
    """Return the mean loss of the target's tokens, which transformers shifts by itself."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    labels = torch.tensor([[IGNORED] * len(prompt) + target])
    with torch.no_grad():
        return float(model(torch.tensor([prompt + target]), labels=labels).loss)


def generation_loss(folder: Path, prompt: str, target: str, *, room: int = 16) -> float:
    """Return the loss of a causal model whose prompt is cut to what the target leaves of ``room``.

    The target ends with the end-of-text token.
    """
    end = AutoTokenizer.from_pretrained(folder).eos_token_id
    learned = [*ids_of(folder, f" {target}"), end]
    return causal_loss(folder, ids_of(folder, prompt)[: room - len(learned)], learned)


@pytest.mark.parametrize("privacy", [("privacy=none",), PRIVATE], ids=["ordinary", "private"])
def test_a_generative_model_learns_each_target_and_the_end_of_its_text(
    workspace: Workspace, privacy: tuple[str, ...]
) -> None:
    loss = first_loss(
        workspace, f"causal-{len(privacy)}", "gpt2", pairs(SHORT, LONG), *GENERATE, *privacy
    )
    # Each row counts once, whatever its length: the mean over rows of the means over tokens.
    expected = [generation_loss(workspace.root / "gpt2", *pair) for pair in (SHORT, LONG)]
    assert loss == pytest.approx(math.fsum(expected) / 2, rel=1e-5)


def test_a_long_prompt_is_cut_at_its_end_and_the_target_is_whole(workspace: Workspace) -> None:
    arguments = (*GENERATE, "task.max_length=7", "privacy=none")
    loss = first_loss(workspace, "cut", "gpt2", pairs(SHORT, LONG), *arguments)
    expected = [generation_loss(workspace.root / "gpt2", *pair, room=7) for pair in (SHORT, LONG)]
    assert loss == pytest.approx(math.fsum(expected) / 2, rel=1e-5)


def test_a_learned_prompt_is_predicted_from_the_start_token_on(workspace: Workspace) -> None:
    arguments = (*GENERATE, "task.learn_prompt=true", "privacy=none")
    loss = first_loss(workspace, "whole", "gpt2", pairs(LONG), *arguments)
    folder = workspace.root / "gpt2"
    # A tokenizer without a beginning-of-text token starts with the end-of-text token.
    end = AutoTokenizer.from_pretrained(folder).eos_token_id
    text = [*ids_of(folder, LONG[0]), *ids_of(folder, f" {LONG[1]}"), end]
    assert loss == pytest.approx(causal_loss(folder, [end], text), rel=1e-5)


def test_a_decoder_reads_its_target_one_step_late(workspace: Workspace) -> None:
    loss = first_loss(workspace, "t5-run", "t5", pairs(SHORT, LONG), *GENERATE, "privacy=none")
    folder = workspace.root / "t5"
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    end = AutoTokenizer.from_pretrained(folder).eos_token_id
    expected = []
    for prompt, target in (SHORT, LONG):
        read = torch.tensor([[*ids_of(folder, prompt), end]])
        labels = torch.tensor([[*ids_of(folder, target), end]])
        with torch.no_grad():
            # With labels alone, transformers shifts them to make the decoder's input.
            expected.append(float(model(read, labels=labels).loss))
    assert loss == pytest.approx(math.fsum(expected) / 2, rel=1e-5)


FILMS = ({"text": "great film", "mood": "good"}, {"text": "a dull film", "mood": "bad"})
CLASSES = (
    'task.text="{text}"', "task.label=mood", "task.labels=[good,bad]", "task.objective=infilling",
    "method=full", "privacy=none",
)  # fmt: skip


def test_a_label_word_is_the_token_that_follows_a_blank(workspace: Workspace) -> None:
    words = ('task.causal_template="<S1> It was [MASK]"', "+task.label_words={good:good,bad:bad}")
    loss = first_loss(workspace, "labels", "bytes", FILMS, *CLASSES, *words)
    folder = workspace.root / "bytes"
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    (good,), (bad,) = ids_of(folder, " good"), ids_of(folder, " bad")
    assert good not in ids_of(folder, "good"), "the tokenizer tells a word after a blank apart"
    expected = []
    for row, place in zip(FILMS, (0, 1), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([ids_of(folder, f"{row['text']} It was")])).logits[0, -1]
        # Li et al. 2022, section 4: the cross-entropy over the label words only.
        expected.append(-float(logits[[good, bad]].log_softmax(0)[place]))
    assert loss == pytest.approx(math.fsum(expected) / 2, rel=1e-5)


def test_a_masked_model_reads_no_padding(workspace: Workspace) -> None:
    words = (
        'task.template="<S1> It was [MASK] ."', "+task.label_words={good:great,bad:terrible}"
    )  # fmt: skip
    loss = first_loss(workspace, "masked", "bert", FILMS, *CLASSES, *words)
    folder = workspace.root / "bert"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    choices = tokenizer.convert_tokens_to_ids(["great", "terrible"])
    expected = []
    for row, place in zip(FILMS, (0, 1), strict=True):
        read = tokenizer(f"{row['text']} It was [MASK] .", return_tensors="pt")
        at = read["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        with torch.no_grad():
            logits = model(**read).logits[0, at]
        expected.append(-float(logits[choices].log_softmax(0)[place]))
    assert loss == pytest.approx(math.fsum(expected) / 2, rel=1e-5)


def test_rows_beyond_the_bound_of_a_unit_are_not_learned(workspace: Workspace) -> None:
    rows = [row | {"who": "ann"} for row in pairs(LONG, LONG, LONG)]
    rows += [row | {"who": "bob"} for row in pairs(SHORT)]
    loss = first_loss(
        workspace, "units", "gpt2", rows, *GENERATE, *PRIVATE, "privacy.unit=who",
        "privacy.records_per_unit=1", "train.expected_batch_size=2",
    )  # fmt: skip
    expected = [generation_loss(workspace.root / "gpt2", *pair) for pair in (SHORT, LONG)]
    assert loss == pytest.approx(math.fsum(expected) / 2, rel=1e-5)


def test_no_row_that_was_held_out_is_learned(workspace: Workspace) -> None:
    rows = pairs(*((f"the {word} film", "yes") for word in small.WORDS[:20]))
    loss = first_loss(
        workspace, "held-out", "gpt2", rows, *GENERATE, *PRIVATE, "eval.held_out=0.5",
        "eval.enabled=true", "task.metrics=[bleu]", "decode.max_new_tokens=2",
    )  # fmt: skip
    predictions = (workspace.root / "held-out/private/predictions.jsonl").read_text()
    held_out = {json.loads(line)["input"] for line in predictions.splitlines()}
    expected = [
        generation_loss(workspace.root / "gpt2", row["question"], row["answer"])
        for row in rows
        if row["question"] not in held_out
    ]
    assert 0 < len(expected) < len(rows)
    assert loss == pytest.approx(math.fsum(expected) / len(expected), rel=1e-5)
