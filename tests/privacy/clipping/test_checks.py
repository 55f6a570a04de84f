"""What the self-check and the first micro-batches compare, how often, and what a collator hides."""

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.models import SYNTHETIC, Records, gpt2, losses_of, records
from tests.privacy.clipping.oracle import (
    ENGINES,
    assert_exact,
    clipped,
    gradients_of,
    rows_of,
    unit_gradients,
)
from tests.slowness import slow_but

NORM = 0.5
BATCH = records((7, 12, 3, 9, 5, 8))


def counted(engine: str, micro_batches: int, rows_per_unit: int = 1) -> list[list[int]]:
    """Return the numbers of rows that the model runs on, by micro-batch; the first is S."""
    model, seen = gpt2(), [[]]

    def losses(model: nn.Module, batch: Records) -> Tensor:
        seen[-1].append(len(batch.ids))
        return losses_of(model, batch)

    with PerExampleClipper(model, losses, NORM, engine=engine) as clipper:
        clipper.self_check(*SYNTHETIC)
        for number in range(micro_batches):
            seen.append([])
            clipper.accumulate(records((7, 12, 3, 9, 5, 8), seed=number), rows_per_unit)
    return seen


def test_the_first_two_micro_batches_are_compared_and_later_ones_run_once():
    _, first, second, *later = counted("book_keeping", 6)
    for compared in (first, second):
        assert 2 * 6 <= sum(compared) <= 4 * 6, "at most three ordinary micro-batches in addition"
    assert later == [[6]] * 4


@pytest.mark.slow
def test_on_rows_later_micro_batches_run_each_row_once():
    _, first, second, *later = counted("rows", 6)
    assert len(first) > 6 and len(second) > 6
    assert later == [[1] * 6] * 4


@pytest.mark.slow
def test_a_micro_batch_of_one_unit_compares_nothing_and_is_not_counted_as_a_check():
    model, seen = gpt2(), []

    def losses(model: nn.Module, batch: Records) -> Tensor:
        seen.append(len(batch.ids))
        return losses_of(model, batch)

    with PerExampleClipper(model, losses, NORM, engine="book_keeping") as clipper:
        clipper.self_check(*SYNTHETIC)
        seen.clear()
        for _ in range(3):
            clipper.accumulate(records((5,)))
        assert seen == [1, 1, 1]
        clipper.accumulate(BATCH)
        assert len(seen) > 4


class Late(nn.Module):
    """Mixes its rows once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.out, self.late = nn.Linear(3, 4), nn.Linear(4, 2), False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dense(x)
        return self.out(hidden + 0.1 * hidden.detach().mean(0) if self.late else hidden)


def late_losses(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum(1)


@pytest.mark.parametrize("number", [1, 2])
def test_mixing_that_only_real_micro_batches_show_adds_nothing(number):
    """The self-check does not see it; the first or the second micro-batch does."""
    torch.manual_seed(0)
    model, x = Late(), torch.randn(7, 3)
    with PerExampleClipper(model, late_losses, NORM, engine="book_keeping") as clipper:
        clipper.self_check(x[:4], x[4:])
        for _ in range(number - 1):
            clipper.accumulate(x)
        before = None if number == 1 else model.dense.weight.grad.clone()
        model.late = True
        with pytest.raises(RunError):
            clipper.accumulate(x)
    after = model.dense.weight.grad
    assert after is None if before is None else torch.equal(after, before)


def test_a_phase_that_enters_again_is_checked_again():
    torch.manual_seed(0)
    model, x = Late(), torch.randn(7, 3)
    for late in (False, True):
        with PerExampleClipper(model, late_losses, NORM) as clipper:
            clipper.self_check(x[:4], x[4:])
            model.late = late
            if late:
                with pytest.raises(RunError):
                    clipper.accumulate(x)
            else:
                for _ in range(4):
                    clipper.accumulate(x)


class MixesGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (1 + x.mean().tanh() * (len(x) > 4))


def test_gradients_that_mix_end_the_run_and_suggest_rows():
    """At the self-check's sizes nothing mixes; engine ``rows`` is exact."""
    layer, x = nn.Linear(3, 2), torch.randn(8, 3) + 1
    losses = lambda model, x: MixesGradients.apply(model(x)).square().sum(1)  # noqa: E731
    with PerExampleClipper(layer, losses, NORM, engine="book_keeping") as clipper:
        clipper.self_check(x[:4], x[:3])
        with pytest.raises(RunError, match="rows"):
            clipper.accumulate(x)
    assert layer.weight.grad is None
    assert_exact(layer, losses, x, engine="rows")


