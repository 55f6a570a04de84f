"""Private runs of models that write to what is released: they end, and release nothing."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from dpft.errors import RunError
from dpft.methods.base import METHODS
from dpft.parallel.ranks import ALONE, Ranks
from dpft.parallel.sharding import local
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.engine_results import MicroBatchResult
from dpft.privacy.journal import read_run_ledger
from dpft.privacy.plan import Phase, PrivacyPlan
from dpft.privacy.release_guard import digests_of
from dpft.run_folder import CHECKPOINTS
from dpft.training import loop as loop_module
from dpft.training.checkpoint import ResumePoint, checkpoints, find_resume_point
from tests.parallel.forked import LOST, on_ranks
from tests.parallel.small_steps import Case
from tests.self_checks import checked_phases
from tests.slowness import slow_but
from tests.training.killed_runs import killed
from tests.training.shared_training import Training, ended_on, train_on
from tests.training.toy import plan, privacy, session, spent, tiny_model, train_privately

Write = Callable[[GPT2LMHeadModel, Tensor], None]


SIZES = {"prefix": {"length": 2}, "prompt": {"num_virtual_tokens": 2}}
TWO_PHASES = plan().replace(
    phases=(
        Phase(method="full", steps=2, max_grad_norm=0.1, sensitivity=0.1),
        Phase(method="bitfit", steps=3, max_grad_norm=0.1, sensitivity=0.1),
    ),
)


class Writing(GPT2LMHeadModel):
    """Writes, each time it runs in training from a certain noisy step on."""

    write: Write
    first_step: int
    folder: Path

    def forward(self, input_ids: Tensor, **rest: Any) -> Any:
        outputs = super().forward(input_ids, **rest)
        ledger = self.folder / "ledger.jsonl"
        taken = ledger.read_text().count("\n") if ledger.exists() else 0
        if self.training and taken + 1 >= self.first_step:
            self.write(self, outputs.logits.detach())
        return outputs


def writing(folder: Path, write: Write, first_step: int) -> Writing:
    model = tiny_model()
    model.__class__ = Writing
    model.write, model.first_step, model.folder = write, first_step, folder  # type: ignore[attr-defined]
    model.register_buffer("scale", torch.ones(3))
    return model  # type: ignore[return-value]


def train(
    folder: Path,
    model: GPT2LMHeadModel,
    method: str = "bitfit",
    *,
    resume_point: ResumePoint | None = None,
    steps: PrivacyPlan | None = None,
    at_start: dict[str, str] | None = None,
    between: Callable[[nn.Module], None] = lambda _: None,
) -> None:
    """Train in steps of one micro-batch or more, and save nothing but a folder."""
    own = session(folder, model, checkpoint_every=2)
    config = METHODS.named(method)(name=method, **SIZES.get(method, {}))
    if method == "two_phase":
        config.phases(5, lambda _: 2)
        steps = TWO_PHASES
    object.__setattr__(own, "method", config)
    object.__setattr__(own, "model", own.method.prepare(own.model))
    object.__setattr__(own, "choices", checked_phases(own.model, config, steps or plan()))
    object.__setattr__(own, "digests_at_start", at_start)
    between(own.model)
    train_privately(own, steps or plan(), privacy(), epsilon_after=spent, resume_point=resume_point)


def of_data(model: GPT2LMHeadModel, logits: Tensor) -> None:
    model.transformer.wte.weight.data[0] += logits.mean()


def in_place(model: GPT2LMHeadModel, logits: Tensor) -> None:
    with torch.no_grad():
        model.transformer.wte.weight[0] += logits.mean()


def by_another_parameter(model: GPT2LMHeadModel, logits: Tensor) -> None:
    weight = model.transformer.wpe.weight + logits.mean()
    model.transformer.wpe.weight = nn.Parameter(weight, requires_grad=False)


def of_buffer(model: GPT2LMHeadModel, logits: Tensor) -> None:
    model.scale.data[0] = float(logits.mean())  # type: ignore[union-attr]


def new_buffer(model: GPT2LMHeadModel, logits: Tensor) -> None:
    model.register_buffer("seen", logits.mean((0, 1)))


def of_a_bias(model: GPT2LMHeadModel, logits: Tensor) -> None:
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.bias[0] += logits.mean()


WRITES = {
    of_data: "wte.weight",
    in_place: "wte.weight",
    by_another_parameter: "wpe.weight",
    of_buffer: "scale",
    new_buffer: "seen",
    of_a_bias: "c_fc.bias",
}


@pytest.mark.slow
@pytest.mark.parametrize("first_step", slow_but((5,), (1, 5)))
@pytest.mark.parametrize("write", slow_but((of_data,), WRITES), ids=lambda write: write.__name__)
def test_trust_rule_11_a_run_whose_model_writes_releases_nothing(tmp_path, write, first_step):
    """From the first step, and in the last alone."""
    folder = tmp_path / "run"
    with pytest.raises(RunError, match=rf"{WRITES[write]} was"):
        train(folder, writing(folder, write, first_step))
    assert not (folder / "model").exists()
    ledger = read_run_ledger(folder)  # none if the checks of the first micro-batch found it
    assert ledger is None or not ledger.closed


def of_what_carriers_move(model: GPT2LMHeadModel, logits: Tensor) -> None:
    layer = model.transformer.h[0].mlp.c_fc
    with torch.no_grad():
        getattr(layer, "base_layer", layer).weight[0] += logits.mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "write"),
    [("lora", of_data), ("rgp", of_what_carriers_move), ("two_phase", of_what_carriers_move)],
)
def test_so_it_is_of_what_another_phase_or_the_method_moves(tmp_path, method, write):
    """What trained in a first phase is frozen in the second; carriers move what is frozen."""
    folder = tmp_path / "run"
    with pytest.raises(RunError, match="weight was"):
        train(folder, writing(folder, write, 5), method)
    assert not (folder / "model").exists()


@pytest.mark.slow
@pytest.mark.parametrize("method", ("lora", "prefix", "rgp", "two_phase"))
def test_an_honest_run_ends(tmp_path, method):
    train(tmp_path / "run", tiny_model(), method)
    assert (tmp_path / "run/model").exists()


def frozen_of(folder: Path) -> dict[str, str]:
    return dict(find_resume_point(folder).checkpoint.run.frozen)


@pytest.mark.slow
def test_the_checkpoint_says_what_nothing_moves(tmp_path):
    """Of RGP the weights move by what its carriers' noisy gradients give, so they are free."""
    for method, some, none in (
        ("bitfit", "transformer.wte.weight", "transformer.h.0.mlp.c_fc.bias"),
        ("rgp", "transformer.wte.weight", "transformer.h.0.mlp.c_fc.base_layer.weight"),
        ("rgp", "transformer.h.0.mlp.c_fc.base_layer.bias", "lm_head.left.weight"),
    ):
        folder = tmp_path / f"{method}-{some}"
        train(folder, tiny_model(), method)
        frozen = frozen_of(folder)
        assert some in frozen and none not in frozen
        assert frozen["lm_head.weight"] == frozen["transformer.wte.weight"]  # Tied.
        assert all(len(digest) == 64 for digest in frozen.values())


