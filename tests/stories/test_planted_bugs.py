"""``dpft audit`` finds bugs in DP-SGD by canaries, on runs of the real command, and cries no wolf.

``make audit`` runs the whole table and clean runs; ``make test-slow`` some of them. The model is a
tied one whose gradient lies nearly all in the embeddings of a canary's own words: the attack is
then about as strong as there can be, and what it misses it misses for want of canaries.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from dpft.models.source import EMBEDDED_MODEL
from tests.audit import planted
from tests.stories.tiny import Outcome, Workspace

pytestmark = pytest.mark.slow

RECORDS = 100
TRAINING = (
    "task=custom", "task.data_dir=train.jsonl", 'task.text="{text}"', "task.max_length=32",
    "model=tiny", "model.path=model", "method=full", "privacy.eps=null", "privacy.delta=1e-5",
    "privacy.accountant=rdp", "train.micro_batch_size=128", "train.learning_rate=1e-3",
    "train.num_threads=1", "eval.enabled=false", "audit.white_box=true", "audit.canary_words=8",
    "audit.outnumber=true",
)  # fmt: skip
Bug = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The mechanism that a run is accounted for."""

    noise_multiplier: float
    sample_rate: float = 1.0
    steps: int = 1


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A bug, the plan under which it is looked for, and what must be said of it."""

    bug: Bug
    plan: Plan
    contradicts_epsilon: bool
    """Whether the lower bound is above epsilon, not only the mechanism another one."""
    passes_self_check: bool = True
    """Whether the clipper's self-check misses it, because both engines have it."""


BUGS = {
    "clipping off": Planted(
        bug=planted.clipping_off,
        plan=Plan(noise_multiplier=1.5),
        contradicts_epsilon=True,
    ),
    "tied weight forgotten": Planted(
        bug=planted.tied_weight_forgotten,
        plan=Plan(noise_multiplier=2),
        contradicts_epsilon=True,
        passes_self_check=False,
    ),
    "noise repeated": Planted(
        bug=planted.noise_repeated,
        plan=Plan(noise_multiplier=4, sample_rate=0.5, steps=8),
        contradicts_epsilon=True,
    ),
    "noise halved": Planted(
        bug=planted.noise_halved,
        plan=Plan(noise_multiplier=0.5),
        contradicts_epsilon=False,
    ),
    "tied weight halved": Planted(
        bug=planted.tied_weight_halved,
        plan=Plan(noise_multiplier=0.5),
        contradicts_epsilon=False,
        passes_self_check=False,
    ),
    "rate doubled": Planted(
        bug=planted.rate_doubled,
        plan=Plan(noise_multiplier=0.7, sample_rate=0.5),
        contradicts_epsilon=False,
    ),
}
CLEAN = [(name, seed) for name in BUGS if name != "tied weight halved" for seed in (1, 2)]
"""Ten runs: each plan twice, since a tied weight's and the noise's two halves share one."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A tied model of random weights, and records that are all much alike."""
    root = tmp_path_factory.mktemp("bugs")
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                max_position_embeddings=64,
                tie_word_embeddings=True,
                initializer_range=0.005,
                bos_token_id=tokenizer.eos_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )  # fmt: skip
        )
    model.save_pretrained(root / "model")
    tokenizer.save_pretrained(root / "model")
    texts = (f"Place {number} is a pub in the city center." for number in range(RECORDS))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (root / "train.jsonl").write_text(lines)
    return Workspace(root)


def train(
    workspace: Workspace, to: str, plan: Plan, *words: str, canaries: int, seed: int = 1
) -> Outcome:
    """Run ``dpft train`` with canaries, whose coins, noise and draws follow from the seed."""
    expected = round(plan.sample_rate * (RECORDS + canaries))
    return workspace.run(
        "train", *TRAINING, f"hydra.run.dir={to}", f"audit.canaries={canaries}",
        f"privacy.noise_multiplier={plan.noise_multiplier}", f"train.steps={plan.steps}",
        f"train.expected_batch_size={expected}", f"privacy.noise_seed={seed}", *words,
    )  # fmt: skip


def audited(workspace: Workspace, run: str) -> dict[str, Any]:
    """Return what ``dpft audit`` says of a run."""
    done = workspace.run("audit", f"run={run}", "audit=one_run", "output=json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def find(workspace: Workspace, name: str, *, canaries: int, seed: int = 1) -> dict[str, Any]:
    """Train with a bug, and return what the audit of that run says."""
    case, to = BUGS[name], f"{name} {seed} {canaries}".replace(" ", "_")
    with case.bug(), planted.checks_off():
        done = train(workspace, to, case.plan, canaries=canaries, seed=seed)
    assert done.code == 0, done.err
    return audited(workspace, to)


def clean(workspace: Workspace, name: str, *, canaries: int, seed: int) -> dict[str, Any]:
    """Train without a bug by the plan of one, and return what the audit says."""
    to = f"clean {name} {seed} {canaries}".replace(" ", "_")
    done = train(workspace, to, BUGS[name].plan, canaries=canaries, seed=seed)
    assert done.code == 0, done.err
    return audited(workspace, to)


def is_alarm(found: dict[str, Any]) -> bool:
    return found["epsilon_lower"] > found["epsilon"] or found["other_mechanism"]


def test_a_run_without_clipping_is_found_and_its_report_says_so_first(workspace: Workspace) -> None:
    found = find(workspace, "clipping off", canaries=300)
    assert found["epsilon_lower"] > found["epsilon"]
    report = (workspace.root / "clipping_off_1_300" / "report.md").read_text()
    assert "\n\n> **THE GUARANTEE IS CONTRADICTED" in report.partition("\n## ")[0]


def test_a_clean_run_gives_no_alarm(workspace: Workspace) -> None:
    assert not is_alarm(clean(workspace, "clipping off", canaries=300, seed=1))


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(workspace: Workspace, name: str) -> None:
    found = find(workspace, name, canaries=1000)
    assert found["other_mechanism"]
    if BUGS[name].contradicts_epsilon:
        assert found["epsilon_lower"] > found["epsilon"]


@pytest.mark.parametrize(("name", "seed"), CLEAN)
def test_ten_clean_runs_give_no_alarm(workspace: Workspace, name: str, seed: int) -> None:
    assert not is_alarm(clean(workspace, name, canaries=1000, seed=seed))


@pytest.mark.parametrize("name", BUGS)
def test_the_self_check_finds_wrong_norms_and_nothing_else_before_training(
    workspace: Workspace, name: str
) -> None:
    """Both engines share clipping factors, noise and sampling, so that it cannot find these."""
    case, to = BUGS[name], f"checked_{name}".replace(" ", "_")
    with case.bug():
        done = train(
            workspace, to, Plan(noise_multiplier=1), "privacy.engine=book_keeping", canaries=20
        )
    assert (done.code == 0) == case.passes_self_check, done.err
    assert ("is not exact for this model" in done.err) != case.passes_self_check
