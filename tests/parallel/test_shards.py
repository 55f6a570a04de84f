"""A model in shards: what each rank holds of it, what its noise is, and what is refused."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from dpft.commands.task_model import held_to_save
from dpft.errors import InputError
from dpft.parallel.rank_sums import Rounds
from dpft.parallel.ranks import ALONE, RankLost, Ranks, RankShare, make_grid
from dpft.parallel.sharding import blocks_apart, check_can_be_sharded, local, repeated_blocks, whole
from dpft.parallel.shards import ShardedModel, gathered
from dpft.training.loop import compute_gradient
from tests.parallel.forked import on_ranks
from tests.parallel.small_steps import (
    CPU,
    Case,
    prepared,
    private_engine,
    records,
    sharded,
    take_steps,
)
from tests.rejections import rejects
from tests.slowness import slow_but

GRIDS = [(2, 2, False), (2, 2, True), (4, 2, False), (4, 2, True), (4, 4, False), (4, 4, True)]
"""How many ranks, how many shards, and whether sums are accumulated in shards."""
FAST = [(2, 2, True)]


def case_of(shard_size: int, accumulates_shards: bool, **changed: Any) -> Case:
    return replace(
        Case(),
        shard_size=shard_size,
        accumulates_shards=accumulates_shards,
        **changed,
    )


class Held:
    """What a rank holds beyond its shards, looked at before and after it gathers anything."""

    def __init__(self, shards: ShardedModel) -> None:
        self._shards = shards
        self.blocks = 0
        """Most blocks that were gathered at a time."""
        self.gradients = 0
        """Most numbers of whole gradients that there were at a time."""
        gather = shards.rounds.gather

        def watched(number: int, output: Tensor, own: Tensor) -> None:
            self.look()
            gather(number, output, own)

        shards.rounds.gather = watched  # type: ignore[method-assign]

    def look(self) -> None:
        gathered = {
            name.split(".h.")[1].split(".")[0]
            for name, parameter in self._shards.unsharded.items()
            if ".h." in name and parameter.untyped_storage().size()
        }
        self.blocks = max(self.blocks, len(gathered))

    def note_gradients(self) -> None:
        """Count the numbers of whole gradients between two micro-batches."""
        gradients = [p.grad for p in self._shards.unsharded.values() if p.grad is not None]
        self.gradients = max(self.gradients, sum(g.numel() for g in gradients))


def held(ranks: Ranks, case: Case) -> dict[str, Any]:
    """What a rank holds in the last step of a case, whose kinds of calls are proved by then."""
    method, model = prepared(case)
    total = sum(p.numel() for p in model.parameters())
    shards = sharded(model, case, ranks)
    training_set = replace(records(case), share=own_share(ranks))
    with private_engine(model, method, case, ranks, shards) as engine:
        for step in range(1, case.steps):
            compute_gradient(training_set, engine, step, ranks)
        seen, accumulate = Held(shards), engine.accumulate

        def noted(*batch: Any) -> Any:
            result = accumulate(*batch)
            seen.note_gradients()
            return result

        engine.accumulate = noted  # type: ignore[method-assign]
        compute_gradient(training_set, engine, case.steps, ranks)
    between = [name for name, p in shards.unsharded.items() if p.untyped_storage().size()]
    return {
        "blocks": seen.blocks,
        "gradients": seen.gradients / total,
        "between": between,
        "own": sum(p.to_local().numel() for p in model.parameters()) / total,  # type: ignore[attr-defined]
    }


def own_share(ranks: Ranks) -> RankShare:
    """What of a step's micro-batches is this rank's."""
    return RankShare(ranks.rank, ranks.size)


@pytest.mark.slow
@pytest.mark.parametrize("accumulates_shards", [False, True])
def test_a_rank_holds_one_block_at_a_time_and_of_sums_what_was_asked(
    accumulates_shards: bool,
) -> None:
    for answer in on_ranks(held, 2, case_of(2, accumulates_shards, micro_batch_size=1)):
        assert answer["blocks"] <= 1
        assert answer["between"] == []
        assert answer["own"] == pytest.approx(1 / 2, abs=0.05)
        if accumulates_shards:
            assert answer["gradients"] == 0
        else:
            assert answer["gradients"] > 0.9


def weights_after(ranks: Ranks, case: Case) -> dict[str, Tensor]:
    """All weights after the steps of a case, of AdamW."""
    method, model = prepared(case)
    cut = case.shard_size is not None and ranks.size > 1
    shards = sharded(model, case, ranks) if cut else None
    training_set = replace(records(case), share=own_share(ranks))
    optimizer = torch.optim.AdamW(method.moved_parameters(model), lr=1e-3)
    with private_engine(model, method, case, ranks, shards) as engine:
        for step in range(1, case.steps + 1):
            method.begin_step(model, step - 1)
            compute_gradient(training_set, engine, step, ranks)
            method.finish_gradient(model)
            optimizer.step()
    return {name: whole(p.detach()).clone() for name, p in model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize(("size", "shard_size", "accumulates_shards"), GRIDS)
def test_weights_after_three_noisy_steps_are_those_of_one_process(
    size: int, shard_size: int, accumulates_shards: bool
) -> None:
    case = case_of(shard_size, accumulates_shards, steps=3, noise_multiplier=1.0)
    expected = weights_after(ALONE, case)
    for found in on_ranks(weights_after, size, case):
        for name, weight in expected.items():
            assert float((found[name] - weight).norm()) < 1e-5 * float(weight.norm())


@pytest.mark.slow
@pytest.mark.parametrize(("size", "shard_size", "accumulates_shards"), slow_but(FAST, GRIDS))
def test_noise_has_the_same_bits_however_the_model_is_cut(
    size: int, shard_size: int, accumulates_shards: bool
) -> None:
    case = case_of(shard_size, accumulates_shards, noise_multiplier=1.0, sample_rate=1e-9, steps=1)
    (expected,) = take_steps(ALONE, case).gradients
    for answer in on_ranks(take_steps, size, case):
        (found,) = answer.gradients
        assert found.keys() == expected.keys()
        for name, noise in expected.items():
            assert torch.equal(found[name], noise)


def each_wishes(ranks: Ranks, wishes: list[list[int]]) -> list[float]:
    """What a rank gets, in the order of its own wishes, of offers that hold rank and number."""
    group = torch.distributed.group.WORLD
    assert group is not None
    rounds = Rounds(ranks, group, group, torch.device("cpu"))
    for number in range(3):
        rounds.offer(lambda number=number: torch.tensor([10.0 * number + ranks.rank]))
    got = []
    with rounds.serving_other_ranks():
        for number in wishes[ranks.rank]:
            output = torch.empty(ranks.size)
            rounds.gather(number, output, torch.tensor([10.0 * number + ranks.rank]))
            got += output.tolist()
    return got


@pytest.mark.slow
@pytest.mark.parametrize(
    "wishes", [[[0, 1, 2], [2]], [[], [1, 1, 0]], [[], []], [[0, 1], [1, 0]]], ids=str
)
def test_each_rank_gets_what_it_wishes_for_though_others_wish_for_other_things(
    wishes: list[list[int]],
) -> None:
    for answer, own in zip(on_ranks(each_wishes, 2, wishes), wishes, strict=True):
        assert answer == [10.0 * number + rank for number in own for rank in (0, 1)]


def fails_while_others_run(ranks: Ranks, case: Case) -> str:
    method, model = prepared(case)
    shards = sharded(model, case, ranks)
    training_set = replace(records(case), share=own_share(ranks))
    try:
        with private_engine(model, method, case, ranks, shards) as engine:
            if ranks.rank == 1:
                engine.accumulate = fail  # type: ignore[method-assign]
            compute_gradient(training_set, engine, 1, ranks)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "went on"


def fail(*_: object) -> Tensor:
    raise InputError("nothing fits.")


@pytest.mark.slow
def test_a_rank_that_fails_lets_the_others_end_and_the_first_one_says_why() -> None:
    first, second = on_ranks(fails_while_others_run, 2, case_of(2, False))
    assert "nothing fits." in first
    assert second.startswith("SaidElsewhere")


def breaks_amid_a_round(ranks: Ranks) -> str:
    group = torch.distributed.group.WORLD
    assert group is not None
    rounds = Rounds(ranks, group, group, torch.device("cpu"))
    rounds.offer(lambda: fail() if ranks.rank else torch.zeros(1))
    try:
        with rounds.serving_other_ranks():
            if ranks.is_rank_0:
                rounds.gather(0, torch.empty(2), torch.zeros(1))
    except RankLost as error:
        return type(error.__cause__).__name__
    return "went on"


@pytest.mark.slow
def test_a_rank_that_fails_amid_a_round_ends_at_once_and_so_do_the_others() -> None:
    _, failed = on_ranks(breaks_amid_a_round, 2)
    assert failed == "InputError"


def is_interrupted(ranks: Ranks) -> str:
    group = torch.distributed.group.WORLD
    assert group is not None
    rounds = Rounds(ranks, group, group, torch.device("cpu"))
    rounds.offer(lambda: torch.zeros(1))
    try:
        with rounds.serving_other_ranks():
            if ranks.rank:
                raise KeyboardInterrupt
            rounds.gather(0, torch.empty(2), torch.zeros(1))
    except (KeyboardInterrupt, RankLost) as error:
        return type(error).__name__
    return "went on"


@pytest.mark.slow
def test_an_interrupted_rank_leaves_at_once_and_the_others_learn_of_it() -> None:
    assert on_ranks(is_interrupted, 2) == ["RankLost", "KeyboardInterrupt"]


class WithAScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(()))


def test_a_parameter_that_cannot_be_cut_is_named() -> None:
    with rejects("parallel", "fsdp") as faults:
        check_can_be_sharded(WithAScale())
    assert "parameter scale of WithAScale" in str(faults[0])
    model = nn.Linear(2, 3)
    model.weight = nn.Parameter(torch.ones(2, 3).t())
    with rejects("parallel", "fsdp") as faults:
        check_can_be_sharded(model)
    assert "parameter weight of Linear" in str(faults[0])


def test_blocks_that_share_a_parameter_stay_with_the_root() -> None:
    blocks = [nn.Linear(2, 2) for _ in range(3)]
    blocks[2].weight = blocks[0].weight
    model = nn.ModuleList([*blocks, nn.Linear(2, 2)])
    assert blocks_apart(model, blocks) == [blocks[1]]


ALL = [
    (model, method)
    for model in ("gpt2", "t5", "llama", "roberta")
    for method in ("full", "lora", "bitfit", "prefix", "rgp", "adapter")
    if (method != "bitfit" or model in ("gpt2", "roberta"))
    and (model, method) != ("roberta", "prefix")
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "method"), ALL)
def test_shards_are_saved_as_the_whole_model_is(tmp_path: Path, model: str, method: str) -> None:
    case = Case(model=model, method=method)
    found = []
    for size in (1, 3):
        # Of one name, which an adapter's config.json has in it.
        on_ranks(save, size, case, str(tmp_path / "model"))
        found.append(digests(tmp_path / "model"))
        shutil.rmtree(tmp_path / "model")
    assert any(name.endswith(".safetensors") for name in found[0])
    assert found[1] == found[0]


@pytest.mark.slow
def test_one_group_at_a_time_is_whole(tmp_path: Path) -> None:
    on_ranks(save_in_small_files, 2, str(tmp_path))
    model = GPT2LMHeadModel.from_pretrained(tmp_path)
    _, expected = prepared(Case(model="gpt2"))
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert model.config.architectures == ["GPT2LMHeadModel"]
    for name, parameter in expected.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)


def save_in_small_files(ranks: Ranks, folder: str) -> None:
    """Save a model in files of few tensors, and sees that no parameter of it is real."""
    _, model = prepared(Case(model="gpt2"))
    shards = ShardedModel(model, make_grid(ranks, None, CPU), ranks, blocks=repeated_blocks(model))
    ranks.serving_other_ranks = shards.serving_other_ranks
    with ranks.failing_together():
        if ranks.is_rank_0:
            with gathered(shards, held=lambda p: False):
                assert all(parameter.is_meta for parameter in model.parameters())
                model.save_pretrained(folder, max_shard_size=1000)


@pytest.mark.slow
def test_an_adapter_is_saved_without_its_base_where_that_has_an_address(tmp_path: Path) -> None:
    case = Case(model="llama", method="lora")
    for size, name in ((1, "whole"), (2, "cut")):
        on_ranks(save, size, case, str(tmp_path / name), "somewhere")
    assert not (tmp_path / "cut" / "base").exists()
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


def save(ranks: Ranks, case: Case, folder: str, address: str = "") -> None:
    """Save a case's model, and sees that it is as it was afterwards."""
    method, model = prepared(case)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    base.name_or_path = address
    if ranks.size == 1:
        method.save(model, Path(folder))
        return
    grid = make_grid(ranks, None, CPU)
    shards = ShardedModel(model, grid, ranks, blocks=repeated_blocks(model))
    ranks.serving_other_ranks = shards.serving_other_ranks
    before = {name: local(p).clone() for name, p in model.named_parameters()}
    with ranks.failing_together():
        if ranks.is_rank_0:
            with gathered(shards, held=held_to_save(method, model)):
                method.save(model, Path(folder))
    for name, parameter in model.named_parameters():
        assert torch.equal(local(parameter), before[name])


def digests(folder: Path) -> dict[str, str]:
    """Return a hash of each file's bytes, by its name."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
