"""Recording forwards: on the layers that train, and gone without a trace."""

from collections.abc import Callable
from inspect import signature

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import make_boxed_func

from dpft.errors import InputError, RunError
from dpft.machine import missing_for_compile
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.choices import Compilation
from dpft.privacy.clipping.patches import (
    Patches,
    watch_for_unrecorded_gradients,
    with_signature,
)
from dpft.privacy.clipping.recorder import Recorder, Tap
from dpft.privacy.clipping.trainable import TrainableParameters
from tests.privacy.clipping.oracle import Clipped, gpt2, records
from tests.slowness import slow_but


class Model(nn.Module):
    """A dense layer, a frozen one, and a scale that no rule knows."""

    def __init__(self):
        super().__init__()
        self.dense, self.frozen = nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)
        self.scale = nn.PReLU()

    def forward(self, x, *, twice=False):
        return self.scale(self.frozen(self.dense(x))) * (2 if twice else 1)


def made():
    model = Model()
    return model, Patches(model, Recorder(TrainableParameters(model)))


def replaced(model):
    return {name for name, module in model.named_modules() if "forward" in vars(module)}


def test_what_trains_gets_another_forward_and_its_own_back():
    model, patches = made()
    patches.install()
    assert replaced(model) == {"", "dense", "scale"}
    patches.remove()
    assert replaced(model) == set()


def test_forwards_are_taken_away_for_a_while_and_put_back_after_an_error():
    model, patches = made()
    patches.install()
    with pytest.raises(ZeroDivisionError), patches.without():
        assert replaced(model) == {""}, "its calls are watched still"
        raise ZeroDivisionError
    assert replaced(model) == {"", "dense", "scale"}


def test_a_forward_that_someone_replaced_is_refused_and_nothing_stays_patched():
    model, patches = made()
    model.scale.forward = lambda x: x
    with pytest.raises(InputError, match="PReLU layer must have its own forward"):
        patches.install()
    assert replaced(model) == {"scale"}


def test_patched_and_bare_model_compute_the_same_with_the_arguments_of_its_own():
    model, patches = made()
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    expected = [model(x, twice=twice) for twice in (False, True)]
    patches.install()
    assert list(signature(model.forward).parameters) == ["x", "twice"]
    found = [model(x, twice=twice) for twice in (False, True)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_wrapped_forward_shows_the_signature_of_the_modules_own():
    def own(ids, mask=None):
        raise AssertionError("only its signature is read")

    wrapped = with_signature(lambda *args, **kwargs: (args, kwargs), own)
    assert signature(wrapped) == signature(own)
    assert wrapped(1, mask=2) == ((1,), {"mask": 2})


def test_a_gradient_that_no_rule_saw_is_refused_by_name_and_leaves_none_behind():
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), 7.0)
    with (
        pytest.raises(RunError, match=r"parameter dense\.weight is used outside its layer"),
        watch_for_unrecorded_gradients({"dense.weight": weight}),
    ):
        weight.sum().backward()
    assert weight.grad.tolist() == [7.0, 7.0]


NORM = 0.5
SHORT, LONG = (7, 8, 3, 5), (7, 12, 3, 9)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch.compiler.reset()
    counters.clear()


def expected(model: nn.Module, lengths: tuple[int, ...], seed: int) -> Clipped:
    with PerExampleClipper(model, NORM, engine="loop") as clipper:
        norms = clipper.accumulate(records(lengths, seed=seed).losses(model))
    found = Clipped(norms, {n: p.grad.clone() for n, p in model.named_parameters()})
    model.zero_grad()
    return found


def compilations() -> int:
    return counters["stats"]["unique_graphs"]


