"""Runs on the pretended accelerator: nothing lies on the wrong side, and the host waits seldom.

Each test forks a process that registers the device; what it finds is compared with the CPU's.
"""

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.gpu_exactness import (
    SHAPES,
    Clipped,
    clipped_by_dpft,
    prepared,
    rows,
    trained,
)
from dpft.data import batches as batches_module
from dpft.data.batches import Batch
from dpft.generation.processors import nucleus_processors
from dpft.models.losses import per_example_losses
from dpft.privacy import gaussians, randomness
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.choices import ENGINE_NAMES
from dpft.privacy.clipping.engine import Flat
from dpft.privacy.noise import add_noise
from dpft.privacy.randomness import make_randomness
from dpft.training import loop
from dpft.training.optimizers import AdamW
from tests import pretended
from tests.pretended import WAITS, Mismatch, on_pretended
from tests.slowness import slow_but
from tests.stories.tiny import EVALUATION, TRAINING, Outcome, Workspace, make_workspace

CPU, THERE = "cpu", f"{pretended.NAME}:0"
LENGTHS = ((4, 9, 6), (9, 3, 5))
MICRO_BATCH_WAITS, STEP_WAITS, PROOF_WAITS = 2, 12, 60
GRID = [
    *(("gpt2", "full", engine, "fp32") for engine in ENGINE_NAMES),
    *(("gpt2", method, "auto", "fp32") for method in ("lora", "bitfit", "rgp", "prefix")),
    ("gpt2", "full", "auto", "bf16"),
    ("gpt2", "full", "auto", "fp16"),
    ("t5", "full", "auto", "fp32"),
    ("roberta", "full", "auto", "fp32"),
    ("llama", "full", "auto", "fp32"),
]
FAST = [GRID[0], ("gpt2", "full", "auto", "bf16")]
Case = tuple[str, str, str, str]


def clipped(case: Case, device: str) -> Clipped:
    """What a clipper makes of two batches of one shape on a device."""
    name, method, engine, precision = case
    shape = SHAPES[name]
    _, model = prepared(shape, method, CPU)
    given = [rows(shape.layout, lengths, seed) for seed, lengths in enumerate(LENGTHS)]
    return clipped_by_dpft(
        model.to(device), shape.layout, given, 0.5, engine=engine, precision=precision,
        loss_scale=64.0 if precision == "fp16" else 1.0,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "method", "engine", "precision"), slow_but(FAST, GRID))
def test_clipped_sums_are_the_cpus(name: str, method: str, engine: str, precision: str) -> None:
    case = (name, method, engine, precision)
    found, expected = on_pretended(clipped, case, THERE), clipped(case, CPU)
    assert found.distance(expected) <= (1e-5 if case[-1] == "fp32" else 2e-2)
    assert min(found.norms) > 0


def own_waits() -> int:
    """How often the host waited so far, less what the code of the model itself waits for."""
    return sum(count for place, count in WAITS.items() if "transformers/" not in place)


class Steps:
    """What a step is made of, small: a model, its clipper, noise and an optimizer."""

    def __init__(self, device: str, layers: int = 1) -> None:
        shape = SHAPES["gpt2"]
        _, model = prepared(shape, "full", CPU)
        self.model, self.layout, self.device = model.to(device), shape.layout, torch.device(device)
        self.optimizer = AdamW(name="adamw").make(
            self.model.parameters(), learning_rate=1e-3, weight_decay=0.0
        )
        self.noise = make_randomness(torch.device(device), 1).noise
        self.waits: list[int] = []

    def take(self, step: int, clipper: PerExampleClipper) -> None:
        """Takes one step of two micro-batches; notes the waits of each, and those beyond them."""
        self.optimizer.zero_grad()
        before = own_waits()
        micro = 0
        made = (self.layout.collate(rows(self.layout, lengths)) for lengths in LENGTHS)
        for batch in loop.sent_ahead(made, self.device):
            begun = own_waits()
            clipper.accumulate(lambda batch=batch: per_example_losses(self.model, batch))
            micro = own_waits() - begun
        add_noise(dict(self.model.named_parameters()), 0.1, self.noise, step)
        self.optimizer.step()
        loop.check_weights(self.model, step)
        self.waits = [micro, own_waits() - before]