def broken_off(folder: Path) -> ResumePoint:
    """Return where a run stands that was killed after its third step."""
    with killed(loop_module, "check_weights", 4):
        train(folder, tiny_model())
    return find_resume_point(folder)


@pytest.mark.slow
def test_a_run_that_goes_on_is_compared_with_its_step_0(tmp_path):
    folder = tmp_path / "run"
    resume_point = broken_off(folder)
    name, expected = "transformer.wpe.weight", resume_point.checkpoint.run.frozen
    changed = {**expected, name: "0" * 64}
    run = resume_point.checkpoint.run
    object.__setattr__(resume_point.checkpoint, "run", run.replace(frozen=changed))
    with pytest.raises(RunError, match=f"{name} was"):
        train(folder, tiny_model(), resume_point=resume_point)
    assert not (folder / "model").exists()
    train(folder, tiny_model(), resume_point=find_resume_point(folder))
    assert (folder / "model").exists() and frozen_of(folder) == expected


@pytest.mark.slow
def test_what_changed_before_the_first_step_is_refused(tmp_path):
    """As where records are scored first: what trains may not have moved by then either."""
    prepared = METHODS.named("bitfit")(name="bitfit").prepare(tiny_model())
    at_start = digests_of(prepared)

    def move(model: nn.Module) -> None:
        model.get_parameter("transformer.h.0.mlp.c_fc.bias").data += 1.0

    folder = tmp_path / "run"
    with pytest.raises(RunError, match=r"c_fc\.bias was"):
        train(folder, tiny_model(), at_start=at_start, between=move)
    assert not checkpoints(folder / CHECKPOINTS)
    train(tmp_path / "honest", tiny_model(), at_start=at_start)


def write_past_torch(ranks: Ranks, run: Training, rank: int, step: int) -> tuple[str, str]:
    """Return what a run ends with on a rank, where one of them writes to a frozen weight."""
    accumulate = PrivacyEngine.accumulate

    def accumulate_and_write(engine: PrivacyEngine, *args: Any) -> MicroBatchResult:
        result = accumulate(engine, *args)
        if ranks.rank == rank and engine.steps_taken == step - 1:
            # Of a block: in shards the root's are copies by now, which nobody keeps.
            weights = (p for n, p in engine._model.named_parameters() if "c_fc.weight" in n)
            local(next(weights).data).view(-1)[0] += 1.0
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivacyEngine, "accumulate", accumulate_and_write)
        return ended_on(ranks, run)


@pytest.mark.slow
@pytest.mark.parametrize(("shard_size", "rank"), [(None, 1), (2, 0), (None, 0), (2, 1)])
def test_what_one_process_writes_ends_all_of_them(tmp_path, shard_size, rank):
    """In shards the first process looks at everyone's; else each is held to be the first's."""
    case = Case(method="lora", noise_multiplier=1.0, steps=4, shard_size=shard_size)
    run = Training(folder=tmp_path, case=case)
    answers = on_ranks(write_past_torch, 2, run, rank, 3)
    assert {kind for kind, _ in answers} <= {"RunError", "SaidElsewhere"}
    said = answers[0][1]
    assert re.search(r"c_fc\.weight was", said) or "weights" in said
    ledger = read_run_ledger(tmp_path)
    assert ledger is not None and not ledger.closed


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "rgp"])
def test_in_how_many_shards_a_run_goes_on_does_not_matter(tmp_path, method):
    """The digests are those of whole tensors."""
    case = Case(method=method, noise_multiplier=1.0, steps=5, shard_size=2)
    (tmp_path / "alone").mkdir()
    train_on(ALONE, Training(folder=tmp_path / "alone", case=replace(case, steps=1)))
    (tmp_path / "run").mkdir()
    run = Training(folder=tmp_path / "run", case=case)
    assert on_ranks(train_on, 2, replace(run, broken_after=3), dying=range(2)) == [LOST] * 2
    assert frozen_of(tmp_path / "run") == frozen_of(tmp_path / "alone") != {}
    train_on(ALONE, replace(run, goes_on=True))
    ledger = read_run_ledger(tmp_path / "run")
    assert ledger is not None and ledger.closed
