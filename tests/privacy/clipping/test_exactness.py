"""How often losses are computed, on how many rows, and what is refused before any is used."""

import math
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping import PerExampleClipper, exactness
from dpft.privacy.clipping.loss_check import FIRST_REPETITION, CheckSchedule
from dpft.privacy.clipping.separation import fingerprints
from tests.privacy.clipping.oracle import gpt2, records
from tests.slowness import slow, slow_but, slow_but_each

ENGINES = ("book_keeping", "two_pass", "instantiate", "loop")
IDS = torch.randint(0, 61, (12, 9), generator=torch.Generator().manual_seed(0))


def counted(model, ids=IDS):
    """Losses of a causal model, and the numbers of rows that they were computed on."""
    rows = []

    def losses():
        logits = model(input_ids=ids).logits[:, :-1]
        rows.append(len(logits))
        each = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        return each.mean(1)

    return losses, rows


@pytest.mark.parametrize(
    ("engine", "dropout"),
    slow_but(
        [("book_keeping", 0.1), ("loop", 0.1)],
        [("book_keeping", 0.0), *((engine, 0.1) for engine in ENGINES)],
    ),
)
def test_a_first_batch_is_compared_on_three_choices_of_rows_and_proved_on_one(engine, dropout):
    model = gpt2(dropout=dropout).train()
    losses, rows = counted(model)
    with PerExampleClipper(model, 0.5, engine=engine) as clipper:
        clipper.accumulate(losses)
        compared = [12, 6, 6, 8, 4, 3, 3, 3, 3]
        assert rows == [*compared, *(() if engine == "loop" else (8, 8)), 12, 12]


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_the_16th_batch_is_checked_again_and_others_are_computed_once(engine):
    model = gpt2(dropout=0.1).train()
    losses, rows = counted(model)
    with PerExampleClipper(model, 0.5, engine=engine) as clipper:
        clipper.accumulate(losses)
        for number in range(2, 18):
            rows.clear()
            clipper.accumulate(losses)
            assert rows == ([12, 6, 6, 8, 4, 3, 3, 3, 3, 12, 12] if number == 16 else [12])


MIXES = {
    "a mean": lambda h: h + 0.01 * h.mean(0),
    "a detached mean": lambda h: h + 0.01 * h.detach().mean(0),
    "less the first row": lambda h: h - 0.1 * h[0].detach(),
    "rows sorted": lambda h: h[h[:, 0].detach().argsort()],
    "the largest so far": lambda h: torch.maximum(h, h.detach().cummax(0).values),
    "at three rows": lambda h: h + 0.01 * h.detach().mean(0) if len(h) > 2 else h,
    "of neighbors": lambda h: h + 0.1 * h.detach().roll(1, 0),
    "a mean of five rows and more": lambda h: h + (len(h) >= 5) * 0.01 * h.detach().mean(0),
    "pairs of five rows and more": lambda h: h + (len(h) >= 5) * 0.1 * h.detach().flip(0),
}
COUPLINGS = {
    "rows": lambda each: each / len(each),
    "at four rows": lambda each: each - 0.1 * each.detach().mean() if len(each) > 3 else each,
    "a baseline": lambda each: each - 0.1 * each.detach().mean(),
    "ranks": lambda each: each * each.detach().argsort().argsort(),
    "the largest alone": lambda each: each * (1 + (each.detach() == each.detach().max())),
    "the second largest": lambda each: each / each.detach().topk(2).values[1],
    "the harder half": lambda each: each * (each >= each.detach().median()),
}


class Late(nn.Module):
    """Mixes its rows, and its losses, once it is told to, by no other graph than before."""

    def __init__(self, rate, mix=lambda h: h, couple=lambda each: each):
        super().__init__()
        self.dense, self.drop, self.out = nn.Linear(3, 4), nn.Dropout(rate), nn.Linear(4, 2)
        self.mix, self.couple, self.late = mix, couple, False

    def forward(self, x):
        h = self.drop(self.dense(x))
        return self.out(h + (self.late * (self.mix(h) - h)).detach())

    def losses(self, x):
        each = self(x).square().sum(1)
        return each + (self.late * (self.couple(each) - each)).detach()


