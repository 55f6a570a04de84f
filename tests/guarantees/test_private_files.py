"""Private files: what epsilon does not cover stays in ``private/``, for the owner only."""

import json
import re
import shutil
import stat
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from transformers import GPT2LMHeadModel

from tests.guarantees.watched_runs import (
    RUN,
    before_updates,
    interrupted,
    ledger_lines,
    public_files,
    secret_keys,
)
from tests.stories.tiny import MARKER, Workspace, make_workspace, umask_zero

pytestmark = pytest.mark.slow

RECORDS = 60
HELD_OUT = (
    "train", "task=custom", "task.data_dir=rows.csv", 'task.prompt="{question} "',
    'task.target="{answer}"', "task.max_length=32", "task.metrics=[bleu,perplexity]",
    "model=tiny", "model.path=model", "eval.held_out=0.5", "decode.max_new_tokens=1",
    "decode.num_beams=1", "privacy.noise_multiplier=1", "privacy.num_examples=100",
    "privacy.accountant=rdp", "train.expected_batch_size=10", "train.steps=5",
    "train.checkpoint_every=2", "hydra.run.dir=run",
)  # fmt: skip
"""A run that scores half of its records, which are private."""
HASH = re.compile(rb"[0-9a-f]{32,64}")
"""Random names of runs, and hashes, which differ between any two runs."""


class Scored:
    """A finished run with private scores, and what was observed of it."""

    def __init__(self, root: Path, answer: str, model: Path | None = None) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.workspace = make_workspace(root)
        if model is not None:
            for file in model.iterdir():
                (root / "model" / file.name).write_bytes(file.read_bytes())
        rows = (f"Where is {n}?,{answer.format(n=n)}\n" for n in range(RECORDS))
        (root / "rows.csv").write_text("question,answer\n" + "".join(rows))
        self.folder = root / "run"
        self.open_to_others: set[str] = set()
        """Files and folders below private/ that others could read at any update, with modes."""
        self.public: list[dict[str, bytes]] = []
        """Public files, standard output and standard error before each update."""
        keys = Random(answer).randbytes  # fixed, so that no number is equal to another by chance
        with patch("secrets.token_bytes", keys), umask_zero(), before_updates(self._look):
            self.outcome = self.workspace.run(*HELD_OUT)
        assert self.outcome.code == 0, self.outcome.err
        self.open_to_others |= open_to_others(self.folder)

    def _look(self, _: int) -> None:
        self.open_to_others |= open_to_others(self.folder)
        texts = {"stdout": sys.stdout, "stderr": sys.stderr}
        printed = {name: text.getvalue().encode() for name, text in texts.items()}  # type: ignore[attr-defined]
        self.public.append(public_files(self.folder) | printed)

    def printed(self) -> str:
        """Return all that the command printed, without the folder of this workspace."""
        text = self.outcome.out + self.outcome.err
        return text.replace(str(self.workspace.root), "")


def open_to_others(folder: Path) -> set[str]:
    """Return what in ``private/`` has another mode than 0700 for folders and 0600 for files."""
    private = folder / "private"
    modes = {path: path.stat().st_mode for path in (private, *private.rglob("*"))}
    return {
        f"{path.relative_to(folder)} {stat.S_IMODE(mode):o}"
        for path, mode in modes.items()
        if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600)
    }


def numbers_in(path: Path) -> set[float]:
    """Return the numbers in a JSON or JSON-lines file that are not whole."""
    found: set[float] = set()

    def visit(value: object) -> None:
        if isinstance(value, float) and not value.is_integer():
            found.add(value)
        elif isinstance(value, dict):
            visit([*value.values()])
        elif isinstance(value, list):
            for part in value:
                visit(part)

    text = path.read_text()
    for part in text.splitlines() if path.suffix == ".jsonl" else [text]:
        visit(json.loads(part))
    return found


def texts_with(numbers: set[float], texts: dict[str, bytes]) -> dict[str, list[str]]:
    """Return which texts contain a number with at least four significant digits, by name."""
    forms = {form for x in numbers for form in (f"{x:.4f}", f"{x:#.5g}", repr(x)[:8])}
    forms = {form for form in forms if len(form.strip("-0.")) > 3}
    found = {
        name: [form for form in forms if re.search(rf"(?<![\d.]){re.escape(form)}".encode(), text)]
        for name, text in texts.items()
        if not name.endswith(".safetensors")
    }
    return {name: forms for name, forms in found.items() if forms}


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    return Scored(tmp_path_factory.mktemp("scored"), "In town {n}.")


