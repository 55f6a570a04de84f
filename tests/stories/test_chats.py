"""Conversations, from rows to generated rows, under a chat template that does not accept all."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from dpft.models.source import EMBEDDED_MODEL
from dpft.training import loop
from tests.stories.tiny import MARKER, Outcome, Workspace, make_workspace

pytestmark = pytest.mark.slow

TEMPLATE = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "Today: {{ strftime_now('%d %b %Y %H:%M') }}\n"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('no turns') }}{% endif %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT = (
    "task=custom", "task.messages=messages", "task.max_length=96", "model=tiny", "model.path=chat",
    "train.expected_batch_size=8", "train.steps=2", "privacy.eps=8", "privacy.accountant=rdp",
    "decode.max_new_tokens=4", "decode.num_beams=2",
)  # fmt: skip
TAGS = re.compile("</?think>")
ROWS, BAD = 24, (4, 7)
"""How many rows there are, and the lines of those that the template does not accept."""


def turns(*messages: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in messages]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a chat model and files of conversations."""
    made = make_workspace(tmp_path_factory.mktemp("chats"))
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = TEMPLATE
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=128, n_embd=16, n_layer=1, n_head=2,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(made.root / "chat")
    tokenizer.save_pretrained(made.root / "chat")
    good = [
        {"messages": turns(("user", f"{MARKER} {n}?"), ("assistant", f"Yes, {n}."))}
        for n in range(1, ROWS + 1)
    ]
    bad = [dict(row) for row in good]
    for line in BAD:
        bad[line - 1] = {"messages": turns(("user", MARKER), *map(tuple_of, good[0]["messages"]))}
    asked = [{"messages": turns(("user", f"Is it {n}?"))} for n in range(3)]
    system = [{"messages": turns(("system", f"Be {MARKER}."), ("user", "Why?"))} for _ in range(3)]
    answered = [
        {"messages": [*row["messages"], *turns(("assistant", "So."))]} for row in system * 8
    ]
    write(made.root / "good.jsonl", good)
    write(made.root / "bad.jsonl", bad)
    write(made.root / "asked.jsonl", asked)
    write(made.root / "system.jsonl", system)
    write(made.root / "answered.jsonl", answered)
    return made


def tuple_of(message: dict[str, str]) -> tuple[str, str]:
    return message["role"], message["content"]


def trained(workspace: Workspace, name: str, data: str, *given: str) -> Outcome:
    folder = f"hydra.run.dir={name}"
    return workspace.run("train", *CHAT, f"task.data_dir={data}", *given, folder)


def test_rows_that_the_template_rejects_are_named(workspace: Workspace) -> None:
    sentence = workspace.refusal("train", *CHAT, "task.data_dir=bad.jsonl", "hydra.run.dir=no")
    assert "bad.jsonl, lines 4 and 7:" in sentence
    assert "take turns" in sentence and "task.invalid=skip" in sentence
    assert MARKER not in sentence


def test_rows_that_the_template_rejects_are_skipped_in_private(workspace: Workspace) -> None:
    given = ("task.invalid=skip", "eval.held_out=0.3", "task.metrics=[bleu,perplexity]")
    outcome = trained(workspace, "skipped", "bad.jsonl", *given)
    assert outcome.code == 0, outcome.err
    folder = workspace.root / "skipped"
    assert json.loads((folder / "privacy.json").read_text())["plan"]["num_examples"] == ROWS
    assert f"task.invalid=skip) | {len(BAD)} |" in (folder / "private/data_summary.md").read_text()
    assert MARKER not in outcome.err + outcome.out
    scored = workspace.run("eval", "run=skipped", "eval.limit=1")
    assert scored.code == 0, scored.err
    audited = workspace.run("audit", "audit=membership", "run=skipped")
    assert audited.code == 0, audited.err
    wrong = "run=skipped", "prompts=system.jsonl", "to=wrong.jsonl"
    sentence = workspace.refusal("generate", *wrong)
    assert "system.jsonl, lines 1, 2 and 3:" in sentence and "task.merge_system=true" in sentence


def test_a_system_message_is_merged_where_the_template_accepts_none(workspace: Workspace) -> None:
    sentence = workspace.refusal("train", *CHAT, "task.data_dir=answered.jsonl", "hydra.run.dir=no")
    assert "task.merge_system=true" in sentence and MARKER not in sentence
    merged = trained(workspace, "merged", "answered.jsonl", "task.merge_system=true")
    assert merged.code == 0, merged.err
    outcome = workspace.run("generate", "run=merged", "prompts=system.jsonl", "to=merged.jsonl")
    assert outcome.code == 0, outcome.err
    rows = map(json.loads, (workspace.root / "merged.jsonl").read_text().splitlines())
    assert [m["role"] for m in next(rows)["messages"]] == ["system", "user", "assistant"]


def test_thinking_tags_of_the_template_are_in_no_text(workspace: Workspace) -> None:
    given = (
        "privacy=none", "train.steps=60", "train.learning_rate=0.02", "eval.held_out=0.2",
        "decode.max_new_tokens=24", "task.metrics=[bleu]", "eval.limit=2",
    )  # fmt: skip
    arguments = [each for each in CHAT if not each.startswith(("privacy", "decode.max"))]
    outcome = workspace.run(
        "train", *arguments, "task.data_dir=good.jsonl", *given, "hydra.run.dir=think"
    )
    assert outcome.code == 0, outcome.err
    (predictions,) = (workspace.root / "think" / "private").glob("predictions*.jsonl")
    first = json.loads(predictions.read_text().splitlines()[0])
    assert first["prediction"].startswith("Yes"), first
    assert not TAGS.search(predictions.read_text())
    asked = ("prompts=asked.jsonl", "to=think.jsonl", "decode=greedy")
    outcome = workspace.run("generate", "run=think", *asked)
    assert outcome.code == 0, outcome.err
    assert not TAGS.search((workspace.root / "think.jsonl").read_text())


def test_a_run_that_resumes_on_a_later_day_reads_the_day_of_its_beginning(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    early = ("eval.enabled=false", "train.checkpoint_every=1", "task.date=2019-03-04")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "check_weights", breaks)
        assert trained(workspace, "dated", "good.jsonl", *early).code == 130
    outcome = workspace.run("train", "resume=dated")
    assert outcome.code == 0, outcome.err
    assert "date: '2019-03-04'" in (workspace.root / "dated" / "config.yaml").read_text()