LATER = {name: {"mix": mix} for name, mix in MIXES.items()}
LATER |= {name: {"couple": couple} for name, couple in COUPLINGS.items()}


@pytest.mark.parametrize("rate", slow_but((0.2,), (0.0, 0.2)))
@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ("book_keeping", "loop")))
@pytest.mark.parametrize("late", LATER.values(), ids=LATER)
def test_what_begins_to_mix_later_is_seen_at_the_16th_batch_and_adds_nothing(late, engine, rate):
    torch.manual_seed(0)
    model, x = Late(rate, **late), torch.randn(7, 3)
    with PerExampleClipper(model, 0.5, engine=engine) as clipper:
        for _ in range(15):
            clipper.accumulate(lambda: model.losses(x))
        before = model.dense.weight.grad.clone()
        model.late = True
        with pytest.raises(RunError, match="changes with the other|depends on another example"):
            clipper.accumulate(lambda: model.losses(x))
    assert torch.equal(model.dense.weight.grad, before)


class LateBeside(Late):
    """Tells its losses something of all rows beside its outputs, once it is told to."""

    def __init__(self, how):
        super().__init__(0.2)
        self.how, self.left = how, torch.zeros(())

    def forward(self, x):
        h = super().forward(x)
        mean = h.detach().mean() if self.late else torch.zeros(())
        self.left = mean if self.how == "an attribute" else torch.zeros(())
        number = mean.item() if self.how == "a number" else 0.0
        table = mean[None].expand(4) if self.how == "a table" else torch.zeros(4)
        return {"h": h, "scalar": mean, "table": table, "number": number}

    def losses(self, x):
        out = self(x)
        beside = {"an attribute": self.left, "a number": out["number"], "a table": out["table"][0]}
        return out["h"].square().sum(1) + beside.get(self.how, out["scalar"])


@pytest.mark.parametrize("how", ["an attribute", "a number", "a table", "a scalar"])
def test_what_a_model_begins_to_tell_its_losses_beside_its_rows_is_seen_at_the_16th_batch(how):
    torch.manual_seed(0)
    model, x = LateBeside(how), torch.randn(7, 3)
    with PerExampleClipper(model, 0.5, engine="book_keeping") as clipper:
        for _ in range(15):
            clipper.accumulate(lambda: model.losses(x))
        model.late = True
        with pytest.raises(RunError, match="depends on another example"):
            clipper.accumulate(lambda: model.losses(x))


def tells(statistic, x):
    """Losses of a model that leaves them a statistic of its batch in an attribute."""
    dense, left = nn.Linear(3, 2), {}

    class Telling(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = dense

        def forward(self, x):
            left["told"] = statistic(x.abs().sum(1))
            return self.dense(x)

    model = Telling()
    return model, lambda: model(x).square().sum(1) * (1 + 0.3 * left["told"])


STATISTICS = {
    "mean": torch.mean,
    "least": torch.min,
    "largest": torch.max,
    "median": torch.median,
    "second": lambda sizes: sizes.topk(min(2, len(sizes))).values[-1],
    "mean of nine rows and more": lambda sizes: (len(sizes) > 8) * sizes.mean(),
    "mean of twelve rows and more": lambda sizes: (len(sizes) > 11) * sizes.mean(),
}


@pytest.mark.parametrize("seed", slow_but(range(2), range(6)))
@pytest.mark.parametrize("statistic", STATISTICS.values(), ids=STATISTICS)
def test_what_a_model_tells_its_losses_by_an_attribute_is_seen_at_once(statistic, seed):
    torch.manual_seed(seed)
    model, losses = tells(statistic, torch.randn(16, 3))
    with (
        PerExampleClipper(model, 0.5, engine="book_keeping") as clipper,
        pytest.raises(RunError, match="depends on another example"),
    ):
        clipper.accumulate(losses)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_divided_by_the_tokens_of_its_batch_is_refused_and_adds_nothing(engine):
    model, labels = nn.Linear(3, 4), torch.tensor([0, 1, -100, 2, 3])
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))

    def losses():
        each = F.cross_entropy(model(x), labels, reduction="none")
        return each / (labels != -100).sum()

    with (
        PerExampleClipper(model, 0.5, engine=engine) as clipper,
        pytest.raises(RunError, match="count of the batch's tokens"),
    ):
        clipper.accumulate(losses)
    assert model.weight.grad is None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_norm_passes_while_it_evaluates_and_is_refused_once_it_trains(engine):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval(), torch.randn(5, 3)
    with PerExampleClipper(model, 0.5, engine=engine) as clipper:
        clipper.accumulate(lambda: model(x).square().sum(1))
        model.train()
        with pytest.raises(RunError, match="normalizes over the batch"):
            clipper.accumulate(lambda: model(x).square().sum(1))
    assert int(model[1].num_batches_tracked) == 0


