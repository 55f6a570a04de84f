import pytest
import torch

from benchmarks import head_memory, head_worker
from benchmarks.interleave import Comparison
from benchmarks.workload import HeadWorkload
from tests.slowness import slow

WORKLOAD = HeadWorkload(engine="book_keeping")


def test_rows_hold_peaks_as_shares_of_ordinary_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_memory, "peak_of", lambda each: 8 * 10**8 if each.fused else 10**9)
    timed = Comparison(ratios=(0.9, 0.9, 0.9), memory=1.0, seconds=(1.8, 2.0))
    monkeypatch.setattr(head_memory, "compare", lambda *_, pairs: timed)
    assert head_memory.rows_of(WORKLOAD, 10**9, pairs=3) == [
        "| private, book_keeping | whole | 1000 | 1.000 | - | - |",
        "| private, book_keeping | fused | 800 | 0.800 | 1.80 / 2.00 | 0.900 (0.900 to 0.900) |",
    ]


@pytest.mark.parametrize(
    "engine", [head_worker.HUGGING_FACE, *slow((head_worker.ORDINARY,), ("two_pass",))]
)
def test_every_kind_of_micro_batch_leaves_a_gradient(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_worker, "NO_TOKENS", {**head_worker.NO_TOKENS, "vocab_size": 61})
    small = HeadWorkload(engine=engine, fused=engine == "two_pass", layers=1, length=8)
    with head_worker.ExitStack() as resources:
        model = head_worker.make_model(small)
        head_worker._micro_batch(model, small, resources)()
        assert all(torch.is_tensor(p.grad) for p in model.parameters())