def taken(device: str, count: int = 2) -> dict[str, Tensor]:
    """The weights after some steps."""
    steps = Steps(device)
    with PerExampleClipper(steps.model, 0.5) as clipper:
        for step in range(count):
            steps.take(step, clipper)
    return {name: p.detach().to(CPU) for name, p in trained(steps.model).items()}


def test_steps_with_noise_leave_the_cpus_weights() -> None:
    """The noise has the same bits; sums come out of the same kernels."""
    found, expected = on_pretended(taken, THERE), taken(CPU)
    apart = sum(float((found[n] - expected[n]).square().sum()) for n in expected) ** 0.5
    whole = sum(float(expected[n].square().sum()) for n in expected) ** 0.5
    assert apart <= 1e-5 * whole


def noisy(device: str) -> tuple[Tensor, int]:
    parameters = [nn.Parameter(torch.zeros(size, device=device)) for size in (1, 7, 500, 3) * 20]
    add_noise(parameters, 0.3, make_randomness(torch.device(device), 3).noise, 1)
    gradients = torch.cat([p.grad for p in parameters if p.grad is not None])
    return gradients.to(CPU), WAITS.total() - 1  # the copy here is one


def test_noise_has_the_cpus_bits_and_one_look_for_all_tensors() -> None:
    (found, waits), (expected, _) = on_pretended(noisy, THERE), noisy(CPU)
    assert torch.equal(found, expected)
    assert waits == 1


def waits_of_a_proof() -> list[Any]:
    steps = Steps(THERE)
    batch = steps.layout.collate(rows(steps.layout, LENGTHS[0])).to(steps.device)
    with PerExampleClipper(steps.model, 0.5) as clipper:
        WAITS.clear()
        clipper.accumulate(lambda: per_example_losses(steps.model, batch))
    return [own_waits(), *WAITS.items()]


def test_the_host_waits_a_few_dozen_times_while_a_batch_is_proved() -> None:
    count, *where = on_pretended(waits_of_a_proof)
    print(*where, sep="\n")
    assert 0 < count <= PROOF_WAITS


def waits_of_steps() -> list[int]:
    steps = Steps(THERE)
    with PerExampleClipper(steps.model, 0.5) as clipper:
        for step in range(4):  # calls 1 to 8 of a kind, of which the clipper checks 1, 2, 4 and 8
            steps.take(step, clipper)
        WAITS.clear()
        steps.take(4, clipper)
        return [*steps.waits, *WAITS.elements()]


def test_the_host_seldom_waits_in_the_steady_state() -> None:
    micro, step, *where = on_pretended(waits_of_steps)
    print(*where, sep="\n")
    assert micro <= MICRO_BATCH_WAITS
    assert step <= 2 * MICRO_BATCH_WAITS + STEP_WAITS
    assert where, "waits must be counted"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("pretended"))


GIVEN = (
    *TRAINING, "train.device=accelerator", "train.steps=3", "privacy.noise_multiplier=1",
    "train.micro_batch_size=4", "privacy.noise_seed=1", "eval.enabled=false",
)  # fmt: skip


def commands(workspace: Workspace, *given: Sequence[str]) -> list[Outcome]:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # as the clipper's checks would set it
    return [workspace.run(*words) for words in given]


def killed(workspace: Workspace, words: Sequence[str]) -> None:
    own = loop.check_weights

    def check(model: nn.Module, step: int) -> None:
        own(model, step)
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.check_weights = check
    workspace.run(*words)


