"""Averages of weights: their shares by closed forms, and whole runs that keep and release them."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dpft.errors import InputError
from dpft.files import CHECKPOINTS
from dpft.methods.base import METHODS
from dpft.runs import evaluation
from dpft.training import loop as loop_module
from dpft.training.checkpoint import (
    checkpoints,
    find_resume_point,
    restore_checkpoint,
    save_checkpoint,
)
from dpft.training.ordinary import train_ordinarily
from dpft.training.private_run import train_privately
from dpft.training.training_config import Averaging, TrainingConfig, WeightAverage
from tests.slowness import slow, slow_but
from tests.training.killed_runs import killed
from tests.training.toy import plan, privacy, session, spent, tiny_model, training_state


def averaging(kind: str, **settings) -> Averaging:
    found = TrainingConfig(average=kind, **settings).averaging
    assert found is not None
    return found


def averaged(config: Averaging, iterates: list[float]) -> float:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    average = WeightAverage(config, [weight], len(iterates))
    for step, value in enumerate(iterates, start=1):
        weight.data.fill_(value)
        average.update(step)
    assert weight.item() == iterates[-1], "the model is left as it was"
    return float(average.tensors[weight])


ITERATES = [3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0]


@pytest.mark.parametrize(
    ("tail", "last"), [(0.5, 4), (1.0, 7), (0.01, 1), (2 / 7, 2)]
)  # round(3.5) is 4, to the even number
def test_the_tail_is_the_mean_of_the_last_iterates(tail: float, last: int) -> None:
    expected = sum(ITERATES[-last:]) / last
    assert averaged(averaging("tail", average_tail=tail), ITERATES) == pytest.approx(expected)


def test_before_its_tail_begins_the_average_is_the_iterate() -> None:
    weight = nn.Parameter(torch.zeros(1))
    average = WeightAverage(averaging("tail", average_tail=0.25), [weight], 8)
    for step in range(1, 7):
        weight.data.fill_(float(step))
        average.update(step)
        assert float(average.tensors[weight]) == step


@pytest.mark.parametrize("decay", [0.9999, 0.5])
def test_ema_has_the_shares_of_its_formula(decay: float) -> None:
    """The first iterate's share is the product of what stays, each later one's what was added.

    Where the cap is not reached, what stays at t is (1 + t) / (10 + t), so the product telescopes.
    """
    kept = [min(decay, (1 + t) / (10 + t)) for t in range(2, len(ITERATES) + 1)]
    shares = []
    for number in range(len(ITERATES)):
        share = 1.0 if number == 0 else 1 - kept[number - 1]
        for later in kept[number:]:
            share *= later
        shares.append(share)
    assert sum(shares) == pytest.approx(1)
    expected = sum(share * value for share, value in zip(shares, ITERATES, strict=True))
    found = averaged(averaging("ema", average_decay=decay), ITERATES)
    assert found == pytest.approx(expected)


def test_averaging_iterates_with_independent_noise_lowers_its_variance_by_their_number() -> None:
    """The mean of k independent numbers of variance 1 has variance 1 / k."""
    weight = nn.Parameter(torch.zeros(20_000))
    average = WeightAverage(averaging("tail", average_tail=0.5), [weight], 20)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 21):
        weight.data.copy_(torch.randn(weight.shape, generator=generator))
        average.update(step)
    assert float(average.tensors[weight].var()) == pytest.approx(1 / 10, rel=0.05)


def test_swapping_twice_leaves_every_bit() -> None:
    weight = nn.Parameter(torch.randn(5))
    average = WeightAverage(averaging("ema"), [weight], 3)
    average.swap()  # there is none yet
    average.update(1)
    with torch.no_grad():
        weight.mul_(1.7)
    average.update(2)
    last, mean = weight.detach().clone(), average.tensors[weight].clone()
    assert not torch.equal(last, mean)
    average.swap()
    assert torch.equal(weight.detach(), mean) and torch.equal(average.tensors[weight], last)
    average.swap()
    assert torch.equal(weight.detach(), last) and torch.equal(average.tensors[weight], mean)


METHOD = ["full", "rgp", "two_phase", "bitfit"]


def own_session(folder, method: str = "full", **settings):
    run = session(folder, tiny_model(), checkpoint_every=2, **settings)
    chosen = METHODS.named(method)(name=method)
    phases = chosen.phases(5, lambda epochs: 2)
    return replace(run, method=chosen, model=chosen.prepare(run.model), phases=phases)


def listening(iterates: list):
    """Returns a check_weights that keeps what the weights are after each step."""
    check = loop_module.check_weights

    def check_and_keep(model, step):
        check(model, step)
        iterates.append({name: p.detach().clone() for name, p in model.named_parameters()})

    return check_and_keep


def plan_of(method: str):
    if method != "two_phase":
        return plan()
    (phase,) = plan().phases
    return replace(plan(), phases=(replace(phase, steps=2), replace(phase, steps=3)))


def means_of(run, average) -> dict:
    names = {p: name for name, p in run.model.named_parameters()}
    return {names[p]: tensor for p, tensor in average.tensors.items()}


def run_of(folder, *, method="full", resume_point=None, **settings):
    run = own_session(folder, method, **settings)
    arguments = {"epsilon_after": spent, "resume_point": resume_point}
    average = train_privately(run, plan_of(method), privacy(), **arguments)
    weights = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    return run, average, weights


@pytest.mark.parametrize("method", slow_but(["full", "two_phase"], METHOD))
def test_a_run_releases_the_mean_of_its_last_iterates(tmp_path, monkeypatch, method: str) -> None:
    iterates: list[dict] = []
    monkeypatch.setattr(loop_module, "check_weights", listening(iterates))
    settings = {"average": "tail", "average_tail": 0.6}
    run, average, released = run_of(tmp_path / "run", method=method, **settings)
    assert average is not None and len(iterates) == 5
    compared = 0
    for parameter, last in average.tensors.items():
        (name,) = [n for n, p in run.model.named_parameters() if p is parameter]
        mean = torch.stack([each[name] for each in iterates[-3:]]).mean(0)
        torch.testing.assert_close(released[name], mean, rtol=1e-5, atol=1e-7)
        assert torch.equal(last, iterates[-1][name])
        compared += not torch.equal(released[name], last)
    assert compared, "something moved"
    moved = {id(p) for p in average.tensors}
    fixed = [n for n, p in run.model.named_parameters() if id(p) not in moved]
    assert all(torch.equal(released[n], iterates[-1][n]) for n in fixed if "left" not in n)


def test_the_average_changes_no_step_and_where_the_last_weights_are_released_nothing(
    tmp_path,
) -> None:
    _, none, plain = run_of(tmp_path / "plain")
    run, average, kept = run_of(tmp_path / "last", average="ema", average_released=False)
    assert none is None and average is not None
    assert plain and all(torch.equal(plain[name], kept[name]) for name in plain)
    _, _, released = run_of(tmp_path / "released", average="ema")
    assert not all(torch.equal(plain[name], released[name]) for name in plain)
    means = means_of(run, average)
    assert means and all(torch.equal(means[name], released[name]) for name in means)


@pytest.mark.parametrize("kind", slow_but(["tail"], ["ema", "tail"]))
@pytest.mark.parametrize(("method", "moment"), slow_but([("full", 4)], [
    (method, moment) for method in METHOD for moment in (1, 3, 4, 5)
]))  # fmt: skip
def test_a_killed_run_goes_on_to_the_same_average_bit_for_bit(
    tmp_path, kind: str, method: str, moment: int
) -> None:
    settings = {"method": method, "average": kind}
    first, undisturbed, expected = run_of(tmp_path / "a", **settings)
    with killed(loop_module, "check_weights", moment):
        run_of(tmp_path / "b", **settings)
    point = find_resume_point(tmp_path / "b")
    second, resumed, found = run_of(tmp_path / "b", resume_point=point, **settings)
    assert expected and all(torch.equal(expected[name], found[name]) for name in expected)
    means, again = means_of(first, undisturbed), means_of(second, resumed)
    assert means and means.keys() == again.keys()
    assert all(torch.equal(means[name], again[name]) for name in means)


def test_an_ordinary_run_releases_its_average_too(tmp_path) -> None:
    plain = own_session(tmp_path / "plain")
    assert train_ordinarily(plain, 5) is None
    run = own_session(tmp_path / "run", average="tail")
    average = train_ordinarily(run, 5)
    assert average is not None
    last = dict(plain.model.named_parameters())
    for name, parameter in run.model.named_parameters():
        assert torch.equal(average.tensors[parameter], last[name].detach())


@pytest.mark.parametrize(
    ("began", "now", "said"),
    [
        ({}, {"average": "ema"}, "none in .*, got decay=0.9999 kind=ema released=True"),
        (
            {"average": "ema"},
            {"average": "ema", "average_released": False},
            "decay=0.9999 kind=ema released=True in .*, got decay=0.9999 kind=ema released=False",
        ),
        *slow(
            ({"average": "ema"}, {}, "decay=0.9999 kind=ema released=True in .*, got none"),
            (
                {"average": "tail"},
                {"average": "tail", "average_tail": 0.25},
                "kind=tail released=True tail=0.5 in .*, got kind=tail released=True tail=0.25",
            ),
        ),
    ],
)
def test_rule_8_what_is_released_cannot_be_chosen_anew_when_a_run_goes_on(
    tmp_path, began: dict, now: dict, said: str
) -> None:
    with killed(loop_module, "check_weights", 4):
        run_of(tmp_path / "run", **began)
    point = find_resume_point(tmp_path / "run")
    with pytest.raises(InputError, match=f"the average of weights .* began with, {said}"):
        run_of(tmp_path / "run", resume_point=point, **now)
    run_of(tmp_path / "run", resume_point=find_resume_point(tmp_path / "run"), **began)


def test_a_checkpoint_says_which_average_it_has(tmp_path) -> None:
    run_of(tmp_path / "run", average="tail")
    (last,) = checkpoints(tmp_path / "run" / CHECKPOINTS)
    state = json.loads((last / "state.json").read_text())
    assert state["average"] == {"kind": "tail", "tail": 0.5, "released": True}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"average": "mean"}, "train.average must be one of none, ema, tail, got 'mean'"),
        ({"average_decay": 1.0}, r"train.average_decay must be in \[0, 1\), got 1.0"),
        ({"average_tail": 0.0}, r"train.average_tail must be in \(0, 1\], got 0.0"),
        ({"average_tail": 1.5}, r"train.average_tail must be in \(0, 1\], got 1.5"),
    ],
)
def test_a_bad_setting_is_refused_by_name(given: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        TrainingConfig(**given)


@pytest.mark.parametrize(("released", "stage"), [(True, "last"), (False, "average")])
def test_both_weights_are_scored_and_the_model_keeps_those_that_are_released(
    monkeypatch, released: bool, stage: str
) -> None:
    """The released ones last: their texts are the run's."""
    weight = nn.Parameter(torch.ones(1))
    config = averaging("tail", average_tail=1.0, average_released=released)
    average = WeightAverage(config, [weight], 2)
    average.update(1)
    weight.data.fill_(3.0)
    average.update(2)
    if released:
        average.swap()
    seen = []

    def score(prepared, at, ranks):
        seen.append((at, weight.item()))
        return []

    monkeypatch.setattr(evaluation, "score", score)
    prepared: Any = SimpleNamespace(division=SimpleNamespace(scored={"test": ["a record"]}))
    assert evaluation.score_with(average, prepared) == []
    mean, last = 2.0, 3.0
    values = (last, mean) if released else (mean, last)
    assert seen == [(stage, values[0]), ("after", values[1])]
    assert weight.item() == seen[-1][1]
    seen.clear()
    evaluation.score_with(None, prepared)
    nothing: Any = SimpleNamespace(division=SimpleNamespace(scored={}))
    evaluation.score_with(average, nothing)
    assert [at for at, _ in seen] == ["after", "after"], "no average, or nothing to score"


def test_going_back_to_before_the_first_step_forgets_the_average(tmp_path) -> None:
    model = tiny_model()
    average = WeightAverage(averaging("ema"), model.parameters(), 3)
    state = training_state(model, average=average)
    path = save_checkpoint(tmp_path / "checkpoints", 0, state)
    average.update(1)
    assert average.tensors
    restore_checkpoint(path, state)
    assert not average.tensors