def test_the_last_computation_is_the_one_that_is_used_on_all_rows():
    model, seen = nn.Linear(3, 1), []
    x = torch.randn(6, 3)

    def losses():
        seen.append(model(x)[:, 0])
        return seen[-1]

    with PerExampleClipper(model, 0.5) as clipper:
        clipper.accumulate(losses)
    assert len(seen[-1]) == 6 and seen[-1].grad_fn is not None


def test_a_proof_is_made_in_any_order_where_a_kernel_knows_no_one_order(monkeypatch):
    """As on an accelerator, whose cumulative sums raise where one order is asked for."""
    asked = []

    @contextmanager
    def one_order(device):
        asked.append(True)
        try:
            yield
        finally:
            asked.append(False)

    class Layer(nn.Linear):
        def forward(self, x):
            if asked and asked[-1]:
                raise RuntimeError(
                    "cumsum_cuda_kernel does not have a deterministic implementation"
                )
            return super().forward(x)

    monkeypatch.setattr(exactness, "one_order_of_addition", one_order)
    model = nn.Sequential(nn.Linear(3, 4), Layer(4, 2))
    x = torch.randn(5, 3)
    with PerExampleClipper(model, 0.5, engine="book_keeping") as clipper:
        norms = clipper.accumulate(lambda: model(x).square().sum(1))
    assert asked == [True, False]
    assert bool((norms > 0).all())


X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_detached_mean_in_the_loss_is_refused_with_dropout_too(rate):
    torch.manual_seed(0)  # few rows of one start in sixty have the mean of all of them
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(rate))

    def losses():
        own = model(X).square().sum(1)
        return own - 0.1 * own.detach().mean()

    with (
        PerExampleClipper(model, 0.5, engine="loop") as clipper,
        pytest.raises(RunError, match="depends on another example's loss or inputs"),
    ):
        clipper.accumulate(losses)
    assert model[0].weight.grad is None


def test_the_masks_are_those_that_the_model_would_have_drawn():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5))
    torch.manual_seed(0)
    expected = model(X).square().sum(1)
    seen = []

    def losses():
        seen.append(model(X).square().sum(1))
        return seen[-1]

    torch.manual_seed(0)
    with PerExampleClipper(model, 0.5, engine="loop") as clipper:
        clipper.accumulate(losses)
    assert torch.equal(seen[-1], expected)


@pytest.mark.parametrize(
    ("reduced", "words"),
    [
        (lambda each: each.mean(), "do not reduce over the batch"),
        (lambda each: float(each.mean().detach()), r"tensor of shape \(b,\)"),
        (lambda each: each[:, None], r"got \(6, 1\)"),
    ],
)
def test_what_is_no_list_of_losses_is_refused_in_words(reduced, words):
    model = nn.Linear(3, 1)
    with (
        PerExampleClipper(model, 0.5, engine="loop") as clipper,
        pytest.raises(InputError, match=words),
    ):
        clipper.accumulate(lambda: reduced(model(X)[:, 0]))


