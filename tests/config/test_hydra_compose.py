"""Which words set which keys, and that they compose to the same on a command line and in Python."""

import subprocess
from pathlib import Path

import hydra
import pytest
import yaml
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException

from dpft.config.hydra_compose import (
    Composed,
    Words,
    as_input_error,
    compose,
    given_overrides,
    given_text,
    unused_folder,
)
from dpft.config.schema import TrainCommand
from tests.rejections import rejects
from tests.slowness import slow

WORDS = ["task=e2e", "model=tiny", "privacy.eps=3"]


@pytest.fixture(scope="module")
def composed() -> Composed:
    return compose("train", WORDS, TrainCommand)


@pytest.mark.slow
def test_hydras_own_node_is_apart(composed: Composed) -> None:
    assert composed.values.privacy.eps == 3
    assert "hydra" not in composed.values
    assert composed.words.job == tuple(WORDS)


@pytest.mark.parametrize(
    "word", ["train=null", *slow(("privacy=3",), ("task=[e2e]",), ("tracking=true",))]
)
def test_a_group_needs_a_name_from_python_as_well(word: str) -> None:
    with rejects(word.partition("=")[0], word.partition("=")[2]):
        compose("train", [*WORDS, word], TrainCommand)


SIGNS = "=#;&!<>^~`é中’"
UNREADABLE = {
    **{f"a{sign}b c": f"a{sign}b c" for sign in SIGNS + "'\"(){}[]"},
    **{f"[x{sign},y]": [f"x{sign}", "y"] for sign in SIGNS},
    "'unfinished": "unfinished",
}


@pytest.mark.parametrize("written, meant", UNREADABLE.items())
def test_an_argument_that_hydra_cannot_read_is_suggested_in_quotes(
    written: str, meant: str | list[str]
) -> None:
    """A shell reads the suggestion first, and then Hydra."""
    parser = OverridesParser.create()
    with pytest.raises(HydraException) as error:
        parser.parse_override(f"task.text={written}")
    unreadable = OverrideParseException(f"task.text={written}", str(error.value))
    (fault,) = as_input_error(unreadable, []).faults
    suggested = fault.hint
    printed = subprocess.run(["bash", "-c", f"printf %s {suggested}"], capture_output=True)
    assert parser.parse_override(printed.stdout.decode()).value() == meant


@pytest.mark.slow
def test_settings_of_hydra_are_no_words_of_the_job(tmp_path: Path) -> None:
    folder = f"hydra.run.dir={tmp_path / 'run'}"
    composed = compose("train", [*WORDS, folder], TrainCommand)
    assert composed.folder == tmp_path / "run"
    assert composed.words.job == tuple(WORDS)
    assert composed.words.typed == (*WORDS, folder)


@pytest.mark.slow
def test_the_record_is_what_the_command_line_leaves(composed: Composed, tmp_path: Path) -> None:
    composed.write_record(tmp_path)
    record = tmp_path / ".hydra"
    names = ["config.yaml", "hydra.yaml", "overrides.yaml"]
    assert sorted(path.name for path in record.iterdir()) == names
    assert yaml.safe_load((record / "overrides.yaml").read_text()) == WORDS
    assert not [path for path in record.iterdir() if str(Path.cwd()) in path.read_text()]


@pytest.mark.slow
def test_a_program_of_hydras_own_keeps_its_configurations(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("x: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        assert compose("train", WORDS, TrainCommand).values.privacy.eps == 3
        assert hydra.compose("mine") == {"x": 1}


@pytest.mark.slow
def test_a_misspelt_key_is_named_with_the_one_that_was_meant() -> None:
    with rejects("privacy.epz", "3") as faults:
        compose("train", ["privacy.epz=3"], TrainCommand)
    assert faults[0].hint == "privacy.eps=3"


def test_an_unused_name_is_the_first_that_does_not_exist(tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    assert unused_folder(path) == path
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").touch()
    assert unused_folder(path) == f"{path}-3"


MARKED = ("task=e2e", "+a.b=c=d", "++x=1", "~tuning.space.train")


def test_a_key_is_what_stands_before_the_first_equals_sign() -> None:
    given = {"task": "e2e", "a.b": "c=d", "x": "1", "tuning.space.train": ""}
    assert given_overrides(MARKED) == given
    assert Words(job=MARKED, typed=()).keys == list(given)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("run=outputs/2026-01-31/12-00-00", "outputs/2026-01-31/12-00-00"),
        ("run='a run, the second'", "a run, the second"),
        ('run="it\'s"', "it's"),
        ("run=2024", "2024"),
        ("run=a,b", "a,b"),
        ("run=[", "["),
        ("run=null", None),
        ("run=", None),
        ("other=x", None),
    ],
)
def test_a_text_is_read_without_its_quotes(word: str, text: str | None) -> None:
    assert given_text([word], "run") == text
