"""What dpft does with a model family: each command once, on a few public records.

A command either works, which includes that plain transformers loads what ``dpft export`` writes
and computes what dpft computes, or it is rejected with a reason before any epsilon is spent.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from dpft import open_run
from tests.stories.tiny import Outcome, Workspace
from tests.zoo.families import CAUSAL, ENCODER, IMAGE, SEQ2SEQ, Family

FEATURES = ("train", "eval", "generate", "export", "lora", "classify", "chat")
WORKS, LACKS = "yes", "–"
POOLED = "mean"
"""Result of ``classify`` for a family that needs ``model.pooling=mean``."""
ROWS = 24
PRIVATE = (
    "privacy.eps=8", "privacy.accountant=rdp", "train.steps=2", "train.expected_batch_size=8",
    "train.micro_batch_size=4",
)  # fmt: skip
SCORED = ("eval.held_out=0.5", "decode.max_new_tokens=4", "decode.num_beams=2")
QUESTIONS = (
    "task=custom", "task.data_dir=qa.jsonl", 'task.prompt="{question} "',
    'task.target="{answer}"', "task.max_length=48",
)  # fmt: skip
REVIEWS = (
    "task=custom", "task.data_dir=reviews.jsonl", 'task.text="{review}"', "task.label=stars",
    "task.labels=[bad,good]", "task.max_length=48", "method=full",
)  # fmt: skip
CHATS = ("task=custom", "task.data_dir=chats.jsonl", "task.messages=messages",
         "task.max_length=160")  # fmt: skip
IMAGES = ("task=images", "task.data_dir=pictures", "task.labels=[dark,bright]",
          "task.workers=0", "method=full")  # fmt: skip


class Rejected(Exception):
    """dpft rejected a command, and states why in one sentence."""


@dataclass(frozen=True)
class Tried:
    """A family in a folder, with records to train on.

    Attributes:
        family: Family whose folder ``model`` is.
        workspace: Folder with ``model``, the records, and a folder for each run.
    """

    family: Family
    workspace: Workspace

    def results(self) -> Iterator[tuple[str, str]]:
        """Yield each feature with ``WORKS``, ``POOLED``, ``LACKS``, or the reason of its rejection.

        Raises:
            AssertionError: A command crashed, or its result is wrong.
        """
        writes, failed = self.family.kind in (CAUSAL, SEQ2SEQ), ""
        for feature in FEATURES:
            if not (writes or feature != "generate") or (
                feature == "chat" and not self.family.has_chat_template
            ):
                yield feature, LACKS
                continue
            if failed:  # a model that cannot be trained at all, or that depends on a trained one
                yield feature, failed
                continue
            try:
                yield feature, getattr(self, f"_{feature}")() or WORKS
            except Rejected as rejected:
                failed = str(rejected) if feature == "train" else ""
                yield feature, str(rejected)

    def _train(self) -> None:
        self._trained("run", *self._records(), *SCORED)

    def _eval(self) -> None:
        self._run("eval", "run=run", "decode.max_new_tokens=4", "decode.num_beams=2")

    def _generate(self) -> None:
        self._written("run", "prompts.jsonl", ("question", "answer"))

    def _export(self) -> None:
        self._run("export", "run=run", "to=whole", "license=mit")
        self._check_export("run", "whole")

    def _lora(self) -> None:
        records = [word for word in self._records() if word != "method=full"]
        self._trained("lora", *records, "method=lora", "eval.enabled=false")
        self._run("export", "run=lora", "to=merged", "merge=true", "license=mit")
        self._check_export("lora", "merged")

    def _classify(self) -> str | None:
        if self.family.kind in (ENCODER, IMAGE):  # that is what ``train`` did
            return None
        words = (*REVIEWS, "eval.held_out=0.5")
        try:
            self._trained("classifier", *words)
        except Rejected as rejected:
            if "model.pooling=mean" not in str(rejected):
                raise
            self._trained("pooled", *words, "model.pooling=mean")
            return POOLED
        return None

    def _chat(self) -> None:
        self._trained("chat", *CHATS, *SCORED)
        self._written("chat", "conversations.jsonl", ("messages",))

    def _records(self) -> tuple[str, ...]:
        return {ENCODER: REVIEWS, IMAGE: IMAGES}.get(self.family.kind, QUESTIONS)

    def _trained(self, name: str, *words: str) -> None:
        """Train privately; a rejected command must not have spent any epsilon."""
        run = f"hydra.run.dir={name}"
        try:
            self._run("train", *words, *PRIVATE, f"model.path={self.workspace.root / 'model'}", run)
        except Rejected:
            assert not (self.workspace.root / name / "ledger.jsonl").exists()
            raise
        privacy = json.loads((self.workspace.root / name / "privacy.json").read_text())
        assert 0 < privacy["epsilon"] <= 8

    def _written(self, run: str, prompts: str, columns: tuple[str, ...]) -> None:
        to = self.workspace.root / f"{run}.jsonl"
        self._run("generate", f"run={run}", f"prompts={prompts}", f"to={to}",
                  "decode.max_new_tokens=4")  # fmt: skip
        rows = [json.loads(line) for line in to.read_text().splitlines()]
        given = (self.workspace.root / prompts).read_text().splitlines()
        assert len(rows) == len(given)
        assert all(set(columns) <= row.keys() for row in rows)

    def _run(self, *words: str) -> Outcome:
        """Run a command.

        Raises:
            Rejected: dpft rejected it in one sentence, exit code 2.
        """
        outcome = self.workspace.run(*words)
        assert "Traceback" not in outcome.err, outcome.err
        last = outcome.err.strip().splitlines()[-1:]
        if outcome.code == 2:
            assert last[0].startswith("dpft: error: "), outcome.err
            raise Rejected(last[0].removeprefix("dpft: error: "))
        assert outcome.code == 0, outcome.err
        return outcome

    def _check_export(self, run: str, folder: str) -> None:
        """Compare an exported folder, as plain transformers loads it, with dpft's model."""
        path, kind = self.workspace.root / folder, self.family.kind
        name = json.loads((path / "config.json").read_text())["architectures"][0]
        plain, loading = getattr(transformers, name).from_pretrained(
            path, local_files_only=True, output_loading_info=True
        )
        assert not loading["missing_keys"], loading["missing_keys"]
        trained = open_run(self.workspace.root / run)
        inputs = self._inputs(path)
        if kind != IMAGE:
            text = "Where is the key?"
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
            assert tokenizer(text).input_ids == trained.load_tokenizer()(text).input_ids
        torch.testing.assert_close(
            _logits(plain, inputs), _logits(trained.load_model(), inputs), atol=1e-5, rtol=1e-4
        )

    def _inputs(self, folder: Path) -> dict[str, Tensor]:
        if self.family.kind == IMAGE:
            return {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 16 * 16).view(2, 3, 16, 16)}
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        ids = torch.tensor([tokenizer("Where is the key of the garden?").input_ids])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return inputs | ({"decoder_input_ids": ids} if self.family.kind == SEQ2SEQ else {})


