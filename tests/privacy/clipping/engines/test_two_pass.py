import weakref

import pytest

from dpft.privacy.clipping.engines.two_pass import TwoPassEngine
from dpft.privacy.clipping.factors import clipping_style
from dpft.privacy.clipping.uses import OuterUse
from tests.privacy.clipping.oracle import gpt2, records

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