class Repeats(nn.Module):
    """A layer that is called twice on the same input, and once on another."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.drop = nn.Embedding(20, 6), nn.Dropout(dropout)
        self.first, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.drop(self.words(ids))
        return self.norm(torch.tanh(self.first(rows) + self.first(rows))) + self.first(rows.sin())


def batch(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 20, (rows, length), generator=torch.Generator().manual_seed(seed))


def losses(model: nn.Module, ids: Tensor) -> Callable[[], Tensor]:
    return lambda: model(ids).square().mean((1, 2))


def compared(model: nn.Module, engine: str, batches: list[Tensor], **how: object) -> None:
    """Holds each batch's norms and sum against the loop's."""
    compilation = Compilation(**{"backend": "aot_eager", **how})
    every = []
    for ids in batches:
        with PerExampleClipper(model, NORM, engine="loop") as clipper:
            wanted = clipper.accumulate(losses(model, ids))
        every.append((ids, wanted, {n: p.grad for n, p in model.named_parameters()}))
        model.zero_grad()
    with PerExampleClipper(model, NORM, engine=engine, compilation=compilation) as clipper:
        for ids, wanted, gradients in every:
            norms = clipper.accumulate(losses(model, ids))
            assert torch.allclose(norms, wanted, rtol=1e-9)
            for name, parameter in model.named_parameters():
                assert torch.allclose(parameter.grad, gradients[name], rtol=1e-8), name
            model.zero_grad()


@pytest.mark.parametrize(
    "engine", slow_but(("book_keeping",), ("book_keeping", "two_pass", "instantiate"))
)
def test_a_compiled_forward_gives_the_loops_sum_and_one_graph_for_each_shape(engine: str) -> None:
    shapes = [(4, 8), (4, 8), (4, 5), (4, 8), (4, 5), (3, 5)]
    batches = [batch(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    compared(Repeats(), engine, batches, takes=lambda shape: shape[0] == 4)
    assert counters["stats"]["unique_graphs"] == 2 and not counters["graph_break"]


@pytest.mark.slow
def test_the_looks_at_a_kind_are_taken_without_the_compiler_and_compile_nothing_anew() -> None:
    compared(Repeats(), "book_keeping", [batch(3, 4, seed) for seed in range(18)])
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_more_shapes_than_torch_allows_by_itself_are_compiled() -> None:
    with dynamo_config.patch(recompile_limit=1):
        batches = [batch(4, length) for length in (2, 2, 3, 5)]
        compared(Repeats(), "book_keeping", batches, backend="eager")
    assert counters["stats"]["unique_graphs"] == 3


@pytest.mark.slow
def test_dropout_draws_its_masks_inside_and_each_example_is_still_its_own() -> None:
    model = Repeats(dropout=0.5).train()
    norms = []
    compilation = Compilation(backend="aot_eager")
    with PerExampleClipper(model, NORM, engine="book_keeping", compilation=compilation) as clipper:
        for _ in range(3):
            torch.manual_seed(7)
            norms.append(clipper.accumulate(losses(model, batch(3, 4))))
    assert all(bool((each > 0).all()) for each in norms)
    assert torch.equal(norms[1], norms[2])
    assert counters["stats"]["unique_graphs"] >= 1


def test_a_compiler_that_fails_ends_in_one_sentence() -> None:
    def fails(*_: object) -> object:
        raise RuntimeError("no compiler: record 7")

    with pytest.raises(
        RunError, match=r"cannot compile this model \(.*`compilation=None`"
    ) as error:
        compared(Repeats(), "book_keeping", [batch(3, 4)] * 2, backend=fails)
    assert "record 7" not in str(error.value)


def test_what_a_compiler_leaves_out_is_refused() -> None:
    def halved(graph: torch.fx.GraphModule, _: object) -> object:
        return lambda *inputs: [
            x * 0.5 if isinstance(x, Tensor) and x.is_floating_point() and x.dim() else x
            for x in graph(*inputs)
        ]

    with pytest.raises(RunError, match="`compilation` is not exact for Repeats: its losses"):
        compared(Repeats(), "book_keeping", [batch(3, 4)] * 2, backend=halved)


def test_what_is_wrong_at_one_shape_alone_is_refused_there() -> None:
    """Every shape is a compilation of its own, though their graphs look alike."""

    def wrong_at_11(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        wrong = any(11 in x.shape for x in inputs if isinstance(x, Tensor))
        halved = lambda x: x * 0.5 if wrong and isinstance(x, Tensor) and x.dim() == 3 else x  # noqa: E731
        return make_boxed_func(lambda *given: [halved(x) for x in graph(*given)])

    model = Repeats()
    compilation = Compilation(backend=aot_autograd(fw_compiler=wrong_at_11))
    with PerExampleClipper(model, NORM, engine="book_keeping", compilation=compilation) as clipper:
        for length in (4, 4):
            clipper.accumulate(losses(model, batch(3, length)))
        with pytest.raises(RunError, match="`compilation` is not exact"):
            clipper.accumulate(losses(model, batch(3, 11)))


def test_a_use_that_is_lost_later_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    report, model = Tap.report, Repeats()
    compilation = Compilation(backend="aot_eager")
    with PerExampleClipper(model, NORM, engine="book_keeping", compilation=compilation) as clipper:
        for seed in range(2):
            clipper.accumulate(losses(model, batch(3, 4, seed)))
        lost = iter([True])
        forget = lambda self, *met: next(lost, False) or report(self, *met)  # noqa: E731
        monkeypatch.setattr(Tap, "report", forget)
        with pytest.raises(RunError, match="another number of uses"):
            clipper.accumulate(losses(model, batch(3, 4)))


@pytest.mark.slow
def test_values_that_are_not_finite_prove_nothing_and_the_batch_runs_as_it_is() -> None:
    model = Repeats()
    with torch.no_grad():
        model.words.weight[19] = float("inf")
    bad, good = torch.full((3, 4), 19), batch(3, 4).clamp(max=18)
    bad[1:] = good[1:]
    compilation = Compilation(backend="aot_eager")
    with PerExampleClipper(model, NORM, engine="book_keeping", compilation=compilation) as clipper:
        clipper.accumulate(losses(model, good))
        norms = clipper.accumulate(losses(model, bad))
        assert norms[0] == 0 and clipper.non_finite == 1
        again = clipper.accumulate(losses(model, good))
    assert torch.allclose(norms[1:], again[1:])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("engine", ["book_keeping", "two_pass", "instantiate"])
def test_what_a_compiled_forward_records_gives_the_loops_sum(engine: str, backend: str) -> None:
    model = gpt2(dtype=torch.float64)
    wanted = [expected(model, lengths, seed) for seed, lengths in enumerate([LONG, SHORT] * 2)]
    compilation = Compilation(backend=backend)
    with PerExampleClipper(model, NORM, engine=engine, compilation=compilation) as clipper:
        for seed, lengths in enumerate([LONG, SHORT] * 2):
            model.zero_grad()
            norms = clipper.accumulate(records(lengths, seed=seed).losses(model))
            got = Clipped(norms, {n: p.grad for n, p in model.named_parameters()})
            assert torch.allclose(norms, wanted[seed].norms, rtol=1e-9)
            assert got.distance(wanted[seed]) <= 1e-9
    assert compilations() == 2, "one graph for each length, and none is broken"
    assert not any("forward" in vars(each) for each in model.modules())


@pytest.mark.slow
@pytest.mark.skipif(missing_for_compile("cpu") is not None, reason="no compiler")
def test_the_default_compiler_gives_the_loops_sum_though_it_uses_memory_again() -> None:
    batches = [batch(4, 8, seed) for seed in range(3)]
    compared(Repeats(), "book_keeping", batches, backend="inductor")
    assert counters["stats"]["unique_graphs"] == 1
