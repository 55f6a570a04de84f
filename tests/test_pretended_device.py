"""Runs on the pretended accelerator: nothing lies on the wrong side, and the host waits seldom.

Each test forks a process that registers the device; what it finds is compared with the CPU's.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import dpft.audit.one_run
import dpft.commands.evaluate
import dpft.commands.generate
import dpft.commands.train  # noqa: F401  so that no process of a test imports any of it again
from benchmarks.gpu_exactness import IDS, SHAPES, length, prepared, rows, trained
from dpft.constants import CAUSAL, IGNORED_LABEL
from dpft.data.batches import Batch, TextLayout
from dpft.data.tokenization import TokenizedExample
from dpft.errors import RunError
from dpft.generation.processors import nucleus_processors
from dpft.models.losses import per_example_losses
from dpft.parallel.ranks import ALONE, Ranks
from dpft.privacy import gaussians, randomness
from dpft.privacy.accounting import accountants, gdp
from dpft.privacy.accounting.mechanism import Epsilon
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.options import ENGINE_NAMES
from dpft.privacy.noise import add_noise
from dpft.privacy.randomness import make_randomness
from dpft.training import loop
from dpft.training.optimizers import OPTIMIZERS, AdamW
from tests import pretended
from tests.clipped_batches import checked_clipper
from tests.models.test_quantization import BASES, SIZES, adapted, loaded
from tests.parallel.forked import LOST, on_ranks
from tests.parallel.small_steps import Case, Outcome, take_steps
from tests.pretended import LAUNCHES, WAITS, Mismatch, on_pretended
from tests.privacy.test_methods_twin import RECIPES
from tests.slowness import slow_but
from tests.stories import tiny
from tests.stories.tiny import EVALUATION, TRAINING, Workspace, make_workspace

CPU, THERE = "cpu", f"{pretended.NAME}:0"
LENGTHS = ((4, 9, 6), (9, 3, 5))
MICRO_BATCH_WAITS, STEP_WAITS = 1, 12
CHECKED_WAITS = 90
"""Check R reads two digests of each parameter."""
USUAL = Case(noise_multiplier=0.3, micro_batch_size=12, steps=1)
"""A step of a model of one layer, with noise, of about 12 records."""
CASES: dict[str, Sequence[Case]] = {
    **{
        f"method-{name}": [
            replace(
                USUAL,
                method=name,
                model="bert-cls" if name == "linear_probe" else "gpt2",
                steps=2 if name == "two_phase" else 1,
            )
        ]
        for name in RECIPES
    },
    **{f"engine-{name}": [replace(USUAL, engine=name)] for name in ENGINE_NAMES},
    "llama": [replace(USUAL, model="llama")],
    "roberta": [replace(USUAL, model="roberta")],
    "images": [replace(USUAL, model="vit")],
    "spans": [replace(USUAL, model="t5-spans")],
    "bf16": [replace(USUAL, precision="bf16")],
    "fp16": [replace(USUAL, precision="fp16")],
    "banded": [replace(USUAL, bands=3, steps=4)],
    "micro-batches": [replace(USUAL, micro_batch_size=4, units=True)],
    "checkpointing": [replace(USUAL, checkpointing=True)],
}


def steps_of(cases: Sequence[Case], device: str) -> list[Outcome]:
    """What steps leave on a device, case by case."""
    return [take_steps(ALONE, replace(case, device=device)) for case in cases]


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["checkpointing"], CASES))
def test_steps_leave_the_cpus_gradients(name: str) -> None:
    """Draw and noise have the same bits; sums come out of the same kernels, rounded otherwise."""
    cases = CASES[name]
    compared = 0
    for case, found, expected in zip(
        cases, on_pretended(steps_of, cases, THERE), steps_of(cases, CPU), strict=True
    ):
        limit = 1e-5 if case.precision == "fp32" else 2e-2
        assert len(found.gradients) == case.steps
        for mine, other in zip(found.gradients, expected.gradients, strict=True):
            assert mine.keys() == other.keys() and mine
            apart = {key: mine[key] - other[key] for key in other}
            assert length(apart) <= limit * length(other), case
            compared += 1
        assert found.own_units == expected.own_units and min(map(min, found.norms)) > 0
    assert compared


def steps_there(ranks: Ranks, case: Case) -> Outcome:
    """A rank's steps on the device; what it sends passes through the host's memory, by gloo."""
    with pretended.pretending():
        return take_steps(ranks, replace(case, device=THERE))


@pytest.mark.slow
def test_two_ranks_leave_the_gradients_of_one() -> None:
    case = replace(USUAL, micro_batch_size=4)
    (expected,) = steps_of([case], CPU)[0].gradients
    found = [outcome.gradients[0] for outcome in on_ranks(steps_there, 2, case)]
    assert all(torch.equal(found[0][key], found[1][key]) for key in expected)
    apart = {key: found[0][key] - expected[key] for key in expected}
    assert length(apart) <= 1e-5 * length(expected)


class Steps:
    """What a step is made of, small: a model, its clipper, noise and an optimizer."""

    def __init__(self, device: str) -> None:
        shape = SHAPES["gpt2"]
        _, model = prepared(shape, "full", CPU)
        self.model, self.layout, self.device = model.to(device), shape.layout, torch.device(device)
        self.optimizer = AdamW(name="adamw").make(
            self.model.parameters(), learning_rate=1e-3, weight_decay=0.0
        )
        self.noise = make_randomness(torch.device(device), 1).noise
        self.waits: list[int] = []
        """Of each micro-batch of the last step, then those beyond them."""

    def take(self, step: int, clipper: PerExampleClipper) -> None:
        """Take one step of two micro-batches."""
        self.optimizer.zero_grad()
        before = WAITS.total()
        waits = []
        made = (self.layout.collate(rows(self.layout, lengths)) for lengths in LENGTHS)
        for batch in loop.sent_ahead(made, self.device):
            begun = WAITS.total()
            clipper.accumulate(batch)
            waits.append(WAITS.total() - begun)
        add_noise(dict(self.model.named_parameters()), 0.1, self.noise, step)
        self.optimizer.step()
        loop.check_weights(self.model, step)
        self.waits = [*waits, WAITS.total() - before - sum(waits)]

    def weights(self) -> dict[str, Tensor]:
        """What trains, on the host."""
        return {name: p.detach().to(CPU, copy=True) for name, p in trained(self.model).items()}


def taken(device: str, count: int = 1) -> dict[str, Tensor]:
    """The weights after some steps."""
    steps = Steps(device)
    with checked_clipper(steps.model, 0.5) as clipper:
        for step in range(count):
            steps.take(step, clipper)
    return steps.weights()


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What was seen while five steps were taken on the device."""

    checked: int
    """How often the host waited in the first micro-batch, with check R."""
    weights: dict[str, Tensor]
    """After two steps."""
    micro_batch: int
    """Waits of a micro-batch of the last step, the most of any."""
    step: int
    """Waits of the last step beside those of its micro-batches."""
    where: list[str]
    order: list[str]
    """When the last step's batches were sent, and when its backward passes began."""


