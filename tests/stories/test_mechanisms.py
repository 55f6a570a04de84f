"""Mechanisms from the command line: banded noise from train to report, and a third one's own."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import ClassVar

import dp_accounting
import pytest

from dpft.errors import InputError
from dpft.privacy.ledger import read_ledger
from dpft.privacy.mechanisms.base import MECHANISMS, Mechanism, MechanismConfig, Numbers
from dpft.privacy.mechanisms.dp_sgd import DPSGD
from dpft.privacy.plan import PrivacyPlan
from tests.stories.test_resume import broken
from tests.stories.tiny import SETTING, Workspace, make_workspace

pytestmark = pytest.mark.slow

RUN = (
    *SETTING, "eval.enabled=false", "train.expected_batch_size=8", "train.steps=5", "privacy.eps=4",
    "train.num_threads=1",
)  # fmt: skip
BANDED = ("mechanism=banded", "mechanism.bands=2")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a finished run ``banded``."""
    made = make_workspace(tmp_path_factory.mktemp("mechanisms"))
    made.finished(*RUN, *BANDED, "privacy.accountant=pld", "hydra.run.dir=banded")
    return made


@cache
def hand_computed(plan: PrivacyPlan, count: int) -> float:
    """Epsilon of so many sampled Gaussians, by dp_accounting's event and accountant."""
    gaussian = dp_accounting.GaussianDpEvent(plan.noise_multiplier)
    rate = 2 * plan.expected_batch_size / plan.num_examples
    step = dp_accounting.PoissonSampledDpEvent(rate, gaussian)
    accountant = dp_accounting.pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4
    )
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, count))
    return float(accountant.get_epsilon(plan.delta))


def test_banded_noise_from_train_to_report(workspace: Workspace) -> None:
    folder = workspace.root / "banded"
    plan = read_ledger(folder / "ledger.jsonl").plan
    assert isinstance(plan, PrivacyPlan)
    asked = workspace.run("account", "run=banded", "accountant=pld", "output=json")
    answer = json.loads(asked.out)
    assert answer["steps_taken"] == 5 and answer["plan"]["sampler"] == "cyclic_poisson"
    assert answer["mechanisms"][0]["steps"] == 3
    assert answer["epsilon"] == pytest.approx(hand_computed(plan, 3), abs=2e-3)
    assert 3.9 < answer["epsilon"] <= 4
    privacy = json.loads((folder / "privacy.json").read_text())
    assert (privacy["plan"]["steps"], privacy["participations"]) == (5, 3)
    assert privacy["plan"]["mechanism"]["bands"] == 2
    assert privacy["epsilon_curve"]["steps"] == [2, 4, 5]
    report = (folder / "report.md").read_text()
    assert "cyclic Poisson sampling and 5 steps taken of 5 planned" in report
    assert "| steps with one unit | at most 3, which determine the cost |" in report


