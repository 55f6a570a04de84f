"""What a micro-batch costs beside ordinary training, in operations and in looks at the device.

Both are exact, whatever the machine: on an accelerator each operation is a launch, and at each
look the host waits.
"""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel

from dpft.privacy.clipping import PerExampleClipper, squares
from tests.slowness import slow_but

LAYERS, VOCABULARY = 12, 4200
"""GPT-2's layers, and a vocabulary that is as wide as one (``wide``)."""
MOST = {"book_keeping": 1.6, "two_pass": 2.2, "instantiate": 1.6}
"""Operations over those of an ordinary forward and backward pass."""
MAKE_NOTHING = ("aten._unsafe_view.default", "dpft.hand_over.default")
LOOKS = ("_local_scalar_dense", "nonzero", "unique", "equal", "masked_select")


class Count(TorchDispatchMode):
    """Counts operations, and looks at the device, ``tolist`` among them."""

    def __init__(self, monkeypatch) -> None:
        super().__init__()
        self.operations, self.looks, self.launches = Counter(), 0, 0
        own = torch.Tensor.tolist

        def counted(tensor):
            self.looks += 1
            return own(tensor)

        monkeypatch.setattr(torch.Tensor, "tolist", counted)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        self.operations[name] += 1
        self.launches += not func.is_view and name not in MAKE_NOTHING
        self.looks += any(look in name for look in LOOKS)
        return func(*args, **(kwargs or {}))


def gpt2(layers=LAYERS):
    torch.manual_seed(0)
    size = {"n_embd": 96, "n_head": 2, "n_layer": layers, "n_positions": 16}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    tokens = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**size, **no_dropout, **tokens)).train()


def losses_of(model):
    ids = torch.randint(0, VOCABULARY, (2, 16), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(16).repeat(2, 1)

    def compute():
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[:, :-1]
        return F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").sum(1)

    return compute


def counted(work, monkeypatch) -> tuple[int, int]:
    """Returns how many operations and looks something takes."""
    with monkeypatch.context() as patch, Count(patch) as count:
        work()
    return count.operations.total(), count.looks


@pytest.mark.parametrize("engine", slow_but(("book_keeping",), MOST))
def test_a_micro_batch_takes_few_operations_and_two_looks_whatever_the_number_of_parameters(
    engine, monkeypatch
):
    monkeypatch.setattr(squares, "CPU_BLOCK", squares.DEVICE_BLOCK)
    model = gpt2()
    compute = losses_of(model)
    ordinary = counted(lambda: compute().mean().backward(), monkeypatch)
    model.zero_grad()
    with PerExampleClipper(model, 0.1, engine=engine) as clipper:
        clipper.accumulate(compute)
        # The first batch under a dispatch mode is another kind of call, and proved anew.
        counted(lambda: clipper.accumulate(compute), monkeypatch)
        model.zero_grad()
        lone = counted(lambda: clipper.accumulate(compute), monkeypatch)
        # The fourth compares all of the model's state, as each power of two does.
        clipper.accumulate(compute)
        next_of_step = counted(lambda: clipper.accumulate(compute), monkeypatch)
    for operations, looks in (lone, next_of_step):
        assert operations <= MOST[engine] * ordinary[0]
        # One at where the vocabulary's gradients begin and end, one at all norms together.
        assert looks - ordinary[1] == (1 if engine == "instantiate" else 2)
