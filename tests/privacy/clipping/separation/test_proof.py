"""Models that surprise the rules: exact all the same, or refused; never a wrong sum."""

import pytest
import torch
from torch import nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping import PerExampleClipper, rules
from dpft.privacy.clipping.separation.proof import (
    LOST_TO_FLOAT16,
    Fingerprint,
    NotExact,
    RecordedPass,
    describe_graph,
    gradients_kept,
    ordinary_gradients,
    other_leaves,
)
from dpft.privacy.clipping.uses import GradientUse, OuterProduct
from tests.privacy.clipping.rules.oracle import assert_equals_the_loop
from tests.slowness import slow

B, T, D = 4, 5, 6


def inputs(b=B, t=T, seed=0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(b, t, D, generator=generator, dtype=torch.float64)


class Positions(nn.Module):
    """A table of positions, met as ``use`` says, beside a dense layer."""

    def __init__(self, use):
        super().__init__()
        self.table = nn.Embedding(8, D)
        self.dense = nn.Linear(D, D)
        self.use = use

    def forward(self, x, positions=None):
        steps = torch.arange(x.shape[1])[None] if positions is None else positions
        return self.dense(x) + self.use(self.table(steps))


class Inner(nn.Module):
    """Something the batch is not first in."""

    def __init__(self, before, after):
        super().__init__()
        self.dense = nn.Linear(D, D)
        self.before, self.after = before, after

    def forward(self, x):
        return self.after(self.dense(self.before(x)), x)


def sort_rows(x):
    return x[x[:, 0, 0].argsort()]


def unsort_rows(y, x):
    return y[x[:, 0, 0].argsort().argsort()]


@pytest.mark.parametrize(
    "use",
    [lambda p: p, lambda p: p[0], lambda p: p.mean(0), lambda p: p.sum(0), lambda p: p.softmax(0)],
    ids=["broadcast", "first", "mean", "sum", "softmax"],
)
def test_what_has_one_row_for_all_is_exact_whatever_is_done_with_it(use):
    layer = Positions(use).double()
    assert_equals_the_loop(layer, lambda: layer(inputs()))


def test_rows_permuted_inside_are_told_apart():
    layer = Inner(sort_rows, unsort_rows).double()
    assert_equals_the_loop(layer, lambda: layer(inputs()))


def test_a_region_whose_forward_depends_on_the_number_of_rows_is_exact_or_refused():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(D))

        def forward(self, x):
            return x * self.scale / len(x)

    layer = Counting().double()
    with (
        PerExampleClipper(layer, 0.5) as clipper,
        pytest.raises(RunError, match="Counting for one example changes with the other"),
    ):
        clipper.accumulate(lambda: layer(inputs()).sum((1, 2)))


@pytest.mark.parametrize("engine", ["auto", "two_pass"])
def test_a_loss_that_couples_examples_is_refused(engine):
    layer = nn.Linear(D, D).double()
    with (
        PerExampleClipper(layer, 0.5, engine=engine) as clipper,
        pytest.raises(RunError, match="depends on another example's loss"),
    ):
        clipper.accumulate(lambda: layer(inputs()).sum((1, 2)).softmax(0))


def test_positions_of_each_example_and_then_of_all_as_many_as_examples():
    """(b, t) first, then (t,) with t = b: the plan of the one must not serve the other."""
    layer = Positions(lambda p: p).double()
    own, everyones = torch.arange(T).repeat(B, 1), torch.arange(B)
    for x, positions in ((inputs(), own), (inputs(t=B), everyones)):
        results = []
        for engine in ("book_keeping", "loop"):
            layer.zero_grad()
            with PerExampleClipper(layer, 0.5, engine=engine) as clipper:
                if engine == "book_keeping":
                    clipper.accumulate(lambda: layer(inputs(), own).sum((1, 2)))
                    layer.zero_grad()
                try:
                    norms = clipper.accumulate(
                        lambda x=x, positions=positions: layer(x, positions).square().sum((1, 2))
                    )
                except (InputError, RunError):
                    return
            results.append(torch.cat([norms, *[p.grad.flatten() for p in layer.parameters()]]))
        assert torch.allclose(results[0], results[1], rtol=1e-10)


def test_a_parameter_outside_the_model_is_refused():
    encoder, head = nn.Linear(D, D), nn.Linear(D, 1)
    x = torch.randn(B, D)
    for engine in ("auto", "two_pass", "loop"):
        with (
            PerExampleClipper(encoder, 0.5, engine=engine) as clipper,
            pytest.raises(RunError, match=r"trainable parameter of shape \(1, 6\) outside"),
        ):
            clipper.accumulate(lambda: head(encoder(x))[:, 0])
        assert head.weight.grad is None