def test_a_run_that_broke_off_goes_on_in_its_stream(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for = (
        "mechanism=banded", "privacy.noise_multiplier=null", "privacy.eps=4", "eval.enabled=false"
    )  # fmt: skip
    outcome = broken(workspace, monkeypatch, "cut", KeyboardInterrupt(), *asked_for)
    assert outcome.code == 130 and "resume=cut" in outcome.err
    path = workspace.root / "cut" / "config.yaml"
    asked = path.read_text()
    path.write_text(asked.replace("bands: auto", "bands: 4"))
    assert "config.yaml" in workspace.refusal("train", "resume=cut")
    path.write_text(asked)
    resumed = workspace.run("train", "resume=cut")
    assert resumed.code == 0, resumed.err
    record = read_ledger(workspace.root / "cut" / "ledger.jsonl")
    assert (record.streams, record.closed) == ((5,), True)


def test_numbers_alone_cost_the_same(workspace: Workspace) -> None:
    plan = read_ledger(workspace.root / "banded" / "ledger.jsonl").plan
    assert isinstance(plan, PrivacyPlan)
    numbers = (
        f"num_examples={plan.num_examples}", "expected_batch_size=8", "steps=5",
        f"delta={plan.delta}", f"noise_multiplier={plan.noise_multiplier}", "accountant=pld",
    )  # fmt: skip
    answer = json.loads(workspace.run("account", *numbers, *BANDED, "output=json").out)
    assert (answer["steps"], answer["mechanism"]["steps"]) == (5, 3)
    assert answer["epsilon"] == pytest.approx(hand_computed(plan, 3), abs=2e-3)
    independent = json.loads(workspace.run("account", *numbers, "output=json").out)
    assert independent["epsilon"] != pytest.approx(answer["epsilon"], rel=0.1)
    assert independent["mechanism"]["steps"] == 5


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("mechanism.bands=6",), "mechanism.bands"),
        (("train.expected_batch_size=2", "mechanism.bands=8"), "mechanism.bands"),
        (("mechanism.bands=0",), "mechanism.bands"),
        (("mechanism.bands=several",), "mechanism.bands"),
        (("mechanism.objective=worst",), "mechanism.objective"),
        (("method=rgp",), "method=rgp"),
        (
            ("method=two_phase", "method.full_epochs=0.4"),
            "mechanism=banded",
        ),
        (("train.precision=fp16", "train.adaptive_loss_scale=true"), "train.adaptive_loss_scale"),
        (
            ("privacy.eps=null", "privacy.noise_multiplier=1", "mechanism.bands=auto"),
            "mechanism.bands=auto",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_a_record_is_read(
    workspace: Workspace, words: tuple[str, ...], key: str
) -> None:
    size = "task.num_train_examples=40"
    assert key in workspace.refusal("train", *RUN, *BANDED, size, *words)


def test_noise_that_hangs_together_needs_noise_and_no_search(workspace: Workspace) -> None:
    settings = [word for word in RUN if not word.startswith("privacy")]
    refused = workspace.refusal("train", *settings, *BANDED, "privacy=none")
    assert "mechanism=banded" in refused
    scored = [word for word in RUN if not word.startswith("eval")]
    refused = workspace.refusal("tune", *scored, *BANDED, "eval.split_is_public=true")
    assert "mechanism=dp_sgd" in refused
    numbers = ("num_examples=100", "expected_batch_size=10", "steps=5", "eps=1")
    assert "mechanism=dp_sgd" in workspace.refusal("account", *numbers, *BANDED, "curve=true")
    assert "num_examples" in workspace.refusal(
        "account", "sample_rate=0.1", "delta=1e-5", "steps=5", "eps=1", *BANDED
    )
    assert "mechanism" in workspace.refusal("account", "run=banded", *BANDED)


def test_a_plan_says_how_much_noise_is_left_beside_independent_steps(workspace: Workspace) -> None:
    """Under a linear schedule b = 2 of five steps; of independent steps nothing is said."""
    words = (*RUN, "privacy.accountant=rdp", "scheduler=linear", "optimizer=sgd")
    table = workspace.run("plan", *words, *BANDED).out
    assert "× that of independent steps, by RDP" in table
    answer = json.loads(workspace.run("plan", *words, *BANDED, "output=json").out)
    found = answer["noise_in_last_weights"]
    assert 0.3 < found < 1.2 and f"in the last weights: {found:.2f}× that of" in table
    independent = json.loads(workspace.run("plan", *words, "output=json").out)
    assert "noise_in_last_weights" not in independent


class Halved(DPSGD):
    """Draws at half the rate that others would, as somebody's own mechanism may."""

    name: str = "halved"
    entry_name: ClassVar[str] = "halved_gaussian"

    def rate(self, sample_rate: float) -> float:
        return sample_rate / 2


class HalvedConfig(MechanismConfig):
    makes: ClassVar[type[Mechanism]] = Halved
    name: str = "halved"
    least: int = 1

    def choose(self, numbers: Numbers) -> Mechanism:
        if numbers.steps < self.least:
            raise InputError(f"mechanism.least must be at most {numbers.steps}, got {self.least}.")
        return Halved()


@pytest.fixture
def third(tmp_path: Path) -> Iterator[str]:
    """A mechanism of a module and a YAML; the flag by which the YAML is found."""
    MECHANISMS.register("halved")(HalvedConfig)
    (tmp_path / "mechanism").mkdir()
    (tmp_path / "mechanism" / "halved.yaml").write_text("name: halved\nleast: 1\n")
    yield f"--config-dir={tmp_path}"
    del MECHANISMS._entries["halved"]


def test_a_third_mechanism_is_a_module_a_yaml_and_this_test(
    workspace: Workspace, third: str
) -> None:
    """Its draws, its cost, its ledger and its report, by nobody's edit but its own."""
    words = ("mechanism=halved", "privacy.accountant=rdp", third, "hydra.run.dir=third")
    assert "mechanism.least" in workspace.refusal(
        "train", *RUN, *words[:-1], "mechanism.least=9", "hydra.run.dir=not"
    )
    outcome = workspace.run("train", *RUN, *words)
    assert outcome.code == 0, outcome.err
    record = read_ledger(workspace.root / "third" / "ledger.jsonl")
    assert {(step.name, step.sample_rate) for step in record.mechanisms} == {
        ("halved_gaussian", 0.1)
    }
    answer = json.loads(workspace.run("account", "run=third", "output=json").out)
    assert answer["plan"]["sample_rate"] == 0.1 and answer["steps_taken"] == 5
    assert answer["epsilon"] <= 4
    privacy = json.loads((workspace.root / "third" / "privacy.json").read_text())
    assert privacy["plan"]["mechanism"] == {"name": "halved"}
    assert "| mechanism | halved |" in (workspace.root / "third" / "report.md").read_text()
