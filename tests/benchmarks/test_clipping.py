from dataclasses import replace

import pytest

from benchmarks import clipping
from benchmarks.interleave import Comparison, compare
from benchmarks.workload import (
    SYNTHETIC_LENGTHS,
    Workload,
    losses_of,
    make_batch,
    make_losses,
    make_model,
    synthetic_batches,
)
from tests.slowness import slow_but

TINY = Workload(engine="ordinary", shape="small_gpt2", batch_size=1, length=4, threads=1)
FOUND = Comparison(
    ratios=(1.0, 1.1, 1.2, 1.3, 1.4), memory=1.05, seconds=(2.0, 1.5), first=(6.0, 3.0),
    self_check=5.0,
)  # fmt: skip


def test_checks_are_the_self_check_and_what_the_first_micro_batches_take_beyond_a_steady_one():
    """5 + (6 - 2) + (3 - 2) seconds of checks, and 100 micro-batches of 2 seconds."""
    assert FOUND.checks == pytest.approx(10 / 210)
    assert replace(FOUND, self_check=None).checks is None


def test_every_number_has_a_line_of_its_own_with_its_goal():
    lines = list(clipping.numbers(clipping.rows()["full"], FOUND))
    assert lines == [
        "full, book-keeping: time = 1.200  (goal: at most 1.04)",
        "full, book-keeping: peak = 1.050  (goal: at most 1.03)",
        "full, book-keeping: first = 4.000  (goal: at most 3)",
        "full, book-keeping: checks = 0.048  (goal: at most 0.04)",
        "full, book-keeping: self-check = 5.000  (goal: at most 6)",
    ]


def test_a_table_line_holds_all_numbers_of_a_comparison():
    assert clipping.table_line(clipping.rows()["full"], FOUND) == (
        "| full, book-keeping | 1.200 (1.100 to 1.300) | 1.050 | 1.04, 1.03 | 4.0, 2.0 | 4.8%"
        " | 5.0 | 2.00 / 1.50 | 5 |"
    )


def test_rows_compare_the_same_workload_with_and_without_privacy():
    known = clipping.rows()
    assert (known["full_long"].measured.length, known["full_long"].measured.batch_size) == (512, 2)
    assert known["lora_rows"].measured.engine == "rows"
    assert known["bitfit_full"].baseline.method == "full"
    assert known["checkpointing"].measured.checkpointing
    assert known["checkpointing"].baseline.checkpointing
    for row in known.values():
        assert row.baseline.engine in ("ordinary", "randn")


def test_an_unknown_row_is_rejected(capsys):
    with pytest.raises(SystemExit):
        clipping.main(["--rows", "fulll"])
    assert "got 'fulll'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkpointed_workload_recomputes_activations():
    model = make_model(replace(TINY, checkpointing=True))
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


@pytest.mark.parametrize("shape", ["tiny_gpt2", "tiny_roberta", "tiny_resnet"])
def test_a_workload_has_a_loss_of_each_row(shape):
    workload = Workload(engine="ordinary", shape=shape, batch_size=3, length=8, threads=1)
    model = make_model(workload)
    losses = make_losses(model, workload)()
    assert losses.shape == (3,) and losses.requires_grad
    sizes = [len(losses_of(model, batch)) for batch in synthetic_batches(workload, model)]
    assert sizes == [len(lengths) for lengths in SYNTHETIC_LENGTHS]


@pytest.mark.slow
def test_synthetic_rows_have_labels_within_their_own_lengths():
    first, _ = synthetic_batches(TINY, make_model(TINY))
    assert (first["labels"] >= 0).sum(1).tolist() == [n - 1 for n in SYNTHETIC_LENGTHS[0]]


@pytest.mark.slow
@pytest.mark.parametrize("method", slow_but(["lora"], ["full", "lora", "bitfit"]))
def test_a_workload_trains_what_its_method_says(method):
    workload = replace(TINY, method=method, batch_size=2)
    model = make_model(workload)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    ends = {"full": "", "lora": (".down.weight", ".up.weight"), "bitfit": "bias"}[method]
    assert names and all(name.endswith(ends) for name in names)
    assert losses_of(model, make_batch(workload, model)).shape == (2,)


@pytest.mark.slow
def test_a_run_times_two_processes_in_turns_and_writes_its_table(tmp_path, monkeypatch, capsys):
    found = []

    def compared(*given, **options):
        found.append(compare(*given, **options))
        return found[-1]

    row = clipping.Row(name="tiny", measured=replace(TINY, engine="book_keeping"), baseline=TINY)
    monkeypatch.setattr(clipping, "rows", lambda: {"tiny": row})
    monkeypatch.setattr(clipping, "compare", compared)
    output = tmp_path / "results.md"
    words = ["--pairs", "2", "--rows", "operations,tiny", "--threads", "1"]
    clipping.main([*words, "--output", str(output)])
    assert "| tiny |" in output.read_text()
    assert "operations = " in capsys.readouterr().out
    (result,) = found
    assert len(result.ratios) == 2 and result.memory > 0.5
    assert result.checks is not None and 0 < result.checks < 1
