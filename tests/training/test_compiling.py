"""train.compile: which micro-batches are compiled, on which machine, with and without privacy."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir

from dpft.errors import InputError
from dpft.privacy.clipping.choices import Compilation
from dpft.training import compiling
from dpft.training.compiling import (
    CACHES,
    check_compiler,
    check_first_step_compiles,
    compilation_of,
    compiled_calls,
    private_cache,
)
from dpft.training.loop import TrainingSet
from dpft.training.ordinary import train_ordinarily
from dpft.training.private_run import train_privately
from tests.training import toy

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch.compiler.reset()
    counters.clear()


def test_a_machine_that_lacks_something_is_told_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "missing_for_compile", lambda _: "a C++ compiler")
    check_compiler(CPU, wanted=False)
    with pytest.raises(InputError, match=r"needs a C\+\+ compiler, .* or set train.compile=false"):
        check_compiler(CPU, wanted=True)
    monkeypatch.setattr(compiling, "missing_for_compile", lambda _: None)
    check_compiler(CPU, wanted=True)


def test_only_micro_batches_without_room_for_another_record_are_compiled() -> None:
    data = replace(toy.training_set(micro_batch_size=4), compile=True)
    found = compilation_of(data)
    assert found is not None and compilation_of(toy.training_set()) is None
    assert [found.takes((rows, 8)) for rows in (3, 4)] == [False, True]
    by_tokens = replace(data, micro_batch_tokens=24)
    assert [by_tokens.is_whole((rows, 8)) for rows in (2, 3)] == [False, True]


@pytest.mark.parametrize(
    ("expected", "rows", "tokens", "way"),
    [
        *((1024, 512, None, None), (24, 4, None, None), (24, 40, 32, None)),
        (8, 14, None, "compile=true needs a larger train.expected_batch_size, got 8"),
        (
            *(64, 40, None),
            "micro_batch_size must be at most 30 with train.compile=true and"
            " train.expected_batch_size=64, got 40",
        ),
    ],
)
def test_the_first_step_of_a_private_run_compiles_whatever_it_draws(
    expected: int, rows: int, tokens: int | None, way: str | None
) -> None:
    """Else the time of a later step would show that it was the first to fill a micro-batch."""
    sizes = {"expected_batch_size": expected, "micro_batch_size": rows, "tokens": tokens}
    if way is None:
        check_first_step_compiles(longest=8, **sizes)
        return
    with pytest.raises(InputError) as refused:
        check_first_step_compiles(longest=8, **sizes)
    assert str(refused.value) == (
        f"train.{way}: it compiles in the first step that draws as many records, and that must be"
        " the first of all, or the pause would show how many a step drew;"
        f" {'raise' if rows == 14 else 'lower'} it, or set train.compile=false."
    )


@pytest.mark.slow
def test_ordinary_calls_are_compiled_once_for_each_shape_that_is_to_be() -> None:
    model, inputs = torch.nn.Linear(3, 3), torch.rand(4, 3)
    compilation = Compilation(backend="eager", takes=lambda shape: shape[0] == 4)
    with compiled_calls(model, compilation):
        for _ in range(3):
            out = model(inputs)
            model(inputs[:3])
        with torch.no_grad():
            model(torch.rand(4, 3))
    assert torch.equal(out, model(inputs)) and "forward" not in vars(model)
    assert counters["stats"]["unique_graphs"] == 1


def test_what_a_compiler_writes_stays_in_the_private_folder_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHES[0], "elsewhere")
    monkeypatch.delenv(CACHES[1], raising=False)
    (tmp_path / "private/compiled").mkdir(parents=True, mode=0o700)
    (tmp_path / "private/compiled/left").touch()
    with pytest.raises(KeyError), private_cache(tmp_path, wanted=True):
        folder = Path(cache_dir())
        assert folder == tmp_path.resolve() / "private/compiled"
        assert os.environ[CACHES[1]] == str(folder) and not list(folder.iterdir())
        assert folder.stat().st_mode & 0o777 == 0o700
        raise KeyError
    assert not folder.exists()
    assert os.environ[CACHES[0]] == "elsewhere" and CACHES[1] not in os.environ
    with private_cache(tmp_path, wanted=False):
        assert os.environ[CACHES[0]] == "elsewhere"


def test_the_cache_of_another_rank_is_where_nobody_else_can_see_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's temporary folder shows everybody the time of each folder in it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with private_cache(None, wanted=True):
        folder = Path(cache_dir())
        (shown,) = tmp_path.iterdir()
        assert shown in folder.parents and shown.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("private", [True, False])
def test_a_compiled_run_has_the_weights_of_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: bool
) -> None:
    """Dropout off: compiled code draws masks of its own."""

    def simple(data: TrainingSet) -> Compilation | None:
        found = compilation_of(data)
        return None if found is None else replace(found, backend="aot_eager")

    weights = []
    for module in ("private_run", "ordinary"):
        monkeypatch.setattr(f"dpft.training.{module}.compilation_of", simple)
    for compiles in (False, True):
        model = toy.tiny_model()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        own = toy.session(tmp_path / str(compiles), model, micro_batch_size=2)
        layout = replace(own.training_set.layout, pad_to_multiple_of=8)
        data = replace(own.training_set, compile=compiles, layout=layout)
        own = replace(own, training_set=data)
        if private:
            train_privately(own, toy.plan(), toy.privacy(), epsilon_after=toy.spent)
        else:
            train_ordinarily(own, 4)
        weights.append([p.detach().clone() for p in model.parameters()])
    assert 0 < counters["stats"]["unique_graphs"] <= 2, "one for each length"
    for one, other in zip(*weights, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
