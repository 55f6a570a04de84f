"""The epsilon that dpft reports, compared with dp_accounting, prv_accountant and closed forms.

Each expected value is computed for a mechanism that the test writes out by hand: the number of
noisy steps, the sampling rate and the noise follow from the command's arguments.
"""

import json
import math
import os
import re
from collections.abc import Callable
from typing import Any

import dp_accounting
import numpy as np
import prv_accountant
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from tests.slowness import slow_but
from tests.stories.tiny import SETTING, TRAIN, Workspace, make_workspace

PRV_ITSELF = True
"""Tells tests/conftest.py that no other accountant stands in for PRV."""
ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
BATCH, STEPS, DELTA = 8, 3, 0.01
RATE = BATCH / TRAIN
QUICK = (
    *SETTING, "eval.enabled=false", "train.num_threads=1", 
    f"train.expected_batch_size={BATCH}", f"train.steps={STEPS}", f"privacy.delta={DELTA}",
)  # fmt: skip
NOISE = ("privacy.noise_multiplier=1", "privacy.accountant=rdp")
BUDGET = ("privacy.eps=3", "privacy.accountant=rdp")
VOCABULARY = ("task=corpus", "task.data_dir=notes.txt", "privacy.delta=0.002")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A folder with a small model and 40 records."""
    return make_workspace(tmp_path_factory.mktemp("accounting"))


def answer(workspace: Workspace, *arguments: str) -> dict[str, Any]:
    """Return what ``dpft account`` prints for programs."""
    outcome = workspace.run("account", *arguments, "output=json")
    assert outcome.code == 0, outcome.err
    printed: dict[str, Any] = json.loads(outcome.out)
    return printed


def train(workspace: Workspace, name: str, *arguments: str) -> dict[str, Any]:
    """Train a model in the folder ``name`` and return what ``dpft account run=`` prints."""
    outcome = workspace.run("train", *QUICK, *arguments, f"hydra.run.dir={name}")
    assert outcome.code == 0, outcome.err
    return answer(workspace, f"run={name}")


def steps_of(noise_multiplier: float, rate: float, steps: int) -> dp_accounting.DpEvent:
    """Return the event of Poisson-sampled Gaussian steps."""
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    return dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(rate, gaussian), steps
    )


def pld(delta: float, *events: dp_accounting.DpEvent) -> float:
    """Return the epsilon of the events' composition by dp_accounting's PLD accountant."""
    accountant = PLDAccountant(ADD_OR_REMOVE, value_discretization_interval=1e-4)
    for event in events:
        accountant.compose(event)
    return float(accountant.get_epsilon(delta))


def rdp(delta: float, event: dp_accounting.DpEvent) -> float:
    """Return the epsilon of an event by dp_accounting's RDP accountant."""
    accountant = RdpAccountant(neighboring_relation=ADD_OR_REMOVE)
    return float(accountant.compose(event).get_epsilon(delta))


def test_each_accountant_gives_what_its_library_gives_and_prvs_upper_bound_leads(
    workspace: Workspace,
) -> None:
    sigma, rate, steps, delta = 2.0, 0.05, 40, 1e-5
    report = answer(
        workspace, "num_examples=1000", "expected_batch_size=50", f"steps={steps}",
        f"delta={delta}", f"noise_multiplier={sigma}",
    )  # fmt: skip
    event = steps_of(sigma, rate, steps)
    found = report["epsilons"]
    assert found["rdp"] == pytest.approx(rdp(delta, event), rel=1e-4)
    assert found["pld"] == pytest.approx(pld(delta, event), abs=2e-3)
    # Bu et al. 2020 (arXiv 1911.11607), Theorem 5, and Dong et al. 2019, Corollary 2.13.
    mu = rate * math.sqrt(steps * math.expm1(sigma**-2))
    clt = brentq(
        lambda eps: (
            norm.cdf(-eps / mu + mu / 2) - math.exp(eps) * norm.cdf(-eps / mu - mu / 2) - delta
        ),
        0, 10,
    )  # fmt: skip
    assert found["gdp"] == pytest.approx(clt, rel=1e-6)
    library = prv_accountant.PRVAccountant(
        prvs=prv_accountant.PoissonSubsampledGaussianMechanism(
            noise_multiplier=sigma, sampling_probability=rate
        ),
        eps_error=0.01, delta_error=delta / 1000, max_self_compositions=steps,
    )  # fmt: skip
    lower, estimate, upper = library.compute_epsilon(delta, steps)
    prv = found["prv"]
    assert (prv["lower"], prv["estimate"]) == pytest.approx((lower, estimate), abs=1e-4)
    assert report["accountant"] == "prv"
    assert report["epsilon"] == prv["upper"] == pytest.approx(upper, abs=1e-4)


