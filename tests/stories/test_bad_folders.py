"""Folders that are no run, of another dpft, or damaged: refused in one sentence, nothing lost."""

import itertools
import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.stories.test_resume import RUN, broken
from tests.stories.tiny import EVALUATION, SETTING, Workspace, make_workspace

pytestmark = pytest.mark.slow
CHECKPOINT = "private/checkpoints/step-00000002"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, shared_accounting: None) -> Workspace:
    """Run ``whole`` and ``cut``, the second broken off in its fourth step, and their kin."""
    made = make_workspace(tmp_path_factory.mktemp("bad"))
    made.finished(*RUN, "hydra.run.dir=whole")
    with pytest.MonkeyPatch.context() as patch:
        assert broken(made, patch, "cut", KeyboardInterrupt()).code == 130
    (made.root / "sweep").mkdir()
    shutil.copytree(made.root / "whole", made.root / "sweep" / "0")
    assert made.run("eval", *SETTING, *EVALUATION, "hydra.run.dir=evaluated").code == 0
    (made.root / "search/private/tuning").mkdir(parents=True)
    for name in ("config.yaml", "privacy.json", "ledger.jsonl", "model"):
        copy = shutil.copytree if name == "model" else shutil.copyfile
        copy(made.root / "whole" / name, made.root / "search" / name)
    write_rows = (made.root / "prompts.jsonl").write_text
    write_rows('{"meaning_representation": "name[Bar]", "human_reference": ""}\n')
    return made


COMMANDS = {
    "resume": ("train", "resume={}"),
    "account": ("account", "run={}"),
    "accounts": ("account", "runs=[{}]"),
    "eval": ("eval", "run={}"),
    "report": ("report", "{}"),
    "export": ("export", "run={}"),
    "generate": ("generate", "run={}", "prompts=prompts.jsonl"),
}
ALL = tuple(COMMANDS)
WRITERS = {
    **{name: COMMANDS[name] for name in ("resume", "eval", "report", "export", "generate")},
    "begin": ("train", *RUN, "hydra.run.dir={}"),
    "elsewhere": ("eval", *SETTING, *EVALUATION, "hydra.run.dir={}"),
    "tune": ("tune", *SETTING, "privacy.eps=3", "eval.split_is_public=true", "hydra.run.dir={}"),
}
"""Commands that may write into a run's folder, or show what is in it."""
ALL_WRITERS = tuple(WRITERS)


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def refusal(workspace: Workspace, command: str, folder: str, code: int) -> str:
    """Return the one sentence that a command says of a folder, which it leaves as it was."""
    before = content(workspace.root)
    outcome = workspace.run(*(word.format(folder) for word in COMMANDS[command]))
    assert outcome.code == code, outcome.err
    assert outcome.out == "" and outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith("dpft: error: ")
    assert content(workspace.root) == before
    return outcome.err


def check(
    workspace: Workspace,
    run: str,
    spoil: Callable[[Path], None],
    commands: tuple[str, ...],
    code: int,
    *said: str,
) -> None:
    """Spoils a copy of a run and checks what each command says of it."""
    folder = workspace.root / "bad"
    shutil.copytree(workspace.root / run, folder)
    try:
        spoil(folder)
        for command in commands:
            sentence = refusal(workspace, command, "bad", code)
            assert all(part in sentence for part in said), sentence
    finally:
        shutil.rmtree(folder)


def changed(name: str, **values: object) -> Callable[[Path], None]:
    """Return what sets keys of a JSON file; None removes one."""

    def spoil(folder: Path) -> None:
        whole = json.loads((folder / name).read_text()) | values
        left = {key: value for key, value in whole.items() if value is not None}
        (folder / name).write_text(json.dumps(left))

    return spoil