def test_a_submodule_called_alone_is_looked_at_once():
    model, calls = nn.Sequential(nn.Linear(3, 1)), []
    model[0].register_forward_pre_hook(lambda *_: calls.append(1))
    with PerExampleClipper(model, 0.5, engine="loop") as clipper:
        clipper.accumulate(lambda: model[0](X)[:, 0])
        calls.clear()
        clipper.accumulate(lambda: model[0](X)[:, 0])
        assert len(calls) == 1
    with (
        PerExampleClipper(model, 0.5, engine="loop") as clipper,
        pytest.raises(RunError, match="depends on another example's loss or inputs"),
    ):
        clipper.accumulate(lambda: model[0](X - X.mean(0))[:, 0])


def test_the_rule_is_public_and_counts_batches_of_a_kind():
    kinds, due = CheckSchedule(), []
    for number in range(1, 70):
        if kinds.is_due("a"):
            due.append(number)
            kinds.note_checked(["a"])
            assert not kinds.is_due("a")
        kinds.count(["a"])
    assert due == [1, 16, 32, 64] and kinds.is_due("b") and kinds.any_used


def test_a_kind_whose_proof_failed_stays_due():
    kinds = CheckSchedule()
    assert kinds.is_due("a") and kinds.is_due("a") and not kinds.any_used


def test_no_graph_stands_beside_a_gradient_of_few_rows(monkeypatch):
    """Its memory would be on top of what an ordinary micro-batch takes at most."""
    alive, beside = set(), []

    class Held:
        def __init__(self, tensor):
            self.tensor = tensor.detach()  # an output would hold its own graph
            alive.add(id(self))

        def __del__(self):
            alive.discard(id(self))

    def fingerprint(gradient, made=fingerprints.fingerprint_of):
        beside.append(len(alive))
        return made(gradient)

    monkeypatch.setattr(fingerprints, "fingerprint_of", fingerprint)
    model = gpt2()
    losses, _ = counted(model)
    hooks = torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor)
    with PerExampleClipper(model, 0.5) as clipper, hooks:
        clipper.accumulate(losses)
    assert len(beside) > 40 and not any(beside), beside


class MeanOfBackward(torch.autograd.Function):
    """Gives back what it gets, and its gradient times the mean of what the batch holds."""

    @staticmethod
    def forward(context, x, beside):
        context.save_for_backward(beside)
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        (beside,) = context.saved_tensors
        return gradient * beside.mean(), None


class MeetsInBackward(nn.Module):
    """Its gradients are of others' records, or of each its own."""

    def __init__(self, mixes):
        super().__init__()
        self.mixes, self.layer = mixes, nn.Linear(512, 4, bias=False)

    def forward(self, x):
        beside = x[:, :1] if self.mixes else torch.ones(1)
        return MeanOfBackward.apply(self.layer(x), beside)


LIKE_THE_PROJECTION = (1.7 * torch.arange(512)).cos().sign()


def overflowing(model, x):
    """Their gradients are finite; in float32 neither their norms nor their sums are."""
    return 3e36 * model(x.abs() * LIKE_THE_PROJECTION).sum(1)