def _logits(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model.eval()(**inputs).logits
    return logits.float()


def tried(family: Family, root: Path) -> Tried:
    """Return a family's model and records in an empty folder, ready for the commands."""
    (root / "model").mkdir()
    family.write(root / "model")
    pairs = [(f"Where is town {n}?", f"{n} miles by the road.") for n in range(ROWS)]
    questions = [{"question": question, "answer": answer} for question, answer in pairs]
    chats = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for q, a in pairs
    ]
    reviews = [
        {"review": f"The {('soup', 'food')[n % 2]} was {n}.", "stars": ("bad", "good")[n % 2]}
        for n in range(ROWS)
    ]
    _write(root / "qa.jsonl", questions)
    _write(root / "prompts.jsonl", [{"question": "Where is town 30?"}] * 2)
    _write(root / "chats.jsonl", chats)
    opening = [{"role": "user", "content": "Where is town 30?"}]
    _write(root / "conversations.jsonl", [{"messages": opening}] * 2)
    _write(root / "reviews.jsonl", reviews)
    if family.kind == IMAGE:
        for number in range(ROWS):
            folder = root / "pictures" / ("dark", "bright")[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            level = 5 * number + 120 * (number % 2)
            Image.new("RGB", (16, 16), (level, level, level)).save(folder / f"{number}.png")
    return Tried(family, Workspace(root))


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