@pytest.mark.slow
def test_the_e2e_recipe_of_li_2022_has_its_published_epsilons(workspace: Workspace) -> None:
    report = answer(
        workspace, "num_examples=42061", "expected_batch_size=1024", "epochs=10", "eps=3",
        "accountant=rdp",
    )  # fmt: skip
    # Li et al. 2022, Table 7 and section 2: delta is 1/(2 |D|), ten epochs are 410 updates.
    assert report["delta"] == pytest.approx(1 / (2 * 42061), rel=1e-12)
    assert report["steps"] == 410
    assert 2.98 < report["epsilon"] <= 3
    # Table 7, E2E, full fine-tuning: 2.33 by the central limit theorem, 2.67 by composition.
    assert report["epsilons"]["gdp"] == pytest.approx(2.33, abs=0.015)
    assert report["epsilons"]["prv"]["estimate"] == pytest.approx(2.67, abs=0.015)


@pytest.mark.slow
@pytest.mark.parametrize("eps", slow_but([2.0], [0.7, 2.0, 6.0]))
def test_noise_that_is_calibrated_keeps_within_epsilon_as_it_is_printed(
    workspace: Workspace, eps: float
) -> None:
    report = answer(
        workspace, f"num_examples={TRAIN}", f"expected_batch_size={BATCH}", f"steps={STEPS}",
        f"delta={DELTA}", f"eps={eps}", "accountant=rdp",
    )  # fmt: skip
    epsilon = rdp(DELTA, steps_of(report["mechanism"]["noise_multiplier"], RATE, STEPS))
    assert 0.99 * eps < epsilon <= eps


@pytest.mark.slow
@pytest.mark.parametrize("sigma", slow_but([1.0], [0.9, 1.0, 1.1]))
def test_a_printed_epsilon_is_rounded_up(workspace: Workspace, sigma: float) -> None:
    numbers = (
        "sample_rate=0.1", "steps=5", "delta=1e-5", f"noise_multiplier={sigma}", "accountant=rdp",
    )  # fmt: skip
    printed = workspace.run("account", *numbers)
    assert printed.code == 0, printed.err
    exact = answer(workspace, *numbers)["epsilon"]
    (headline,) = re.findall(r"epsilon = (\d+\.\d+)", printed.out)
    assert exact <= float(headline) < exact + 1e-3


@pytest.mark.slow
def test_a_run_keeps_within_its_budget_whatever_its_micro_batch(workspace: Workspace) -> None:
    cost = train(workspace, "budget", *BUDGET, "train.micro_batch_size=2")
    epsilon = rdp(DELTA, steps_of(cost["plan"]["noise_multiplier"], RATE, STEPS))
    assert 2.98 < epsilon <= 3
    assert cost["epsilon"] == pytest.approx(epsilon, rel=1e-4)


@pytest.mark.slow
def test_both_phases_of_a_run_keep_within_its_budget(workspace: Workspace) -> None:
    phases = ("method=two_phase", "method.full_epochs=0.2")
    cost = train(workspace, "phases", *BUDGET, *phases)
    # One step of full fine-tuning (0.2 epochs of 40 records) and two of DP-BiTFiT.
    epsilon = rdp(DELTA, steps_of(cost["plan"]["noise_multiplier"], RATE, STEPS))
    assert 2.98 < epsilon <= 3
    assert cost["epsilon"] == pytest.approx(epsilon, rel=1e-4)


