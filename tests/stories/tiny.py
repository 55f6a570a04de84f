"""A model of one layer, forty records and the arguments of a run of seconds."""

import contextlib
import functools
import hashlib
import html
import io
import json
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

import dpft
from dpft.cli.main import main
from dpft.models.source import EMBEDDED_MODEL
from dpft.privacy.ledger import read_ledger
from dpft.reports.run_record import read_own_evaluations
from dpft.strict_model import as_json
from tests.kept_values import lasting_folder

PACKAGE = Path(dpft.__file__).parent
CONF = PACKAGE.parent / "conf"
MARKER = "Qzxmarker"
TRAIN, TEST = 40, 6
ANNOUNCEMENT = re.compile(r"\AINFO: (training model(?:.path)?=|resuming ).*\n")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one command did."""

    code: int
    out: str
    err: str
    """Less the line that says what is about to be trained, of a run that is then refused too."""
    new: frozenset[Path]
    """Paths under the workspace that were not there before."""


@dataclass(frozen=True)
class Workspace:
    """A folder with a model ``model`` and records ``data``, in which commands run."""

    root: Path

    def run(self, *arguments: str) -> Outcome:
        """Run ``dpft arguments`` in the folder, in this process."""
        before = set(self.root.rglob("*"))
        out, err = io.StringIO(), io.StringIO()
        with (
            logging_restored(),
            drawn_as_words(),
            scored_plainly(),
            contextlib.chdir(self.root),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = main(list(arguments))
        new = frozenset(set(self.root.rglob("*")) - before)
        said = ANNOUNCEMENT.sub("", err.getvalue(), count=1)
        return Outcome(code=code, out=out.getvalue(), err=said, new=new)

    def finished(self, *arguments: str) -> Path:
        """Return the folder of a finished run: it is trained once, and copied from then on.

        A copy is taken if the sources of dpft, the versions of torch and transformers, the
        arguments and all files of the workspace outside runs are the same.

        Args:
            arguments: Of ``dpft train``; the last one is ``hydra.run.dir=NAME``.
        """
        folder = self.root / arguments[-1].removeprefix("hydra.run.dir=")
        runs = {ledger.parent for ledger in self.root.rglob("ledger.jsonl")}
        hashed = hashlib.sha256(repr(arguments).encode())
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and runs.isdisjoint(path.parents):
                hashed.update(f"{path.relative_to(self.root)}".encode() + path.read_bytes())
        kept = kept_runs() / hashed.hexdigest()
        if kept.exists():
            shutil.copytree(kept, folder, symlinks=True)
            return folder
        outcome = self.run("train", *arguments)
        assert outcome.code == 0, outcome.err
        made = kept.with_name(f"{kept.name}-{os.getpid()}")
        shutil.copytree(folder, made, symlinks=True)
        with contextlib.suppress(OSError):  # another worker was first
            made.rename(kept)
        return folder

    def refusal(self, *arguments: str) -> str:
        """Run a command that must be refused in one sentence and change nothing; return it."""
        outcome = self.run(*arguments)
        assert outcome.code == 2, outcome.err
        assert outcome.out == ""
        assert outcome.new == frozenset()
        # What is about to be trained, and that delta is large, may be said before more is known.
        before = ("INFO: ", "WARNING: delta")
        said = [line for line in outcome.err.splitlines(True) if not line.startswith(before)]
        prefix, sentence = "".join(said)[:13], "".join(said)[13:]
        assert prefix == "dpft: error: "
        assert sentence.count("\n") == 1, outcome.err
        return sentence.rstrip("\n")


@functools.cache
def kept_runs() -> Path:
    """Return the folder of finished runs of these sources."""
    of_session = Path(tempfile.gettempdir(), f"dpft-runs-{os.getpid()}")
    return lasting_folder("runs", of_session, [PACKAGE, CONF], "torch", "transformers", "peft")


def card_of(workspace: Workspace, run: str) -> str:
    """Return the model card that an export of a run would have."""
    words = ("license=mit", "base_model=acme/base", "dry_run=true")
    outcome = workspace.run("export", f"run={run}", *words)
    assert outcome.code == 0, outcome.err
    return outcome.out.partition("\n---\n")[2]


# Without METEOR, whose Java takes longer than a run.
METRICS = "task.metrics=[bleu,rouge_l,perplexity]"
SETTING = ("task=e2e", "task.data_dir=data", "model=tiny", "model.path=model", METRICS)
TRAINING = (*SETTING, "train.expected_batch_size=8", "privacy.accountant=rdp")
EVALUATION = ("eval.limit=2", "decode.max_new_tokens=4", "decode.num_beams=2")
STEPS = "train.steps=3"


def unnamed(path: Path) -> bytes:
    """Return a public file of a run without the random name of the run, its date and durations.

    The name is the first line of its ledger, and all hashes depend on it. The rest is the same for
    two runs that did the same.
    """
    run = next(folder for folder in path.parents if (folder / "ledger.jsonl").exists())
    record, content = read_ledger(run / "ledger.jsonl"), path.read_bytes()
    assert record.run_id is not None
    for name in (record.run_id, *record.heads[1:]):
        content = content.replace(name.encode(), b"named")
    content = re.sub(rb'"date": "\d{4}-\d\d-\d\d"', b'"date": "today"', content)
    return re.sub(rb'"seconds": [\d.e-]+, "since": \d+, ', b"", content)


def make_workspace(root: Path) -> Workspace:
    """Return a folder with the model and the records; training records hold ``MARKER``."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=128, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same model in each workspace, as its finished runs need
        GPT2LMHeadModel(config).save_pretrained(root / "model")
    tokenizer.save_pretrained(root / "model")
    (root / "data").mkdir()
    train = [(f"name[Place {i}], eatType[pub]", f"Place {i} is a pub.") for i in range(TRAIN - 2)]
    train += [(f"name[{MARKER}]", f"{MARKER} is a pub."), ("near[x]", "z q " * 40)]
    test = [(f"name[Inn {i}]", f"Inn {i} is an inn.") for i in range(TEST)]
    write_rows(root / "data" / "train.jsonl", train)
    write_rows(root / "data" / "validation.jsonl", test[:2])
    write_rows(root / "data" / "test.jsonl", test)
    return Workspace(root)