def five_steps() -> Taken:
    steps, order = Steps(THERE), []
    backward, to = torch.autograd.backward, Batch.to

    def send(batch: Batch, device: torch.device) -> Batch:
        order.append(f"sent {len(batch.inputs['input_ids'][0])}")
        return to(batch, device)

    def begin(*args: Any, **kwargs: Any) -> None:
        order.append("backward")
        backward(*args, **kwargs)

    with checked_clipper(steps.model, 0.5) as clipper, pytest.MonkeyPatch.context() as patch:
        for step in range(4):  # The clipper checks the first two micro-batches.
            steps.take(step, clipper)
            if step == 0:
                checked = steps.waits[0]
            if step == 1:
                weights = steps.weights()
        patch.setattr(Batch, "to", send)
        patch.setattr(torch.autograd, "backward", begin)
        WAITS.clear()
        steps.take(4, clipper)
    *micro, beyond = steps.waits
    return Taken(
        checked=checked, weights=weights, micro_batch=max(micro), step=beyond,
        where=[*WAITS.elements()], order=order,
    )  # fmt: skip


@pytest.fixture(scope="module")
def five() -> Taken:
    return on_pretended(five_steps)


@pytest.mark.slow
def test_steps_with_noise_leave_the_cpus_weights(five: Taken) -> None:
    """The noise has the same bits; sums come out of the same kernels."""
    found, expected = five.weights, taken(CPU, count=2)
    apart = {name: found[name] - expected[name] for name in expected}
    assert length(expected) > 0 and length(apart) <= 1e-5 * length(expected)


def noisy(device: str) -> tuple[Tensor, int]:
    parameters = [nn.Parameter(torch.zeros(size, device=device)) for size in (1, 7, 500, 3) * 20]
    add_noise(parameters, 0.3, make_randomness(torch.device(device), 3).noise, 1)
    gradients = torch.cat([p.grad for p in parameters if p.grad is not None])
    return gradients.to(CPU), WAITS.total() - 1  # the copy here is one


@pytest.mark.slow
def test_noise_has_the_cpus_bits_and_one_look_for_all_tensors() -> None:
    (found, waits), (expected, _) = on_pretended(noisy, THERE), noisy(CPU)
    assert torch.equal(found, expected)
    assert waits == 1


@pytest.mark.slow
def test_the_host_waits_a_few_dozen_times_while_a_batch_is_checked(five: Taken) -> None:
    assert 0 < five.checked <= CHECKED_WAITS


