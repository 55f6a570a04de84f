"""What processes of a run must have in common, and what of the first one's is everybody's."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

from dpft.commands import rank_agreement
from dpft.commands.new_run import Secrets
from dpft.commands.rank_agreement import (
    bits_of_a_gradient,
    check_alike,
    share_secrets,
    share_settings,
)
from dpft.config.schema import TrainConfig
from dpft.data.batches import TextLayout
from dpft.errors import SaidElsewhere
from dpft.parallel.ranks import ALONE, Ranks
from tests.config.test_conf import loaded
from tests.parallel.thread_ranks import together as on_threads
from tests.training import toy

WORDS = ["experiment=demo", "privacy.eps=3"]


def met(*words: list[str]) -> list[str]:
    """What each rank with its own words is told."""
    commands = [loaded("train", each) for each in words]

    def meet(ranks: Ranks) -> str:
        try:
            check_alike(commands[ranks.rank].settings(), ranks)
        except Exception as error:
            return str(error)
        return ""

    return on_threads(len(words), meet)


@pytest.mark.slow
def test_processes_of_the_same_words_and_code_go_on() -> None:
    assert met(WORDS, WORDS) == ["", ""]


@pytest.mark.slow
def test_the_first_key_that_differs_is_named_and_by_the_first_alone() -> None:
    other = [*WORDS, "train.learning_rate=1", "privacy.delta=1e-6"]
    first, second = met(WORDS, other)
    assert "privacy.delta on rank 1" in first
    assert second == str(SaidElsewhere("InputError", 2))


@pytest.mark.slow
def test_other_code_is_named_before_any_key(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = rank_agreement._versions()
    found = iter([versions, {**versions, "dpft code": "another"}])
    monkeypatch.setattr(rank_agreement, "_versions", lambda: next(found))
    other = [*WORDS, "privacy.delta=1e-6"]
    said = met(WORDS, other)
    assert any("dpft code on rank 1" in each for each in said)


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [False, True])
def test_the_first_ones_configuration_and_folder_are_everybodys(
    goes_on: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a restart too, whose words say less than the folder does; on rank 0 nothing changes."""
    monkeypatch.chdir(tmp_path)
    own = loaded("train", [*WORDS, "privacy.delta=1e-6"]).settings(), Path("run"), goes_on

    def share(ranks: Ranks) -> tuple[TrainConfig, Path, bool]:
        config = own[0] if ranks.is_rank_0 else None
        return share_settings(config, Path("run"), resumes=goes_on, ranks=ranks)

    first, second = on_threads(2, share)
    assert first == own and first[0] is own[0]
    assert second == (own[0], tmp_path / "run", goes_on)
    assert share_settings(own[0], own[1], resumes=goes_on, ranks=ALONE) == own


def test_the_first_ones_keys_are_everybodys() -> None:
    own = Secrets(unit_key=bytes(range(32)), held_out_key=bytes(32), audit_key=bytes(range(1, 33)))

    def share(ranks: Ranks) -> Secrets:
        return share_secrets(own if ranks.is_rank_0 else None, ranks)

    assert on_threads(2, share) == [own, own]
    own = replace(own, held_out_key=None)
    assert on_threads(2, share) == [own, own]


def bits(model: GPT2LMHeadModel, precision: str = "fp32") -> str:
    return bits_of_a_gradient(model, TextLayout(), max_length=9, precision=precision)


def test_the_same_model_gives_the_same_bits_and_stays_as_it_is() -> None:
    model = toy.tiny_model().train()
    assert bits(model) == bits(model)
    assert model.training and all(p.grad is None for p in model.parameters())


def test_a_computation_that_rounds_otherwise_gives_others() -> None:
    model = toy.tiny_model()
    before = bits(model)
    assert bits(model, "bf16") != before
    name, parameter = next(iter(model.named_parameters()))
    with torch.no_grad():
        parameter.view(-1)[0] = torch.nextafter(parameter.view(-1)[0], torch.tensor(9.0))
    assert bits(model) != before, name