def write_rows(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    """Write records and references as the E2E files have them."""
    lines = [
        json.dumps({"meaning_representation": record, "human_reference": reference}) + "\n"
        for record, reference in rows
    ]
    path.write_text("".join(lines))


@contextlib.contextmanager
def drawn_as_words() -> Iterator[None]:
    """Spare each figure of a page its shapes: what is on it is put there, its words are written.

    tests/reports draws them whole.
    """

    def write_words(figure: Figure, to: IO[str], **_: object) -> None:
        words = [html.escape(text.get_text()) for text in figure.findobj(Text)]
        to.write(f'<svg id="figure_1">{" ".join(filter(None, words))}</svg>\n')

    with pytest.MonkeyPatch.context() as patch:
        save = Figure.savefig
        patch.setattr(
            Figure,
            "savefig",
            lambda own, to, **how: (write_words if isinstance(to, io.StringIO) else save)(
                own, to, **how
            ),
        )
        yield


@contextlib.contextmanager
def scored_plainly() -> Iterator[None]:
    """Spare each metric a table of its columns, and each worker the import of ``evaluate``.

    tests/evaluation/test_local_metric.py has metrics give in that shape what they give here.
    """

    def compute(
        spec: Any,
        columns: Mapping[str, Any],
        settings: object = None,
        language: str | None = None,
    ) -> float:
        more = {"settings": settings} if spec.reads_settings else {}
        more |= {"language": language} if spec.reads_language else {}
        return float(spec.score(**columns, **more))

    stand_in = ModuleType("dpft.evaluation.local_metric")
    vars(stand_in).update(compute=compute)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, stand_in.__name__, stand_in)
        yield


@contextlib.contextmanager
def umask_zero() -> Iterator[None]:
    """Remove the mask that could hide a file with too many permissions."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def logging_restored() -> Iterator[None]:
    """Take away what Hydra's logging configuration installs."""
    root = logging.getLogger()
    before, level, environment = list(root.handlers), root.level, dict(os.environ)
    try:
        yield
    finally:
        root.handlers, root.level = before, level
        assert dict(os.environ) == environment


def own_entries(folder: Path) -> list[dict]:
    """Return all entries of a run's scores, as their owner has them, as JSON has them."""
    return [as_json(entry) for entry in read_own_evaluations(folder)]