@pytest.fixture(scope="module")
def other(scored: Scored, tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """The same run on as many other records, with other draws and other noise."""
    model = scored.workspace.root / "model"
    return Scored(tmp_path_factory.mktemp("other"), "Nobody knows where the town {n} is.", model)


def test_only_the_owner_can_read_private_files_at_any_time(scored: Scored) -> None:
    assert (scored.folder / "private").is_dir()
    assert scored.open_to_others == set()


def test_nothing_but_the_ledger_appears_in_public_between_two_steps(scored: Scored) -> None:
    """A line after each step would reveal the step's duration, and so the size of its batch."""
    assert len(scored.public) == 5
    for files in scored.public:
        del files["ledger.jsonl"]
    first = scored.public[0]
    for files in scored.public[1:]:
        assert {name for name in files if files[name] != first.get(name)} == set()


def test_weights_are_public_only_in_the_released_model(scored: Scored) -> None:
    for files in (*scored.public, public_files(scored.folder)):
        weights = {name for name in files if Path(name).suffix in (".safetensors", ".pt", ".bin")}
        assert {name for name in weights if Path(name).parts[0] != "model"} == set()


def test_other_records_and_draws_change_nothing_in_public_except_the_weights(
    scored: Scored, other: Scored
) -> None:
    one, two = (
        {
            name: HASH.sub(b"HASH", content)
            for name, content in public_files(each.folder).items()
            if not name.endswith(".safetensors")
        }
        for each in (scored, other)
    )
    assert {"config.yaml", "ledger.jsonl", "metrics.json", "privacy.json", "report.md"} <= set(one)
    assert one.keys() == two.keys()
    assert {name for name in one if one[name] != two[name]} == set()
    assert scored.printed() == other.printed()


def test_no_loss_and_no_norm_is_public(scored: Scored) -> None:
    numbers = numbers_in(scored.folder / "private" / "diagnostics.jsonl")
    assert len(numbers) >= 10
    printed = {"printed": scored.printed().encode()}
    assert texts_with(numbers, public_files(scored.folder) | printed) == {}


def test_private_scores_are_only_in_private(scored: Scored) -> None:
    numbers = numbers_in(scored.folder / "private" / "metrics.json")
    assert len(numbers) >= 2
    printed = {"printed": scored.printed().encode()}
    for texts in (*scored.public, public_files(scored.folder) | printed):
        assert texts_with(numbers, texts) == {}


@pytest.mark.parametrize("output", ["table", "json"])
def test_only_the_output_of_eval_has_private_scores_and_the_log_of_a_submitted_job_has_none(
    scored: Scored, tmp_path: Path, output: str
) -> None:
    shutil.copytree(scored.workspace.root, tmp_path, dirs_exist_ok=True)
    workspace = Workspace(tmp_path)
    job = SimpleNamespace(job="slurm:1")
    with patch("dpft.parallel.rank_environment.submitted_task", lambda: job):
        logged = workspace.run("eval", "run=run", f"output={output}")
    printed = workspace.run("eval", "run=run", f"output={output}")
    assert (logged.code, printed.code) == (0, 0), logged.err + printed.err
    numbers = numbers_in(tmp_path / "run" / "private" / "metrics.json")
    texts = {"log": (logged.out + logged.err).encode(), "stderr": printed.err.encode()}
    assert texts_with(numbers, public_files(tmp_path / "run") | texts) == {}
    assert texts_with(numbers, {"stdout": printed.out.encode()})


def test_a_traceback_on_the_terminal_quotes_no_record(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    error = KeyError(MARKER)
    with umask_zero():
        outcome = interrupted(workspace, "run", *RUN, update=2, error=error)
    assert outcome.code == 1
    assert "KeyError" in outcome.err and MARKER not in outcome.out + outcome.err
    kept = tmp_path / "run" / "private" / "traceback.txt"
    assert MARKER in kept.read_text()
    assert open_to_others(tmp_path / "run") == set()


def test_keys_change_with_every_checkpoint_and_are_deleted_at_the_end(tmp_path: Path) -> None:
    """The noise can be computed from its key, so no key may exist longer than it is needed."""
    workspace, folder = make_workspace(tmp_path), tmp_path / "run"
    keys: list[set[str]] = []
    with before_updates(lambda _: keys.append(secret_keys(folder))):
        outcome = workspace.run(*RUN, "hydra.run.dir=run")
    assert outcome.code == 0, outcome.err
    at_step_0, at_step_2, at_step_4 = keys[0], keys[2], keys[4]
    assert len(at_step_0) >= 3, "keys for sampling, noise and dropout"
    for before, after in ((at_step_0, at_step_2), (at_step_2, at_step_4)):
        # The key that assigns records to groups is needed until the end.
        assert len(before & after) <= 1
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for key in at_step_0 | at_step_2 | at_step_4:
            assert key.encode() not in content and bytes.fromhex(key) not in content, path


def test_a_frozen_weight_that_changed_is_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer's last update writes to a weight that the method does not train."""
    models: list[GPT2LMHeadModel] = []
    forward = GPT2LMHeadModel.forward

    def forward_of(self: GPT2LMHeadModel, *args: object, **kwargs: object) -> object:
        models.append(self)
        return forward(self, *args, **kwargs)

    def write(update: int) -> None:
        if update == 5:
            models[-1].get_input_embeddings().weight.data[0] += 1

    monkeypatch.setattr(GPT2LMHeadModel, "forward", forward_of)
    workspace = make_workspace(tmp_path)
    with before_updates(write):
        outcome = workspace.run(*RUN, "method=bitfit", "hydra.run.dir=run")
    assert outcome.code == 1, outcome.err
    assert not (tmp_path / "run" / "model").exists()
    assert not any("closed" in line for line in ledger_lines(tmp_path / "run"))