@pytest.mark.slow
def test_the_host_seldom_waits_in_the_steady_state(five: Taken) -> None:
    print(*five.where, sep="\n")
    assert 0 < five.micro_batch <= MICRO_BATCH_WAITS
    assert five.step <= STEP_WAITS


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model whose buffers are filled when it is loaded."""
    folder = tmp_path_factory.mktemp("llama")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = BASES["llama"]()
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(folder)
    return folder


def over_frozen_bits(folder: Path, kind: str, device: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Norms and the clipped sum of adapters over a base in few bits."""
    torch.manual_seed(7)
    model = adapted(loaded(folder, kind)).to(device)
    layout = TextLayout(kind=CAUSAL)
    few = [replace(row, **few_tokens(row)) for row in rows(layout, LENGTHS[0])]
    batch = layout.collate(few).to(torch.device(device))
    with checked_clipper(model, 1.0) as clipper:
        norms = clipper.accumulate(batch)
    return norms.to(CPU), {
        name: p.grad.to(CPU) for name, p in trained(model).items() if p.grad is not None
    }


def few_tokens(row: TokenizedExample) -> dict[str, list[int]]:
    size = SIZES["vocab_size"]
    labels = [label if label == IGNORED_LABEL else int(label) % size for label in row.labels]
    return {"input_ids": [token % size for token in row.input_ids], "labels": labels}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_quantized_bases_leave_the_cpus_gradients(llama: Path, kind: str) -> None:
    found_norms, found = on_pretended(over_frozen_bits, llama, kind, THERE)
    norms, expected = over_frozen_bits(llama, kind, CPU)
    torch.testing.assert_close(found_norms, norms, rtol=1e-5, atol=0)
    apart = {name: found[name] - expected[name] for name in expected}
    assert expected and length(apart) <= 1e-5 * length(expected)


LAYERS = 12
"""Of GPT-2; what a step launches is counted for fewer, and grows by the same with each."""


def launched(layers: int) -> list[int]:
    """What a whole step launches on the device, a private one and an ordinary one.

    The rounds of the noise's cipher are one operation: on a device they are compiled.
    """
    rounds = gaussians._rounds
    gaussians._rounds = uncounted(rounds)
    batch = SHAPES["gpt2"].layout.collate(rows(SHAPES["gpt2"].layout, LENGTHS[0])).to(THERE)
    found = []
    for is_private in (True, False):
        model = GPT2LMHeadModel(
            GPT2Config(
                **IDS,
                n_positions=32,
                n_embd=72,
                n_head=2,
                n_layer=layers,
                resid_pdrop=0,
                embd_pdrop=0,
                attn_pdrop=0,
            )  # fmt: skip
        ).to(THERE)
        parameters = list(model.parameters())
        optimizer = torch.optim.AdamW(parameters, foreach=True)  # as torch chooses on a device
        noise = make_randomness(torch.device(THERE), 1).noise
        clipping = checked_clipper(model, 0.5) if is_private else nullcontext()
        with clipping as clipper:
            for step in range(3):  # The first two micro-batches are checked.
                optimizer.zero_grad()
                LAUNCHES.clear()
                if clipper is None:
                    per_example_losses(model, batch).mean().backward()
                else:
                    clipper.accumulate(batch)
                    add_noise(parameters, 0.1, noise, step)
                    torch._foreach_div_([p.grad for p in parameters if p.grad is not None], 3.0)
                optimizer.step()
                loop.check_weights(model, step)
        found.append(LAUNCHES.total())
    return found


def uncounted(work: Callable[..., Any]) -> Callable[..., Any]:
    """Count some work as one launch."""

    def run(*arguments: Any) -> Any:
        before = LAUNCHES.copy()
        result = work(*arguments)
        LAUNCHES.clear()
        LAUNCHES.update(before, one=1)
        return result

    return run


@pytest.mark.slow
def test_a_whole_step_launches_at_most_1_8_times_what_an_ordinary_one_does() -> None:
    """Noise and bounds take some 300 launches, however many layers there are.

    Attention is many operations here, the same for both.
    """
    (private, ordinary), more = (on_pretended(launched, layers) for layers in (1, 2))
    each, each_ordinary = more[0] - private, more[1] - ordinary
    of_gpt2 = [private + (LAYERS - 1) * each, ordinary + (LAYERS - 1) * each_ordinary]
    print(of_gpt2)
    assert 0 < each_ordinary < each
    assert each <= 1.4 * each_ordinary and of_gpt2[0] <= 1.8 * of_gpt2[1]


@pytest.mark.slow
def test_a_batch_is_sent_before_the_backward_pass_of_the_one_before(five: Taken) -> None:
    assert five.order == ["sent 9", "sent 9", "backward", "backward"]