@pytest.mark.slow
def test_units_and_not_rows_are_counted_and_drawn(workspace: Workspace) -> None:
    units = 20
    rows = (
        {"question": f"Place {row}", "answer": "a pub", "who": f"owner {row % units}"}
        for row in range(3 * units)
    )
    data = workspace.root / "owners.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cost = train(
        workspace, "units", *NOISE, "task=custom", "task.metrics=[]", "task.data_dir=owners.jsonl",
        'task.prompt="{question}"', 'task.target="{answer}"', "privacy.unit=who",
        "privacy.delta=null", f"train.expected_batch_size={BATCH}",
    )  # fmt: skip
    # docs: delta is 1/(10 n), n the number of units, rounded down to one digit.
    delta = 1 / (10 * units)
    assert cost["plan"]["num_examples"] == units
    assert cost["delta"] == pytest.approx(delta)
    event = steps_of(1, BATCH / units, STEPS)
    assert cost["epsilons"]["pld"] == pytest.approx(pld(delta, event), abs=2e-3)


@pytest.mark.slow
def test_a_public_number_of_records_is_used_instead_of_the_count(workspace: Workspace) -> None:
    cost = train(workspace, "public", *NOISE, "privacy.num_examples=80")
    epsilon = pld(DELTA, steps_of(1, BATCH / 80, STEPS))
    assert cost["epsilons"]["pld"] == pytest.approx(epsilon, abs=2e-3)


@pytest.mark.slow
def test_steps_that_were_taken_twice_cost_twice(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("privacy.noise_multiplier=1", "train.checkpoint_every=2", "train.steps=5")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _interrupting(workspace, "again", steps=4))
        broken = workspace.run("train", *QUICK, *keys, "hydra.run.dir=again")
    assert broken.code == 130, broken.err
    # Another micro-batch size sums in another order, so dpft must draw new noise.
    resumed = workspace.run("train", "resume=again", "train.micro_batch_size=2")
    assert resumed.code == 0, resumed.err
    steps = steps_in_ledger(workspace, "again")
    assert steps > 5
    cost = answer(workspace, "run=again")
    assert cost["steps_taken"] == steps
    assert cost["epsilons"]["pld"] == pytest.approx(pld(DELTA, steps_of(1, RATE, steps)), abs=2e-3)
    reported = json.loads((workspace.root / "again" / "privacy.json").read_text())
    assert reported["steps_taken"] == steps
    assert reported["epsilons"]["pld"] == pytest.approx(
        pld(DELTA, steps_of(1, RATE, steps)), abs=2e-3
    )


def _interrupting(workspace: Workspace, name: str, *, steps: int) -> Callable[[int], None]:
    """Return a stand-in for os.fsync that interrupts a run after some of its steps."""

    def fsync(_: int) -> None:
        if steps_in_ledger(workspace, name) == steps:
            raise KeyboardInterrupt

    return fsync


def steps_in_ledger(workspace: Workspace, name: str) -> int:
    """Return how many noisy steps a run's ledger has."""
    path = workspace.root / name / "ledger.jsonl"
    return path.read_text().count('"step": ') if path.exists() else 0


@pytest.mark.slow
def test_runs_on_the_same_records_add_up(workspace: Workspace) -> None:
    for name in ("first", "second"):
        train(workspace, name, *NOISE)
    together = answer(workspace, "runs=[first,second]")
    assert together["delta"] == DELTA
    expected = pld(DELTA, steps_of(1, RATE, 2 * STEPS))
    assert together["epsilon"] == pytest.approx(expected, abs=2e-3)


@pytest.mark.slow
def test_banded_noise_costs_a_step_of_each_band_at_the_rate_of_a_group(
    workspace: Workspace,
) -> None:
    report = answer(
        workspace, "num_examples=1000", "expected_batch_size=50", "steps=10", "delta=1e-5",
        "noise_multiplier=1", "mechanism=banded", "mechanism.bands=4", "accountant=pld",
    )  # fmt: skip
    # Choquette-Choo et al. 2023 (arXiv 2306.08153), section 4: a unit is in at most ceil(10 / 4)
    # steps, and each of them draws from a fourth of the units.
    assert report["epsilon"] == pytest.approx(pld(1e-5, steps_of(1, 4 * 0.05, 3)), abs=2e-3)