def test_a_submodule_called_alone_is_proved_too():
    """As many examples as positions: shapes cannot show that the table's rows are everyone's."""

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Positions(lambda p: p[0])

        def forward(self, x):
            return self.inner(x)

    layer = Table().double()
    square = torch.arange(B).repeat(B, 1)
    with PerExampleClipper(layer, 0.5) as clipper:
        clipper.accumulate(lambda: layer.inner.dense(inputs()).square().sum((1, 2)))
        with pytest.raises(RunError, match=r"cannot be exact for Table: .*inner\.table"):
            clipper.accumulate(lambda: layer.inner(inputs(t=B), square).square().sum((1, 2)))


def test_a_convolution_that_changes_its_weight_is_not_taken_for_a_plain_one():
    class Standardized(nn.Conv2d):
        def _conv_forward(self, x, weight, bias):
            return super()._conv_forward(x, (weight - weight.mean()) / weight.std(), bias)

    layer = Standardized(3, 4, 3).double()
    images = torch.randn(3, 3, 5, 5, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(images))


def test_a_cache_does_not_leak_from_example_to_example():
    class StateCache(list):
        pass

    class Recurrent(nn.Module):
        """Cannot be mapped (it reads a value), and keeps its state in what it is given."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(D))

        def forward(self, x, cache):
            state = cache[0] if cache else 0.0
            outputs = x * self.weight + state
            cache.append(outputs.sum(1, keepdim=True))
            return outputs if float(x.detach().sum()) != 0.5 else outputs + 1

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer = Recurrent()

        def forward(self, x):
            return self.mixer(x, StateCache())

    layer = Model().double()
    assert_equals_the_loop(layer, lambda: layer(inputs()))


def test_a_proof_leaves_random_state_and_gradients_alone():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense, self.drop = nn.Linear(D, D), nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(self.dense(x))

    layer, leaf = Dropping().double(), inputs().requires_grad_()
    torch.manual_seed(0)
    expected = layer(leaf).square().sum((1, 2))
    (own,) = torch.autograd.grad(expected.sum(), leaf)
    seen = []

    def losses():
        seen.append(layer(leaf).square().sum((1, 2)))
        return seen[-1]

    torch.manual_seed(0)
    with PerExampleClipper(layer, 0.5) as clipper:
        clipper.accumulate(losses)
    assert torch.allclose(seen[-1], expected) and torch.allclose(leaf.grad, own)
    assert layer.training and layer.drop.training


def test_each_kind_of_call_is_proved_once(monkeypatch):
    layer, proofs = Positions(lambda p: p).double(), []
    from dpft.privacy.clipping import exactness

    check = exactness.check_against

    def counted(*args, **options):
        proofs.append(1)
        return check(*args, **options)

    monkeypatch.setattr(exactness, "check_against", counted)
    with PerExampleClipper(layer, 0.5) as clipper:
        for b, t in ((3, 5), (4, 5), (3, 6), (2, 7)):
            clipper.accumulate(lambda b=b, t=t: layer(inputs(b, t)).sum((1, 2)))
        assert len(proofs) == 1
        clipper.accumulate(lambda: layer(inputs(1, 5)).sum((1, 2)))
        assert len(proofs) == 2


def test_a_bias_that_a_rule_leaves_out_cannot_slip_through(monkeypatch):
    monkeypatch.setattr(rules, "_record_bias", lambda *_: None)
    layer = nn.Linear(D, D).double()
    assert_equals_the_loop(layer, lambda: layer(inputs()))


class Flipped(nn.Module):
    """A layer met by the rows in reverse; ``gate`` scales what it adds."""

    def __init__(self, gate=1.0, when=lambda module: True):
        super().__init__()
        self.dense = nn.Linear(D, D)
        self.gate = nn.Parameter(torch.tensor(gate).expand(D).clone())
        self.when = when

    def forward(self, x):
        if not self.when(self):
            return x + self.dense(x) * self.gate
        return x + self.dense(x.flip(0)).flip(0) * self.gate


@pytest.mark.parametrize("rows", [2, 3, *slow((4,), (9,))])
def test_no_draw_of_weights_lets_permuted_rows_pass(rows):
    layer = Flipped().double()
    for seed in range(8):
        torch.manual_seed(seed)
        assert_equals_the_loop(layer, lambda: layer(inputs(b=rows)))


def test_another_loss_of_the_same_call_is_proved_by_itself():
    layer, outside = nn.Linear(D, D).double(), nn.Linear(D, 1).double()
    with PerExampleClipper(layer, 0.5) as clipper:
        clipper.accumulate(lambda: layer(inputs()).square().sum((1, 2)))
        with pytest.raises(RunError, match="another example's loss"):
            clipper.accumulate(lambda: layer(inputs()).square().sum((1, 2)).softmax(0))
        with pytest.raises(RunError, match="outside"):
            clipper.accumulate(lambda: outside(layer(inputs())).sum((1, 2)))
    assert outside.weight.grad is None


def test_what_is_not_finite_does_not_let_a_wrong_plan_through():
    layer = Flipped().double()
    scale = torch.ones(B, dtype=torch.float64)
    scale[2] = float("inf")
    keep = [0, 1, 3]
    with PerExampleClipper(layer, 0.5) as clipper:
        norms = clipper.accumulate(lambda: layer(inputs()).square().sum((1, 2)) * scale)
    layer.zero_grad()
    with PerExampleClipper(layer, 0.5, engine="loop") as clipper:
        expected = clipper.accumulate(lambda: layer(inputs()).square().sum((1, 2)))
    assert torch.allclose(norms[keep], expected[keep], rtol=1e-10)


def test_a_gate_that_starts_at_zero_is_proved_again_when_it_opens():
    layer = Flipped(gate=0.0).double()
    for engine in ("book_keeping", "loop"):
        with torch.no_grad():
            layer.gate.zero_()
        results = []
        with PerExampleClipper(layer, 0.5, engine=engine) as clipper:
            for _ in range(2):
                layer.zero_grad()
                norms = clipper.accumulate(lambda: layer(inputs()).square().sum((1, 2)))
                results.append((norms, layer.dense.weight.grad))
                with torch.no_grad():
                    layer.gate.fill_(1.0)
        if engine == "book_keeping":
            got = results[1]
    assert torch.allclose(got[0], results[1][0]) and torch.allclose(got[1], results[1][1])


def test_what_happens_in_training_alone_is_proved():
    layer = Flipped(when=lambda module: module.training).double().train()
    assert_equals_the_loop(layer, lambda: layer(inputs()))


@pytest.mark.parametrize("detached", [True, False])
def test_statistics_of_the_batch_are_refused_detached_or_not(detached):
    class Normalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(D, D)

        def forward(self, x):
            h = self.dense(x)
            return h / (h.detach() if detached else h).abs().amax(0)

    layer = Normalized().double()
    with (
        PerExampleClipper(layer, 0.5) as clipper,
        pytest.raises(RunError, match="changes with the other examples"),
    ):
        clipper.accumulate(lambda: layer(inputs()).square().sum((1, 2)))


def test_losses_that_are_not_repeatable_are_refused_in_words():
    layer, batches = nn.Linear(D, D).double(), iter(range(100))
    with (
        PerExampleClipper(layer, 0.5) as clipper,
        pytest.raises(RunError, match="draw its batch before accumulate"),
    ):
        clipper.accumulate(lambda: layer(inputs(seed=next(batches))).square().sum((1, 2)))


def test_backward_inside_the_context_is_refused_in_words():
    layer = nn.Linear(D, D).double()
    with PerExampleClipper(layer, 0.5), pytest.raises(RunError, match="left to the clipper"):
        layer(inputs()).sum().backward()


def test_biases_alone_under_bfloat16_are_not_taken_for_wrong():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(D, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, D)
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith("bias")

    def losses():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(inputs(16).float()).float().square().sum((1, 2))

    with PerExampleClipper(model, 0.5) as clipper:
        assert clipper.accumulate(losses).shape == (16,)


def test_an_error_of_the_users_own_is_passed_on():
    layer = nn.Linear(D, D).double()
    with PerExampleClipper(layer, 0.5) as clipper, pytest.raises(IndexError, match="mine"):

        def losses():
            layer(inputs())
            raise IndexError("mine")

        clipper.accumulate(losses)


def made():
    model = nn.Linear(3, 2)
    return model, dict(model.named_parameters())


def test_one_computation_has_one_digest_whatever_its_sizes_and_another_has_another():
    model, parameters = made()
    few, many = torch.ones(2, 3), torch.zeros(5, 3)
    expected = describe_graph(model(few).sum(1), parameters)
    assert describe_graph(model(many).sum(1), parameters) == expected
    others = [model(few).sum(1).tanh(), model(few).sum(1).exp(), model(few).tanh().sum(1)]
    assert len({expected, *(describe_graph(losses, parameters) for losses in others)}) == 4


def test_inputs_with_a_gradient_are_other_leaves_and_parameters_of_the_model_are_not():
    model, parameters = made()
    inputs = torch.ones(2, 3, requires_grad=True)
    assert [leaf is inputs for leaf in other_leaves(model(inputs).sum(1), parameters)] == [True]
    assert other_leaves(model(torch.ones(2, 3)).sum(1), parameters) == []


@pytest.mark.parametrize("look", [describe_graph, other_leaves])
def test_a_parameter_outside_the_model_is_refused_by_its_shape(look):
    model, parameters = made()
    head = nn.Parameter(torch.ones(2))
    with pytest.raises(RunError, match=r"trainable parameter of shape \(2,\) outside the clipped"):
        look(model(torch.ones(4, 3)) @ head, parameters)


def test_gradients_of_a_weighted_sum_leave_every_grad_as_it_was():
    model, parameters = made()
    inputs = torch.ones(2, 3, requires_grad=True)
    model.weight.grad = torch.full((2, 3), 7.0)
    weights = torch.tensor([1.0, 10.0])
    losses = model(inputs)[:, 0]
    found = ordinary_gradients(losses, parameters, weights=weights, retain_graph=True)
    assert torch.equal(found["weight"], torch.tensor([[11.0] * 3, [0.0] * 3]))
    assert torch.equal(model.weight.grad, torch.full((2, 3), 7.0))
    assert model.bias.grad is None and inputs.grad is None
    losses.sum().backward()


def test_a_parameter_without_a_gradient_is_left_out():
    model, parameters = made()
    frozen = {**parameters, "unused": nn.Parameter(torch.ones(1))}
    found = ordinary_gradients(model(torch.ones(2, 3))[:, 0], frozen, weights=torch.ones(2))
    assert set(found) == set(parameters)


def test_gradients_are_put_back_after_an_error_too():
    tensor = torch.ones(1, requires_grad=True)
    tensor.grad = torch.ones(1)
    with pytest.raises(ZeroDivisionError), gradients_kept([tensor]):
        assert tensor.grad is None
        tensor.grad = torch.zeros(1)
        raise ZeroDivisionError
    assert torch.equal(tensor.grad, torch.ones(1))


WEIGHTS = torch.tensor([0.5, 4.0, 2.0])
EVERY = torch.ones(3, dtype=torch.bool)
NAME = "dense.weight"


def use(seed=0, size=1.0):
    g = torch.Generator().manual_seed(seed)
    return OuterProduct(size * torch.randn(3, 2, 4, generator=g), torch.randn(3, 2, 5, generator=g))


def scaled(before, weights=WEIGHTS):
    return OuterProduct(before.left * weights[:, None, None], before.right)


def passed(*uses):
    found = RecordedPass()
    for each in uses:
        found.note(NAME, each)
    return found


def check(before, after, *, rows=EVERY, weights=WEIGHTS, lossy=False):
    return before.check_scaled(after, weights[rows], rows, lossy=lossy)


def test_rows_scaled_by_their_weights_pass():
    assert check(passed(use(), use(1)), passed(scaled(use()), scaled(use(1))))


OTHERS = {
    "left as it was": lambda u: u,
    "scaled by another row's weight": lambda u: scaled(u, WEIGHTS.flip(0)),
    "mixed with another row": lambda u: OuterProduct(
        scaled(u).left + 1e-3 * u.left.roll(1, 0), u.right
    ),
    "turned around": lambda u: scaled(OuterProduct(u.left.flip(2), u.right)),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_any_other_row_is_disproved_by_its_parameters_name(other):
    with pytest.raises(NotExact, match=r"dense\.weight recorded for one example depends on"):
        check(passed(use()), passed(other(use())))


def test_a_pass_that_met_other_uses_is_disproved():
    with pytest.raises(NotExact, match="met different uses"):
        check(passed(use()), passed())


def test_only_the_rows_that_are_asked_for_are_compared():
    after = scaled(use())
    after.left[1] = float("nan")
    rows = torch.tensor([True, False, True])
    assert check(passed(use()), passed(after), rows=rows)
    assert passed(after).finite_rows(EVERY).tolist() == rows.tolist()


@pytest.mark.parametrize(("size", "lost"), [(LOST_TO_FLOAT16 / 100, True), (1.0, False)])
def test_what_is_so_small_that_float16_lost_it_says_nothing(size, lost):
    before, after = passed(use(size=size)), passed(use(seed=1, size=size))
    if lost:
        assert not check(before, after, lossy=True)
    else:
        with pytest.raises(NotExact):
            check(before, after, lossy=True)


def test_the_smallest_peak_norm_is_the_largest_finite_row_of_the_smallest_tensor():
    left = torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]], [[float("inf"), 0.0]]])
    right = torch.full((3, 1, 1), 100.0)
    assert Fingerprint.of(NAME, OuterProduct(left, right)).smallest_peak_norm == 5.0
    nothing = OuterProduct(torch.zeros(3, 1, 2), right)
    assert Fingerprint.of(NAME, nothing).smallest_peak_norm == 0.0


def test_a_parameter_has_a_gradient_where_no_tensor_of_some_use_is_zero():
    found = passed(use())
    found.note("dense.bias", GradientUse(torch.zeros(3, 2)))
    assert found.parameters_with_gradients() == {NAME}
