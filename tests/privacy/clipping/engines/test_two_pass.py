import weakref

import pytest
import torch

from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.engines.two_pass import TwoPassEngine
from dpft.privacy.clipping.factors import clipping_style
from dpft.privacy.clipping.uses import OuterUse
from tests.privacy.clipping.oracle import gpt2, records
from tests.slowness import slow_but

STYLE = clipping_style("flat", max_grad_norm=0.5)


@pytest.mark.parametrize(("tied", "expected"), [(False, set()), (True, {"transformer.wte.weight"})])
def test_no_use_outlives_its_turn_but_those_of_a_shared_weight(tied, expected):
    model, batch, kept = gpt2(tied=tied), records(), set()
    engine = TwoPassEngine(model, STYLE)
    engine.install()
    keep = engine.recorder.keep

    def watch(name, use):
        kept.add(name)
        keep(name, use)

    engine.recorder.keep = watch
    engine.accumulate(batch.losses(model)(), None)
    engine.remove()
    assert kept == expected


def test_output_gradients_are_let_go_during_the_pass():
    model, batch = gpt2(tied=False), records()
    engine = TwoPassEngine(model, STYLE)
    engine.install()
    alive, most = [], []
    record = engine.recorder.record_as

    def watch(name, use):
        most.append(sum(reference() is not None for reference in alive))
        if isinstance(use, OuterUse):
            # GPT-2's blocks have their inputs on the left, its head on the right.
            alive.append(weakref.ref(use.left if name == "lm_head.weight" else use.right))
        record(name, use)

    engine.recorder.record_as = watch
    engine.accumulate(batch.losses(model)(), None)
    engine.remove()
    # A gradient that autograd adds the next one to, in place, lives on in the residual stream.
    assert max(most) < len(alive) / 3


@pytest.mark.parametrize("labels", slow_but([[9, 4, 9, 9]], [None, [9, 4, 9, 9]]), ids=str)
@pytest.mark.parametrize(
    ("trained", "passes"), [("bias", 1), ("ln_1.weight", 1), (("bias", "wpe.weight"), 2)]
)
def test_small_gradients_alone_take_one_pass_and_give_the_sum_of_the_loop(
    trained, passes, labels, monkeypatch
):
    units = None if labels is None else torch.tensor(labels)
    model, batch, made = gpt2(dtype=torch.float64), records(), []
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith(trained)
    backward = torch.autograd.backward

    def counted(*arguments, **options):
        made.append(arguments)
        backward(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "backward", counted)
    sums = []
    for engine in ("loop", "two_pass"):
        with PerExampleClipper(model, STYLE.max_grad_norm, engine=engine) as clipper:
            # The first batch of a kind takes passes of its own, to be proved.
            clipper.accumulate(batch.losses(model), units)
            model.zero_grad()
            made.clear()
            clipper.accumulate(batch.losses(model), units)
        sums.append([p.grad.clone() for p in model.parameters() if p.requires_grad])
    assert len(made) == passes
    for expected, got in zip(*sums, strict=True):
        assert torch.allclose(got, expected, rtol=1e-10)