def token_mean(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Divide by a count that the collator wrote into each row."""
    logits = model(input_ids=batch["ids"].clamp(min=0)).logits[:, :-1]
    losses = F.cross_entropy(logits.mT, batch["ids"][:, 1:], ignore_index=-1, reduction="none")
    return losses.sum(1) / batch["tokens"]


def collated(texts: Records, *, by_batch: bool) -> dict[str, Tensor]:
    counts = texts.mask.sum(1).float()
    whole = counts.sum().expand(len(counts)).clone()
    return {"ids": texts.ids, "tokens": whole if by_batch else counts}


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
@pytest.mark.parametrize("by_batch", [False, True])
def test_rows_that_are_collated_separately_reveal_a_count_of_the_batch(by_batch, engine):
    """Slicing a batch cannot: the count is in each row."""
    model = gpt2()
    batches = [collated(texts, by_batch=by_batch) for texts in SYNTHETIC]
    alone = [[collated(one, by_batch=by_batch) for one in texts.alone()] for texts in SYNTHETIC]
    with PerExampleClipper(model, token_mean, NORM, engine=engine) as clipper:
        if by_batch:
            with pytest.raises((InputError, RunError)):
                clipper.self_check(*batches, alone=alone)
        else:
            clipper.self_check(*batches, alone=alone)


def padded_mean(model: nn.Module, batch: Records) -> Tensor:
    """Average over the batch's length, padding included."""
    logits = model(input_ids=batch.ids.clamp(min=0), attention_mask=batch.mask).logits
    return logits.square().mean((1, 2))


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), ENGINES))
def test_losses_that_depend_on_padding_are_rejected(engine):
    model = gpt2()
    alone = [texts.alone() for texts in SYNTHETIC]
    with (
        PerExampleClipper(model, padded_mean, NORM, engine=engine) as clipper,
        pytest.raises((InputError, RunError)),
    ):
        clipper.self_check(*SYNTHETIC, alone=alone)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_rows_without_padding_pass_for_a_sound_model(engine):
    alone = [texts.alone() for texts in SYNTHETIC]
    got = clipped(
        gpt2(dropout=0.2), losses_of, [BATCH], NORM, synthetic=SYNTHETIC, alone=alone, engine=engine
    )
    assert got.norms.isfinite().all()


def test_a_self_check_that_compared_nothing_has_failed():
    """Losses that are not finite cannot be compared, and neither can one row."""
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    infinite = lambda model, x: model(x).square().sum(1) * torch.inf  # noqa: E731
    with (
        PerExampleClipper(layer, infinite, NORM) as clipper,
        pytest.raises((InputError, RunError)),
    ):
        clipper.self_check(x, x[:3])
    with (
        PerExampleClipper(layer, late_losses, NORM) as clipper,
        pytest.raises((InputError, RunError)),
    ):
        clipper.self_check()


class ReadsAValue(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.detach().sum()) > -1e9 else -super().forward(x)


@pytest.mark.slow
def test_auto_uses_rows_for_the_whole_model_as_a_last_resort_and_logs_it_once(caplog):
    layer = nn.Sequential(ReadsAValue(3, 2), nn.LSTM(2, 2, batch_first=True))
    x = torch.randn(6, 5, 3)
    losses = lambda model, x: model(x)[0].square().sum((1, 2))  # noqa: E731
    with caplog.at_level(logging.INFO):
        got = assert_exact(layer, losses, x)
    assert got.choice.engine == "rows"
    assert len([r for r in caplog.records if "rows" in r.getMessage()]) == 1


