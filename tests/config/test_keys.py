import inspect
import re
import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from dpft.config.keys import (
    KEYS_OF_THE_LIBRARY,
    MEANT,
    in_keys,
    in_shell,
    known_keys,
    nearest_keys,
    unknown_key,
)
from dpft.config.removed import REMOVED
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.methods.lora import Lora
from dpft.privacy import clipping as clipping
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.tasks.custom import CustomFields
from dpft.training.optimizers import AdamW
from tests.config.test_conf import loaded
from tests.rejections import rejects

KNOWN = {
    "privacy",
    "privacy.eps",
    "privacy.engine",
    "optimizer",
    "optimizer.eps",
    "train",
    "train.steps",
    "train.seed",
    "train.learning_rate",
    "train.expected_batch_size",
    "train.micro_batch_size",
    "eval",
    "eval.batch_size",
}


def test_a_key_is_known_by_the_names_that_other_programs_give_it() -> None:
    chosen = {"privacy": DifferentialPrivacy, "optimizer": AdamW, "method": Lora}
    every = [*known_keys(TrainCommand), *known_keys(CustomFields, parent="task")]
    for section, cls in chosen.items():
        every += known_keys(cls, parent=section)
    for name, key in MEANT.items():
        assert nearest_keys(name, every) == [key], name


@pytest.mark.parametrize(("name", "meant"), [("epsilon", "eps"), ("sigma", "noise_multiplier")])
def test_a_command_of_few_keys_has_them_in_its_root(name: str, meant: str) -> None:
    assert nearest_keys(name, ["eps", "noise_multiplier", "steps"]) == [meant]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("privacy.epz", ["privacy.eps"]),
        ("eps", ["privacy.eps"]),
        ("steps", ["train.steps"]),
        ("privcy.eps", ["privacy.eps"]),
        ("privacy.learning_rate", ["train.learning_rate"]),
        ("learning_rat", ["train.learning_rate"]),
        ("train.batch_size", ["train.expected_batch_size"]),
        ("eval.size", ["eval.batch_size"]),
        ("tran", ["train"]),
        ("train.lr", ["train.learning_rate"]),
        ("optimizer.lr", ["train.learning_rate"]),
    ],
)
def test_a_misspelt_key_is_told_what_it_may_have_been(key: str, meant: list[str]) -> None:
    assert nearest_keys(key, KNOWN) == meant


def test_where_nothing_is_near_the_keys_of_the_section_are_listed() -> None:
    fault = unknown_key("train.zz", KNOWN)
    assert fault.hint is None and "train.expected_batch_size" in fault.message


@pytest.mark.slow
def test_a_value_of_an_earlier_version_is_rejected_with_its_replacement() -> None:
    with rejects("privacy.engine", "two_pass") as faults:
        loaded("train", ["task=e2e", "privacy.eps=8", "privacy.engine=two_pass"])
    assert REMOVED["privacy.engine=two_pass"] in faults[0].message


def test_what_stands_for_the_librarys_arguments_are_keys() -> None:
    every = [*known_keys(TrainConfig), *known_keys(DifferentialPrivacy, parent="privacy")]
    for key in KEYS_OF_THE_LIBRARY.values():
        named = re.search(r"\w+\.\w+", key)
        assert named is not None and named.group() in every


def test_each_argument_that_a_message_of_the_clipper_names_has_a_key() -> None:
    arguments = set(inspect.signature(clipping.PerExampleClipper).parameters)
    room = Path(clipping.__file__).parent
    sources = [path.read_text() for path in room.rglob("*.py")]
    literals = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", "\n".join(sources))
    named = {code for code in literals if in_keys(f"`{code}`") == f"`{code}`"}
    # It follows from numbers of a step, and no key sets it.
    assert len(set(literals) - named) > 5 and named & arguments <= {"headroom"}, named


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`engine` must be one of auto.", "privacy.engine must be one of auto."),
        ("choose `engine='rows'`, x.", "choose privacy.engine=rows, x."),
        ("`loss_scale` is `dpft eval`'s.", "train.loss_scale is `dpft eval`'s."),
        ("the engine is `x='y'`", "the engine is `x='y'`"),
    ],
)
def test_a_command_says_keys_where_the_library_says_arguments(message: str, expected: str) -> None:
    assert in_keys(message) == expected


@pytest.mark.parametrize(
    "folder",
    [
        "outputs/a",
        "a b",
        "läuf",
        "it's",
        "x,y=[1]",
        "a:b",
        "~/$a",
        "a#b;c&d!",
        "C:\\",
        "\\'\"`",
        "a ",
    ],
)
def test_a_folder_in_a_hint_is_read_back_as_it_is(folder: str) -> None:
    """By a shell, then by Hydra."""
    (word,) = shlex.split(in_shell("run", folder))
    override = OverridesParser.create().parse_override(word)
    assert (override.key_or_group, override.value()) == ("run", folder)