@pytest.mark.slow
def test_a_tokenizer_and_a_training_keep_within_their_total_budget(workspace: Workspace) -> None:
    words = ("low", "wide", "slow", "town", "house", "green", "bridge", "water")
    lines = [f"{' '.join(words[line % 2 :: 2])} by the river\n" for line in range(400)]
    (workspace.root / "notes.txt").write_text("".join(lines))
    made = workspace.run(
        "tokenizer", *VOCABULARY, "tokenizer.words_per_record=8", "tokenizer.noise_std=3",
        "tokenizer.vocab_size=20", "hydra.run.dir=vocabulary",
    )  # fmt: skip
    assert made.code == 0, made.err
    # Ponomareva et al. 2022, Appendix B: half of delta is the threshold's. The noise of a count is
    # 3, and tokenizer.l2_cap=1 bounds what one record adds to the counts.
    of_noise = dp_accounting.get_epsilon_gaussian(3.0, 0.001)
    assert answer(workspace, "run=vocabulary")["epsilon"] == pytest.approx(of_noise, rel=1e-6)
    cost = train(
        workspace, "trained", *VOCABULARY, "model.init=random", "model.tokenizer=vocabulary",
        "task.max_length=16", "privacy.total_eps=1.5", "privacy.accountant=pld", "task.metrics=[]",
    )  # fmt: skip
    rate = BATCH / len(lines)
    both = (
        dp_accounting.GaussianDpEvent(3.0),
        steps_of(cost["plan"]["noise_multiplier"], rate, STEPS),
    )
    expected = pld(0.002 + 0.001, *both)
    assert 1.48 < expected <= 1.5
    # A tokenizer that is not listed is counted with the run that names it.
    for runs in ("runs=[vocabulary,trained]", "runs=[trained]"):
        together = answer(workspace, runs)
        assert together["delta"] == pytest.approx(0.004)
        assert together["epsilon"] == pytest.approx(expected, abs=2e-3)


@pytest.mark.slow
def test_a_search_for_hyperparameters_pays_for_all_its_trials(workspace: Workspace) -> None:
    steps, eta, gamma = 2, 0.0, 0.5
    done = workspace.run(
        "tune", *SETTING, "tune.metric=perplexity", f"tune.eta={eta}", f"tune.gamma={gamma}",
        "privacy.eps=8", f"privacy.delta={DELTA}", "privacy.noise_seed=3", "eval.limit=2",
        f"train.steps={steps}", "train.num_threads=1",
        "eval.split_is_public=true", "task.metrics=[perplexity]",
        "tuning.space.train.learning_rate=[0.001,0.002]",
        f"tuning.space.train.expected_batch_size=[{TRAIN}]", "hydra.run.dir=search",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = json.loads((workspace.root / "search" / "privacy.json").read_text())
    # Papernot and Steinke 2022 (arXiv 2110.03620), Theorem 2, where every record is in each step:
    # the Renyi divergence of a trial at order a is a * steps / (2 sigma^2) (Mironov 2017).
    orders = 1 + np.geomspace(1e-4, 100, 20_000)
    trial = orders * steps / (2 * found["plan"]["noise_multiplier"] ** 2)
    trials = (1 / gamma - 1) / math.log(1 / gamma)
    other = ((1 - 1 / orders) * trial + math.log(1 / gamma) / orders).min()
    released = trial + math.log(trials) / (orders - 1) + (1 + eta) * other
    # A divergence does not fall in its order, so the bound at a larger order holds as well.
    released = np.minimum.accumulate(released[::-1])[::-1]
    # Canonne et al. 2020 (arXiv 2004.00010), Proposition 12.
    epsilons = released + np.log1p(-1 / orders) - np.log(DELTA * orders) / (orders - 1)
    assert 7.9 < epsilons.min() <= 8
    assert found["epsilon"] == pytest.approx(epsilons.min(), rel=2e-3)