def test_gradients_that_cancel_in_the_sum_of_the_self_check_keep_book_keeping():
    """Clipped to one length, the gradients of two classes' biases differ only in their sign."""
    model = nn.Linear(2, 2)
    model.weight.data.copy_(torch.eye(2))
    model.weight.requires_grad = False
    batch = torch.tensor([[2.0, 0.3], [1.1, 0.2], [0.1, 0.7], [0.6, 0.5]]), torch.arange(4) % 2

    def losses_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    with PerExampleClipper(model, losses_of, 0.5, engine="book_keeping") as clipper:
        assert clipper.self_check(batch).engine == "book_keeping"


@pytest.mark.slow
def test_the_choice_does_not_depend_on_records():
    """Two clippers that see other records make the same choice."""
    choices = []
    for seed in (1, 2):
        batch = records((3, 4, 9), seed=seed)
        choices.append(clipped(gpt2(), losses_of, [batch], NORM, synthetic=SYNTHETIC).choice)
    assert choices[0] == choices[1]
    assert choices[0].engine == "book_keeping"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_choice_can_be_adopted_by_another_clipper_of_the_same_model(engine):
    """A prepared run, or the next phase of one, does not repeat the self-check."""
    model = gpt2()
    got = clipped(model, losses_of, [BATCH], NORM, synthetic=SYNTHETIC, engine=engine)
    with PerExampleClipper(model, losses_of, NORM, engine=engine, choice=got.choice) as clipper:
        model.zero_grad()
        norms = clipper.accumulate(BATCH)
    assert torch.equal(norms, got.norms)
    again = gradients_of(model)
    assert all(torch.equal(again[name], gradient) for name, gradient in got.gradients.items())