def written(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def lines(edit: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        ledger = folder / "ledger.jsonl"
        ledger.write_text("".join(edit(ledger.read_text().splitlines(keepends=True))))

    return spoil


READERS = ("eval", "report", "export", "generate")
"""Of privacy.json; ``account`` answers from the ledger, whatever it says."""
OTHER_FORMS = {
    "privacy.json": ("whole", READERS),
    "metrics.json": ("whole", ("eval", "report")),
    f"{CHECKPOINT}/state.json": ("cut", ("resume", "account")),
}


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("name", OTHER_FORMS)
def test_a_file_of_another_schema_is_refused_by_its_version(
    workspace: Workspace, name: str, version: int
) -> None:
    run, commands = OTHER_FORMS[name]
    said = f"bad/{name} must have schema_version 2, got {version}"
    check(workspace, run, changed(name, schema_version=version), commands, 2, said)


def test_a_metrics_file_of_another_schema_stops_a_resume_before_it_scores(
    workspace: Workspace,
) -> None:
    spoil = changed("metrics.json", schema_version=1)
    check(workspace, "cut", spoil, ("resume",), 2, "metrics.json must have schema_version 2")


def test_a_configuration_of_another_dpft_is_refused_by_its_key(workspace: Workspace) -> None:
    def spoil(folder: Path) -> None:
        with (folder / "config.yaml").open("a") as file:
            file.write("compression: 3\n")

    said = "unknown configuration key compression"
    check(workspace, "cut", spoil, ("resume",), 2, said)
    check(workspace, "whole", spoil, ("eval", "export", "generate"), 2, said)


DAMAGED = {
    "no JSON": ("privacy.json", written("privacy.json", "{"), READERS),
    "a list": ("privacy.json", written("privacy.json", "[]"), READERS),
    "no plan": ("privacy.json", changed("privacy.json", plan=None), READERS),
    "no ledger": ("privacy.json", changed("privacy.json", ledger=None), READERS),
    "odd ledger": ("privacy.json", changed("privacy.json", ledger={"lines": "six"}), READERS),
    "text for a number": ("privacy.json", changed("privacy.json", epsilon="3"), READERS),
    "no entries": ("metrics.json", changed("metrics.json", evaluations=None), ("eval", "report")),
    "no stage": ("metrics.json", changed("metrics.json", evaluations=[{}]), ("eval", "report")),
}


@pytest.mark.parametrize("command", ["account", "accounts"])
def test_account_answers_from_the_ledger_beside_a_damaged_privacy_json(
    workspace: Workspace, command: str
) -> None:
    words = [word.format("bad") for word in COMMANDS[command]]
    shutil.copytree(workspace.root / "whole", workspace.root / "bad")
    try:
        whole = workspace.run(*words)
        written("privacy.json", "{")(workspace.root / "bad")
        damaged = workspace.run(*words)
    finally:
        shutil.rmtree(workspace.root / "bad")
    assert (whole.code, damaged.code) == (0, 0), damaged.err
    rows = [line for line in whole.out.splitlines() if "epsilon" in line]
    assert rows and set(rows) <= set(damaged.out.splitlines())


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_record_is_refused_as_corrupted(workspace: Workspace, case: str) -> None:
    name, spoil, commands = DAMAGED[case]
    check(workspace, "whole", spoil, commands, 3, f"bad/{name} is damaged")


def flip(name: str, place: int) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        whole = bytearray((folder / name).read_bytes())
        whole[place] ^= 1
        (folder / name).write_bytes(whole)

    return spoil


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-1]) and None


PARTS = ("model.safetensors", "optimizer.safetensors", "generators.json", "state.json")


WAYS = ("flipped early", "flipped late", "cut", "gone")
# Without its generator states a run goes on with new noise, counted: test_private_run.
DAMAGES = sorted({*itertools.product(PARTS, WAYS)} - {("generators.json", "gone")})


@pytest.mark.parametrize(("name", "how"), DAMAGES)
def test_a_damaged_part_of_a_checkpoint_is_refused_as_corrupted(
    workspace: Workspace, name: str, how: str
) -> None:
    path = f"{CHECKPOINT}/{name}"
    if name.endswith("json") and how == "cut":
        spoil: Callable[[Path], None] = written(path, "{")
    else:
        spoil = {
            "flipped early": flip(path, 40),
            "flipped late": flip(path, -40),
            "cut": cut(path),
            "gone": gone(path),
        }[how]
    check(workspace, "cut", spoil, ("resume",), 3, f"bad/{CHECKPOINT}")