def test_batches_come_in_their_order_and_an_error_in_one_is_its_own() -> None:
    made = [Batch(inputs={}, labels=torch.full((1,), number)) for number in range(5)]
    there = torch.device("meta")

    def broken() -> Iterator[Batch]:
        yield from made[:3]
        raise RunError("an image is gone")

    assert len(list(loop.sent_ahead(iter(made), there))) == 5
    used = []
    with pytest.raises(RunError, match="an image is gone"):
        for batch in loop.sent_ahead(broken(), there):
            used.append(batch)
    assert len(used) == 2 and not list(loop.sent_ahead(iter(()), there))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("pretended"))


GIVEN = (
    *TRAINING, "task.metrics=[mean_length,perplexity]",
    "train.device=accelerator", "train.steps=3", "privacy.noise_multiplier=1",
    "train.micro_batch_size=4", "privacy.noise_seed=1", "eval.enabled=false",
)  # fmt: skip


@contextmanager
def accounted_by_a_formula() -> Iterator[None]:
    """Have no accountant asked: they take half of a tiny run's time, and none meets the device."""

    def answer(name: str, mechanism: Any, options: object) -> Epsilon:
        estimate = gdp.epsilon(mechanism).estimate
        assert estimate is not None
        return Epsilon(lower=0.0, estimate=estimate, upper=2 * estimate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accountants, "_answer", answer)
        yield


def commands(workspace: Workspace, *given: Sequence[str]) -> list[tiny.Outcome]:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # as the clipper's checks would set it
    with accounted_by_a_formula():
        return [workspace.run(*words) for words in given]


def killed(workspace: Workspace, words: Sequence[str]) -> None:
    """Run a training that is killed after two steps."""
    own = loop.check_weights

    def check(model: nn.Module, step: int) -> None:
        own(model, step)
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.check_weights = check
    with accounted_by_a_formula():
        workspace.run(*words)


@pytest.mark.slow
def test_a_run_is_trained_killed_resumed_scored_audited_and_writes(workspace: Workspace) -> None:
    audit = ("audit.canaries=8", "audit.canary_words=4", "audit.white_box=true")
    words = ("train", *GIVEN, *audit, "train.checkpoint_every=1")
    (workspace.root / "prompts.jsonl").write_text('{"meaning_representation": "name[Inn]"}\n')
    assert on_pretended(killed, workspace, [*words, "hydra.run.dir=run"], dies=True) == LOST
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


def nonces_on_the_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gaussians, "sent", lambda numbers, dtype, _: torch.tensor(numbers, dtype=dtype))


def moments_on_the_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "zeros_like", lambda like, **_: torch.zeros(like.shape))


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


def moved(device: str, names: Sequence[str] = ("adamw",)) -> list[Tensor]:
    """Parameters after two steps of each optimizer along noise alone."""
    found = []
    for name in names:
        sizes = ((3, 4), (5,), (4, 3), (2,))
        parameters = [nn.Parameter(torch.ones(size, device=device)) for size in sizes]
        for parameter in parameters:
            parameter.grad = torch.zeros(parameter.shape, device=device)
        optimizer = OPTIMIZERS.named(name)(name=name).make(parameters, 0.1, 0.01)
        noise = make_randomness(torch.device(device), 3).noise
        for step in range(2):
            optimizer.zero_grad(set_to_none=False)
            add_noise(parameters, 0.3, noise, step)
            optimizer.step()
        found += [parameter.detach().to(CPU) for parameter in parameters]
    return found


@pytest.mark.slow
def test_every_optimizer_moves_as_on_the_cpu() -> None:
    names = sorted(OPTIMIZERS.entries())
    found, expected = on_pretended(moved, THERE, names), moved(CPU, names)
    assert len(found) == 4 * len(names)
    for mine, other in zip(found, expected, strict=True):
        assert not torch.equal(other, torch.ones_like(other))
        torch.testing.assert_close(mine, other)


@pytest.mark.slow
def test_generation_chooses_the_cpus_tokens() -> None:
    assert torch.equal(on_pretended(chosen, THERE), chosen(CPU))


@pytest.mark.slow
def test_dropout_draws_by_the_devices_generator_keyed_for_each_step() -> None:
    first, second, again = on_pretended(dropped, THERE)
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert {*first.tolist()} == {0.0, 2.0}


Work = Callable[[str], object]
Change = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[Change, Work]] = {
    "noise": (nonces_on_the_host, noisy),
    "optimizer": (moments_on_the_host, moved),
}


def mutated(change: Change, work: Work) -> str:
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        try:
            work(THERE)
        except Mismatch as error:
            return str(error)
    return "nothing was seen"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_tensor_made_on_the_host_is_seen(mutant: str) -> None:
    assert "aten::" in on_pretended(mutated, *MUTANTS[mutant])