class Tiring(nn.Module):
    """Has no memory left at one of its calls."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.call, self.calls = call, 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.call:
            raise torch.OutOfMemoryError("no memory left")
        return self.layer(inputs)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_too_little_memory_is_never_taken_for_rows_that_cannot_be_compared(engine):
    inputs = torch.randn(5, 3)
    for call in range(1, 120):
        torch.manual_seed(0)
        model = Tiring(call)
        try:
            clipped(model, late_losses, [inputs], 1.0, engine=engine)
        except torch.OutOfMemoryError:
            continue
        break
    assert model.calls < call, "every call must raise what it was given"
    assert call > 5


@pytest.mark.parametrize("engine", ENGINES)
def test_trust_rule_7_no_message_quotes_an_error_that_reveals_a_texts_length(engine, caplog):
    """Losses that run on the whole micro-batch only, and whose own error has its length."""

    def losses(model: nn.Module, batch: Records) -> Tensor:
        if len(batch.ids) < 6:
            raise ValueError(f"texts of {batch.ids.shape[1]} tokens")
        return losses_of(model, batch)

    synthetic = records((17,) * 6)
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises((InputError, RunError)) as error,
        PerExampleClipper(gpt2(), losses, NORM, engine=engine) as clipper,
    ):
        clipper.self_check(synthetic, synthetic)
    assert "17" not in str(error.value) and "17" not in caplog.text


def test_rows_are_compared_in_the_precision_of_the_run_too():
    """A layer that is wrong in half precision only."""

    class WrongInHalf(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            outputs = super().forward(x)
            half = outputs.dtype == torch.bfloat16
            return outputs + outputs.detach().mean(0) if half else outputs

    layer, x = WrongInHalf(3, 2), torch.randn(4, 3)
    losses = lambda model, x: model(x).float().square().sum(1)  # noqa: E731
    clipped(layer, losses, [x], 1.0)
    with pytest.raises((InputError, RunError)):
        clipped(layer, losses, [x], 1.0, autocast=torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_one_private_row_may_be_anything_and_ends_no_run(engine):
    """An empty record, a huge loss, an infinite one, equal records."""
    model = gpt2()
    for change in ("empty", "huge", "infinite", "equal"):
        batch = rows_of(BATCH, slice(None))
        if change == "empty":
            batch.labels[1] = -100
        elif change == "equal":
            batch.ids[:], batch.labels[:] = batch.ids[1].clone(), batch.labels[1].clone()
        else:
            batch.weights[1] = 1e12 if change == "huge" else torch.inf
        got = clipped(model, losses_of, [batch] * 3, NORM, synthetic=SYNTHETIC, engine=engine)
        assert got.norms.isfinite().all()


def test_a_wrong_rule_behind_a_weight_that_begins_at_zero_is_found():
    """While the weight is zero, the layer before it has no gradient to compare."""

    class Concatenated(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.up = nn.Linear(4, 4), nn.Linear(4, 2)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.layer(torch.cat([x, x.flip(1)])).tanh().chunk(2)
            return self.up(first + second)

    torch.manual_seed(0)
    model, inputs = Concatenated(), torch.randn(6, 4)
    losses = lambda model, x: (model(x) - 1).square().sum(1)  # noqa: E731
    with PerExampleClipper(model, losses, NORM) as clipper:
        clipper.self_check(inputs[:4], inputs[:3])
        assert not bool(model.up.weight.any())  # It is as it was.
        clipper.accumulate(inputs)
        nn.init.normal_(model.up.weight)
        model.zero_grad()
        norms = clipper.accumulate(inputs)
    expected = unit_gradients(model, losses, inputs).norms
    assert torch.allclose(norms.double(), expected, rtol=1e-4)


def test_a_layer_that_only_rare_rows_use_is_clipped_row_by_row():
    class Rare(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.rare, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.table(ids)
            chosen = ids == 8
            if bool(chosen.any()):
                x = x.index_put((chosen,), 30 * self.rare(x[chosen]).tanh())
            return self.head(x).sum((1, 2))

    torch.manual_seed(0)
    model, ids = Rare(), torch.randint(0, 8, (8, 8))
    losses = lambda model, ids: model(ids).square()  # noqa: E731
    with PerExampleClipper(model, losses, NORM) as clipper:
        clipper.self_check(ids[:4], ids[:3])
        ids[3] = 8  # as many rare tokens as rows, all of one record
        norms = clipper.accumulate(ids)
        assert torch.allclose(norms.double(), unit_gradients(model, losses, ids).norms, rtol=1e-4)


def test_a_check_of_a_single_finite_unit_is_made_again():
    """One record that is not finite must not be the end of the check on records."""

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x.unsqueeze(2)).squeeze(2)
            return y if x.shape[1] < 9 else y - y.nanmean(0)

    losses = lambda model, x: model(x).square().sum(1)  # noqa: E731
    with PerExampleClipper(Late(), losses, NORM) as clipper:
        clipper.self_check(torch.randn(4, 5), torch.randn(3, 7))
        with pytest.raises(RunError, match="combine examples"):
            for _ in range(3):
                batch = torch.randn(2, 12)
                clipper.accumulate(torch.cat([batch[:1], batch[:1] * float("nan")]))
                clipper.accumulate(batch)


def test_one_unit_of_two_ill_conditioned_rows_ends_no_run():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(768, 64), nn.Linear(64, 1))
    weight = (model[1].weight @ model[0].weight).detach()[0].double()
    losses = lambda model, x: model(x)[:, 0].square()  # noqa: E731
    with PerExampleClipper(model, losses, NORM) as clipper:
        clipper.self_check(torch.randn(8, 768), torch.randn(6, 768), rows_per_unit=2)
        for _ in range(5):
            batch = torch.randn(4, 768, dtype=torch.float64)
            batch[:2] -= (batch[:2] @ weight)[:, None] * weight / weight.square().sum()
            batch[:2] *= 1e6
            clipper._unchecked = 2
            clipper.accumulate(batch.float(), rows_per_unit=2)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_whose_loss_depends_on_no_parameter_adds_nothing(engine):
    layer, inputs = nn.Linear(3, 2), torch.randn(4, 3)

    def losses(model, x):
        return (model(x) if bool(x.any()) else x).sum(1)

    with PerExampleClipper(layer, losses, NORM, engine=engine) as clipper:
        clipper.self_check(inputs, inputs[:3])
        clipper.accumulate(torch.zeros(2, 3))
    assert all(p.grad is None or not bool(p.grad.any()) for p in layer.parameters())