def rooted(model, x):
    """Of some rows the gradient is not finite, which spoils that of every row beside it."""
    return model(x).square().sqrt().sum(1)


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
@pytest.mark.parametrize(
    ("losses", "units"), [(overflowing, None), (rooted, None), (rooted, torch.arange(12) // 2)]
)
def test_gradients_are_compared_where_float32_overflows_and_beside_such_as_are_not_finite(
    engine, losses, units
):
    """One example turned the sign of all, and moved the sum by 19, 7 and 5 clipping norms."""
    torch.manual_seed(0)
    x = torch.randn(12, 512)
    bad = [] if losses is overflowing else [1, 2, 4, 6, 9] if units is None else [2]
    x[bad] = 0.0
    with (
        PerExampleClipper(MeetsInBackward(mixes=True), 10.0, engine=engine) as clipper,
        pytest.raises(RunError, match="the gradient of one example's loss depends on the other"),
    ):
        clipper.accumulate(lambda: losses(clipper._model, x), units)
    if engine != "loop" or losses is overflowing:
        with PerExampleClipper(MeetsInBackward(mixes=False), 10.0, engine=engine) as clipper:
            norms = clipper.accumulate(lambda: losses(clipper._model, x), units)
        assert int((norms > 0).sum()) == (12 - len(bad) if units is None else 5)


def test_a_row_without_a_finite_gradient_is_compared_once_as_the_others_are():
    torch.manual_seed(0)
    x, computed = torch.randn(12, 512), []
    x[4] = 0.0
    with PerExampleClipper(MeetsInBackward(mixes=False), 10.0) as clipper:

        def losses():
            computed.append(len(x))
            return rooted(clipper._model, x)

        clipper.accumulate(losses)
        assert len(computed) > 1
        computed.clear()
        clipper.accumulate(losses)
    assert len(computed) == 1


@pytest.mark.parametrize(
    ("count", "units"),
    [
        (2, None),
        (3, None),
        (5, None),
        (4, [0, 0, 1, 1]),
        (9, [0, 1, 2] * 3),
        (16, [0, 1, 2, 3] * 4),
    ],
)
def test_gradients_are_compared_whatever_number_of_rows_a_caller_writes_down(count, units):
    """Halves that take each other's place, other rows than before, and as many as there are units.

    One example was seen to move the sum by 3 to 6 clipping norms.
    """
    torch.manual_seed(0)
    x = torch.randn(count, 512)
    given = None if units is None else torch.tensor(units)

    def losses(model):
        return model(x).sum(1).reshape(count if units is None else -1)

    with PerExampleClipper(MeetsInBackward(mixes=False), 10.0) as clipper:
        clipper.accumulate(lambda: losses(clipper._model), given)
    with (
        PerExampleClipper(MeetsInBackward(mixes=True), 10.0) as clipper,
        pytest.raises(RunError, match="the gradient of one example's loss depends on the other"),
    ):
        clipper.accumulate(lambda: losses(clipper._model), given)


@pytest.mark.parametrize("engine", ["book_keeping", "loop"])
def test_rows_of_one_unit_are_compared_in_two_parts_where_their_number_is_written_down(engine):
    torch.manual_seed(0)
    x, units = torch.randn(5, 512), torch.tensor([0, 0, 0, 1, 2])
    losses = lambda model: model(x).sum(1).reshape(5)  # noqa: E731
    with PerExampleClipper(MeetsInBackward(mixes=False), 10.0, engine=engine) as clipper:
        assert len(clipper.accumulate(lambda: losses(clipper._model), units)) == 3
    with (
        PerExampleClipper(MeetsInBackward(mixes=True), 10.0, engine=engine) as clipper,
        pytest.raises(RunError, match="the gradient of one example's loss depends on the other"),
    ):
        clipper.accumulate(lambda: losses(clipper._model), units)


def test_losses_of_another_number_than_the_rows_taken_are_refused_in_words():
    units, model = torch.arange(8) % 4, nn.Sequential(nn.Linear(512, 4), nn.Dropout())
    x = torch.randn(8, 512)

    def losses():
        return torch.zeros(4).index_add(0, units, model(x).sum(1))

    with PerExampleClipper(model, 10.0) as clipper, pytest.raises(RunError):
        clipper.accumulate(losses, units)


def own_backward(model, batch):
    batch.losses(model)().sum().backward(retain_graph=True)


def penalty(model, batch):
    (next(model.parameters()).sum() * batch.labels.float().sum()).backward()


def assignment(model, batch):
    parameter = next(model.parameters())
    parameter.grad = torch.full_like(parameter, 100.0)


def addition(model, batch):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.add_(100.0)


@pytest.mark.parametrize(
    ("engine", "write"),
    slow_but_each(
        ["book_keeping", "two_pass", "instantiate", "loop"],
        [own_backward, penalty, assignment, addition],
    ),
)
def test_trust_rule_2_what_else_writes_to_a_gradient_is_refused(engine, write):
    """Nothing clips what a backward pass of the caller's, or of the model's, adds to the sum."""
    model, batch = gpt2(), records()

    def losses():
        write(model, batch)
        return batch.losses(model)()

    message = "must be left to the clipper"
    with PerExampleClipper(model, 1.0, engine=engine) as clipper:
        clipper.accumulate(batch.losses(model))
        with pytest.raises(RunError, match=message):
            clipper.accumulate(losses)
        with pytest.raises(RunError, match=f"{message}|failed"):
            clipper.accumulate(losses)


class Tiring(nn.Module):
    """Has no memory left at one of its calls."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.call, self.calls = call, 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls == self.call:
            raise torch.OutOfMemoryError("no memory left")
        return self.layer(inputs)


@pytest.mark.parametrize("engine", ["book_keeping", *slow(("two_pass",), ("instantiate",))])
def test_memory_that_does_not_suffice_is_never_taken_for_rows_that_cannot_be_compared(engine):
    inputs = torch.randn(5, 3)
    for call in range(1, 40):
        torch.manual_seed(0)
        model = Tiring(call)
        with PerExampleClipper(model, 1.0, engine=engine) as clipper:
            try:
                clipper.accumulate(lambda model=model: model(inputs).square().sum(1))
            except torch.OutOfMemoryError:
                continue
        break
    assert model.calls < call, "every call of the first batch raised what it was given"
    assert call > 10


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES[:3]))
def test_a_row_whose_loss_is_not_finite_spoils_no_comparison_of_halves(engine):
    """There are as many positions as rows, so that one's weights may be cut for the other's."""
    layer, g = nn.Linear(4, 4), torch.Generator()
    large = torch.tensor([1.0, 1e30])[:, None, None]

    def losses():
        """Of numbers that are drawn anew, the same each time."""
        inputs = torch.randn(1, 2, 4, generator=g.manual_seed(0)).expand(2, -1, -1) * large
        outputs = layer(inputs)
        return (outputs * (torch.randn(outputs.shape[1:], generator=g) * large)).sum((1, 2))

    with PerExampleClipper(layer, 1.0, engine=engine) as clipper:
        norms = clipper.accumulate(losses)
    assert norms[0] > 0 and norms[1] == 0


class MeetingInBackward(nn.Module):
    """Scales each gradient by what the whole batch holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.meets = nn.Linear(3, 2), True

    def forward(self, inputs):
        outputs = self.layer(inputs)
        if self.meets and outputs.requires_grad:
            outputs.register_hook(lambda gradient: gradient * inputs.square().mean())
        return outputs


@pytest.mark.parametrize("engine", slow_but(("instantiate",), ENGINES[:3]))
def test_a_row_that_is_not_finite_hides_no_gradients_that_meet_where_as_many_rows_must_run(engine):
    """Its gradient spoils that of all beside it, so the others are compared without it."""
    g = torch.Generator().manual_seed(0)
    model, inputs = MeetingInBackward(), torch.randn(9, 3, generator=g)
    spoilt = torch.ones(9).index_fill(0, torch.tensor([2, 5, 7]), math.inf)

    def losses():
        return (model(inputs).square().sum(1) * spoilt).view(9)

    message = "gradient of one example's loss depends on the other"
    clipping = PerExampleClipper(model, 1.0, engine=engine)
    with clipping as clipper, pytest.raises(RunError, match=message):
        clipper.accumulate(losses)


def test_where_a_look_could_compare_no_gradients_the_next_batch_is_looked_at():
    g = torch.Generator().manual_seed(0)
    model, used = MeetingInBackward(), 0
    model.meets = False
    with PerExampleClipper(model, 1.0) as clipper, pytest.raises(RunError, match="gradient of one"):
        for number in range(1, 32):
            inputs, model.meets = torch.randn(9, 3, generator=g), number > 1
            spoilt = torch.ones(9)
            spoilt[1:] = math.inf if number == FIRST_REPETITION else 1.0

            def losses(inputs=inputs, spoilt=spoilt):
                return model(inputs).square().sum(1) * spoilt

            clipper.accumulate(losses)
            used = number
    assert used == FIRST_REPETITION
