"""Commands under torchrun: which ones its processes may share, and who says what."""

from pathlib import Path

import pytest

from dpft.cli import hydra_app
from dpft.cli.commands import passed_on
from dpft.cli.hydra_app import run_hydra
from dpft.cli.main import SUBCOMMANDS, main
from dpft.commands import run_plan
from dpft.errors import InputError
from dpft.parallel import processes, rank_environment
from dpft.parallel.parallel_config import SHARED, LaunchConfig
from tests.slowness import slow

TRAIN = ("train", "task=e2e", "model=tiny", "task.source=embedded", "privacy.eps=8")


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This is the first of two processes."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    assert not list(Path.cwd().iterdir())
    return capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(set(SUBCOMMANDS) - set(SHARED)))
def test_a_command_for_one_process_is_refused_before_it_does_anything(
    torchrun: None, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert f"dpft {name} " in refusal(capsys, name, "key=value")


@pytest.mark.parametrize("words", [("--multirun",), ("-m",), ("hydra.mode=MULTIRUN",)])
def test_a_sweep_is_refused(
    torchrun: None, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert "--multirun" in refusal(capsys, *TRAIN, *words)


@pytest.mark.slow
def test_processes_that_would_each_train_alone_are_refused(
    torchrun: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "parallel=none" in refusal(capsys, *TRAIN)


@pytest.mark.slow
def test_wrong_words_are_refused_by_the_other_process_a_moment_later(
    torchrun: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[float]()
    monkeypatch.setattr(rank_environment.time, "sleep", waited.append)
    monkeypatch.setenv("RANK", "1")
    assert main([*TRAIN, "trian.steps=1"]) == 2
    assert "trian" in capfd.readouterr().err
    assert waited == [rank_environment.PATIENCE]
    assert not list(Path.cwd().iterdir())


@pytest.mark.slow
def test_tuning_runs_in_one_process(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"parallel": "ddp", "launch": "local", "tracking": "tensorboard"}
    public = (*TRAIN[1:], "eval.split_is_public=true")
    for section, name in settings.items():
        assert f"{section}={name}" in refusal(capsys, "tune", *public, f"{section}={name}")


@pytest.mark.slow
def test_the_processes_have_the_words_and_the_folder_of_the_command_that_starts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[tuple[LaunchConfig, list[str]]]()
    monkeypatch.setattr(processes, "launch", lambda *given: started.append(given))
    monkeypatch.chdir(tmp_path)
    assert main([*TRAIN, "launch=local", "launch.processes=3", "hydra.run.dir=a b"]) == 0
    ((config, words),) = started
    assert config == LaunchConfig(name="local", processes=3)
    assert words == [*TRAIN, "parallel=ddp", "launch=none", f"hydra.run.dir='{tmp_path}/a b'"]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_processes_that_are_restarted_resume_their_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[list[str]]()
    monkeypatch.setattr(processes, "launch", lambda _, words: started.append(words))
    monkeypatch.chdir(tmp_path)
    given = (*TRAIN, "launch=local", "launch.processes=2", "launch.max_restarts=1")
    assert main(given) == 0
    assert "resume=auto" in started[0]
    (folder,) = [word for word in started[0] if word.startswith("hydra.run.dir=")]
    assert "${" not in folder


BY = {"TORCHELASTIC_MAX_RESTARTS": "torchrun", "SLURM_RESTART_COUNT": "Slurm"}
BEGINS = "the run begins."


@pytest.mark.slow
@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("words", [(), *slow((("hydra.run.dir=mine",),))])
def test_a_restart_that_would_begin_a_second_run_is_refused(
    not_begun: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    by: str,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setenv(by, "0")
    assert BEGINS in refusal(capsys, *TRAIN, *words)
    monkeypatch.setenv(by, "3")
    said = refusal(capsys, *TRAIN, *words)
    assert BY[by] in said and "resume=auto" in said and "hydra.run.dir=outputs/mine" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("tune", *TRAIN[1:]), ("tokenizer", "task=e2e", "tokenizer.vocab_size=50", "privacy.eps=3")],
    ids=["tune", "tokenizer"],
)
def test_a_restart_of_another_command_is_refused_as_well(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    said = refusal(capsys, *words)
    assert "Slurm" in said and "resume=RUN" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [(), *slow((("hydra.run.dir='outputs/${now:%H}'",),), (("--multirun",),))],
)
def test_resuming_automatically_needs_a_fixed_folder(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(capsys, *TRAIN, "resume=auto", *words)
    assert "resume=auto" in said and "hydra.run.dir=outputs/mine" in said


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["hydra.run.dir=mine", "--multirun hydra.sweep.dir=mine"])
@pytest.mark.parametrize("by", BY)
def test_a_restart_with_a_fixed_folder_and_auto_begins_or_resumes(
    not_begun: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    by: str,
    folder: str,
) -> None:
    monkeypatch.setenv(by, "1")
    assert BEGINS in refusal(capsys, *TRAIN, "resume=auto", *folder.split())


@pytest.fixture
def not_begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``dpft train`` ends with ``BEGINS`` where it would begin."""

    def announced(*_: object) -> None:
        raise InputError(BEGINS)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_plan, "announce", announced)


@pytest.mark.parametrize(("rank", "own"), [("0", []), ("1", ["hydra.run.dir=."])])
def test_only_the_first_process_has_a_folder(
    torchrun: None, monkeypatch: pytest.MonkeyPatch, rank: str, own: list[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    words = list[str]()
    monkeypatch.setattr(hydra_app, "start_hydra", lambda name, given, *_, **__: words.extend(given))
    run_hydra("train", [*TRAIN[1:], "hydra.run.dir=a"])
    assert words == [*TRAIN[1:], "hydra.run.dir=a", *own]


@pytest.mark.parametrize(
    "word",
    ["launch=local", "launch.processes=2", "hydra.run.dir=a", "hydra.mode=MULTIRUN",
     "hydra/launcher=joblib", "hydra.sweeper.params.train.seed=1"],
)  # fmt: skip
def test_what_is_for_the_command_that_starts_processes_is_kept_from_them(word: str) -> None:
    """Else each would start processes of its own, or write to a folder of its own."""
    others = ["task=e2e", "privacy.eps=3", "hydra.searchpath=[file://x]"]
    assert passed_on([word, *others]) == others