@pytest.mark.slow
def test_a_run_is_trained_killed_resumed_scored_audited_and_writes(workspace: Workspace) -> None:
    audit = ("audit.canaries=8", "audit.canary_words=4", "audit.white_box=true")
    words = ("train", *GIVEN, *audit, "train.checkpoint_every=1")
    (workspace.root / "prompts.jsonl").write_text('{"meaning_representation": "name[Inn]"}\n')
    with pytest.raises(AssertionError, match="ended without an answer"):
        on_pretended(killed, workspace, [*words, "hydra.run.dir=run"])
    device = "train.device=accelerator"
    outcomes = on_pretended(
        commands, workspace, ["train", "resume=run"],
        ["eval", "run=run", device, "hydra.run.dir=scores", *EVALUATION],
        ["generate", "run=run", device, "prompts=prompts.jsonl", "to=out.jsonl", *EVALUATION[1:]],
        ["audit", "run=run", device, "audit=one_run", "output=json"],
        limit=120.0,
    )  # fmt: skip
    assert [outcome.code for outcome in outcomes] == [0] * 4, [o.err for o in outcomes]
    assert len((workspace.root / "run/ledger.jsonl").read_text().splitlines()) == 5
    assert (workspace.root / "out.jsonl").read_text()


def halfway(own: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: change(own(*args, **kwargs))


def labels_on_the_host(patch: pytest.MonkeyPatch) -> None:
    own = Batch.to

    def to(batch: Batch, device: str) -> Batch:
        return batches_module.replace(own(batch, device), labels=batch.labels)

    patch.setattr(Batch, "to", to)


def factors_on_the_host(patch: pytest.MonkeyPatch) -> None:
    own = Flat.factors
    patch.setattr(Flat, "factors", halfway(own, lambda made: made.to(CPU)))


def nonces_on_the_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gaussians, "sent", lambda numbers, dtype, _: torch.tensor(numbers, dtype=dtype))


def moments_on_the_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "zeros_like", lambda like, **_: torch.zeros(like.shape))


def masks_on_the_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(randomness, "_has_own_masks", lambda _: False)


def scores_on_the_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "full_like", lambda like, value: torch.full(like.shape, value))


def dropped(device: str) -> list[Tensor]:
    """What is left of ones by the masks of two steps, the first one's twice."""
    ones, found = torch.ones(50, device=device), []
    stream = make_randomness(torch.device(device), 1).dropout
    with randomness.private_dropout(stream):
        for step in (0, 1, 0):
            stream.begin_step(step)
            found.append(nn.functional.dropout(ones, 0.5).to(CPU))
    return found


def chosen(device: str) -> Tensor:
    """What nucleus sampling makes of some scores."""
    draws, scores = torch.tensor([[0.1], [0.6], [0.9]]), torch.arange(15.0).view(3, 5).cos()
    (*_, choice) = nucleus_processors(draws.double(), top_p=0.9, temperature=1.0)
    return choice(torch.zeros(3, 1, dtype=torch.long).to(device), scores.to(device)).to(CPU)


def test_generation_chooses_the_cpus_tokens() -> None:
    assert torch.equal(on_pretended(chosen, THERE), chosen(CPU))


def test_dropout_draws_by_the_devices_generator_keyed_for_each_step() -> None:
    first, second, again = on_pretended(dropped, THERE)
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert {*first.tolist()} == {0.0, 2.0}


Work = Callable[[str], object]
Change = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[Change, Work]] = {
    "collation": (labels_on_the_host, taken),
    "engine": (factors_on_the_host, taken),
    "noise": (nonces_on_the_host, noisy),
    "optimizer": (moments_on_the_host, taken),
    "dropout": (masks_on_the_host, dropped),
    "generation": (scores_on_the_host, chosen),
}


def mutated(change: Change, work: Work) -> str:
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        try:
            work(THERE)
        except Mismatch as error:
            return str(error)
    return "nothing was seen"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_tensor_made_on_the_host_is_seen(mutant: str) -> None:
    assert "aten::" in on_pretended(mutated, *MUTANTS[mutant])