def test_a_checkpoint_of_another_model_is_refused_as_corrupted(workspace: Workspace) -> None:
    """The model that the run began with was replaced by a larger one."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = workspace.root / "model"
    kept = shutil.copytree(model, workspace.root / "kept")
    config = GPT2Config.from_pretrained(model)
    config.n_embd = 32
    GPT2LMHeadModel(config).save_pretrained(model)
    try:
        before = content(workspace.root / "cut")
        outcome = workspace.run("train", "resume=cut", "train.keep=1")
        assert outcome.code == 3, outcome.err
        assert "private/checkpoints" in outcome.err
        assert "Traceback" not in outcome.err
        left = content(workspace.root / "cut")
        assert {name: left[name] for name in before if "diagnostics" not in name} == {
            name: text for name, text in before.items() if "diagnostics" not in name
        }
    finally:
        shutil.rmtree(model)
        kept.rename(model)


def test_a_run_without_privacy_that_lost_its_generators_has_not_ended(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [word for word in RUN if not word.startswith("privacy.")]
    monkeypatch.setattr("tests.stories.test_resume.RUN", given)
    outcome = broken(workspace, monkeypatch, "open", KeyboardInterrupt(), "privacy=none")
    assert outcome.code == 130, outcome.err
    (path,) = (workspace.root / "open/private/checkpoints").glob("*/generators.json")
    states = path.read_bytes()
    path.unlink()
    refused = workspace.run("train", "resume=open")
    assert refused.code == 3 and "generators.json" in refused.err
    path.write_bytes(states)
    assert workspace.run("train", "resume=open").code == 0


def nested(folder: Path) -> None:
    (folder / "config.yaml").write_text("[" * 5000)


def folder_instead(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return spoil


def file_instead_of_private(folder: Path) -> None:
    shutil.rmtree(folder / "private")
    (folder / "private").write_text("")


def journal(line: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        with (folder / "private/steps.jsonl").open("a") as file:
            file.write(line + "\n")

    return spoil


LEDGER_READERS = ("resume", "account", "eval", "report", "export", "generate")
HOSTILE = {
    "a journal to infinity": (
        *("whole", journal('{"step": Infinity}'), LEDGER_READERS, 3),
        "bad/private/steps.jsonl, line 6: ",
    ),
    "a nested journal": (
        *("cut", journal("[" * 200_000), ("resume", "account"), 3),
        "bad/private/steps.jsonl, line ",
    ),
    "a journal of a folder": (
        *("whole", folder_instead("private/steps.jsonl"), LEDGER_READERS, 3),
        "bad/private/steps.jsonl must be a file, got a folder",
    ),
    "a ledger of a folder": (
        *("whole", folder_instead("ledger.jsonl"), LEDGER_READERS, 3),
        "bad/ledger.jsonl must be a file, got a folder",
    ),
    "privacy.json of a folder": (
        *("whole", folder_instead("privacy.json"), READERS, 3),
        "bad/privacy.json must be a file, got a folder",
    ),
    "a nested state": (
        *("cut", written(f"{CHECKPOINT}/state.json", "[" * 200_000), ("resume", "account"), 3),
        f"bad/{CHECKPOINT}",
    ),
    "a private file": (
        *("whole", file_instead_of_private, ("resume", "eval", "export", "generate"), 2),
        "bad/private must be a folder",
    ),
    "a nested configuration": ("whole", nested, ("resume", *READERS), 2, "bad/config.yaml"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_was_made_to_break_a_reader_is_refused_in_one_sentence(
    workspace: Workspace, case: str
) -> None:
    check(workspace, *HOSTILE[case])


@pytest.mark.parametrize(
    ("run", "command", "key"),
    [
        ("cut", ("train", "resume=bad"), "model"),
        ("whole", ("eval", "run=bad"), "task"),
    ],
)
def test_a_received_configuration_reads_no_environment_variable(
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    run: str,
    command: tuple[str, ...],
    key: str,
) -> None:
    monkeypatch.setenv("SECRET", "Qhidden")
    folder = workspace.root / "bad"
    shutil.copytree(workspace.root / run, folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config[key]["path" if key == "model" else "data_dir"] = "nowhere/${oc.env:SECRET}"
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    try:
        outcome = workspace.run(*command)
        written_files = b"".join(content(folder).values())
    finally:
        shutil.rmtree(folder)
    assert "Qhidden" not in outcome.out + outcome.err and b"Qhidden" not in written_files
    assert outcome.code == 2 and "nowhere/${oc.env:SECRET}" in outcome.err


LINKS = {
    "model": ("whole", ALL_WRITERS),
    "model/x": ("whole", ALL_WRITERS),
    "private": ("whole", ALL_WRITERS),
    "private/diagnostics.jsonl": ("cut", ("resume", "begin", "tune")),
    "private/lock": ("whole", ALL_WRITERS),
    "private/checkpoints": ("cut", ("resume", "begin", "tune")),
}


@pytest.mark.parametrize("place", LINKS)
def test_a_link_in_a_runs_folder_is_refused_and_what_it_points_to_stays(
    workspace: Workspace, place: str
) -> None:
    run, commands = LINKS[place]
    folder, mine = workspace.root / "bad", workspace.root / "mine"
    shutil.copytree(workspace.root / run, folder)
    (mine / "step-00000001").mkdir(parents=True)
    (mine / "key").write_text("secret")
    (mine / "key").chmod(0o600)
    mine.chmod(0o750)
    path = folder / place
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    is_folder = place in ("model", "private", "private/checkpoints")
    path.symlink_to(mine if is_folder else mine / "new" if place.endswith("lock") else mine / "key")
    try:
        for command in commands:
            outcome = workspace.run(*(word.format("bad") for word in WRITERS[command]))
            assert outcome.code == 2, outcome.err
            assert outcome.err.count("\n") == 1 and f"bad/{place} must be" in outcome.err
            assert "got a symbolic link" in outcome.err and outcome.new == frozenset()
            assert path.is_symlink()
            assert {each.name for each in mine.iterdir()} == {"key", "step-00000001"}
            assert (mine / "key").read_text() == "secret"
            modes = [stat.S_IMODE(each.stat().st_mode) for each in (mine, mine / "key")]
            assert modes == [0o750, 0o600]
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(mine)


def test_a_stray_name_among_the_checkpoints_stops_no_resume(workspace: Workspace) -> None:
    folder = workspace.root / "stray"
    shutil.copytree(workspace.root / "cut", folder)
    (folder / "private/checkpoints/step-zzz").mkdir()
    outcome = workspace.run("train", "resume=stray")
    shutil.rmtree(folder)
    assert outcome.code == 0, outcome.err


def _renamed(line: str) -> str:
    return line.replace(json.loads(line)["run_id"], "0" * 32)


LEDGERS = {
    "gap": (lambda all_: [all_[0], *all_[2:]], 2),
    "reordered": (lambda all_: [all_[1], all_[0], *all_[2:]], 1),
    "edited": (lambda all_: [all_[0], all_[1].replace("1.0", "9.0"), *all_[2:]], 2),
    "renamed": (lambda all_: [_renamed(all_[0]), *all_[1:]], 2),
    "unnamed": (lambda all_: all_[1:], 1),
    "torn first line": (lambda all_: [all_[0][:50]], 1),
    "duplicated": (lambda all_: [all_[0], *all_], 2),
    "empty": (lambda all_: [], 1),
    "cut": (lambda all_: all_[:2], 3),
    "not JSON": (lambda all_: ["step 1\n", *all_[1:]], 1),
}


@pytest.mark.parametrize("case", LEDGERS)
def test_a_spoilt_ledger_is_refused_by_the_number_of_its_line(
    workspace: Workspace, case: str
) -> None:
    edit, line = LEDGERS[case]
    said = f"bad/ledger.jsonl, line {line}: "
    check(workspace, "cut", lines(edit), ("resume", "account"), 3, said)


def test_what_follows_the_closing_line_is_refused(workspace: Workspace) -> None:
    for more in ('{"step": 6}\n', '{"st'):
        spoil = lines(lambda all_, more=more: [*all_, more])  # type: ignore[misc]
        commands = ("resume", "account", "eval", "export", "generate")
        check(workspace, "whole", spoil, commands, 3, "bad/ledger.jsonl, line 8: ")


def test_a_private_run_without_its_ledger_is_refused(workspace: Workspace) -> None:
    commands = ("resume", "account", "eval", "export", "generate")
    check(workspace, "whole", gone("ledger.jsonl"), commands, 3, "bad/ledger.jsonl")


def test_a_torn_last_line_is_accepted_and_counted(workspace: Workspace) -> None:
    folder = workspace.root / "torn"
    shutil.copytree(workspace.root / "cut", folder)
    with (folder / "ledger.jsonl").open("a") as file:
        file.write('{"mechanism": {"na')
    outcome = workspace.run("account", "run=torn", "output=json")
    assert outcome.code == 0, outcome.err
    whole = json.loads(workspace.run("account", "run=cut", "output=json").out)
    assert json.loads(outcome.out)["steps_taken"] == whole["steps_taken"] + 1
    shutil.rmtree(folder)


def test_another_head_is_refused(workspace: Workspace) -> None:
    head = json.loads((workspace.root / "whole/privacy.json").read_text())["ledger"]["head"]
    assert workspace.run("account", "run=whole", f"head={head}", "output=json").code == 0
    other = workspace.run("account", "run=whole", f"head={head[::-1]}")
    assert other.code == 3
    assert other.err.count("\n") == 1 and head[::-1] in other.err
    assert "hexadecimal" in workspace.refusal("account", "run=whole", "head=12ab")


NO_RUNS = {
    "nowhere": ALL,
    "data": ALL,
    "model": ALL,
    "model/config.json": ALL,
    "evaluated": ALL,
    "sweep": ("resume", "account", "eval", "export", "generate"),
    "search": ("resume", "account", "accounts"),
}


@pytest.mark.parametrize("name", NO_RUNS)
def test_what_is_no_run_is_refused(workspace: Workspace, name: str) -> None:
    """A path that is not there, data, a model, a file, an evaluation, a sweep, a search."""
    for command in NO_RUNS[name]:
        sentence = refusal(workspace, command, name, 2)
        assert name in sentence and ("resume" in sentence or "run" in sentence)
