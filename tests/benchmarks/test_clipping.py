from dataclasses import replace

import pytest

from benchmarks import clipping
from benchmarks.interleave import Comparison, compare
from benchmarks.worker import share_of_checks
from benchmarks.workload import Workload, make_losses, make_model

TINY = Workload(engine="ordinary", shape="small_gpt2", batch_size=1, length=4, threads=1)


def test_a_table_line_holds_median_quartiles_memory_and_the_number_of_pairs():
    result = Comparison(
        ratios=(1.0, 1.1, 1.2, 1.3, 1.4), memory=1.05, seconds=(2.0, 1.5), checks=0.125
    )
    line = clipping.table_line(clipping.rows()["full"], result)
    assert line == (
        "| full, book-keeping | 1.200 (1.100 to 1.300) | 1.050 | 1.03, 1.04 | 2.00 / 1.50 | 5 "
        "| 12.5% |"
    )


def test_the_share_of_checks_counts_the_first_proof_and_three_repeated_checks():
    """(5 + 3 * 2) / (100 + 5 + 3 * 2): the 16th, the 32nd and the 64th of 100 are checked again."""
    seconds = [6.0, *[1.0] * 14, 3.0, 1.0]
    assert share_of_checks(seconds) == pytest.approx(11 / 111)


def test_only_a_clipper_of_dpft_takes_micro_batches_up_to_a_repeated_check():
    checked = [replace(TINY, engine=e).is_checked for e in ("book_keeping", "loop", "two_pass")]
    others = [replace(TINY, engine=e).is_checked for e in ("ordinary", "noise", "opacus_ghost")]
    assert all(checked) and not any(others)


def test_the_rows_of_the_issue_are_there():
    known = clipping.rows()
    assert {"full", "two_pass", "long", "roberta", "small", "lora", "bitfit", "noise"} <= set(known)
    assert (known["long"].measured.length, known["long"].measured.batch_size) == (512, 2)
    assert known["bitfit"].baseline.method == "full"


def test_an_unknown_row_is_refused(capsys):
    with pytest.raises(SystemExit):
        clipping.main(["--rows", "fulll"])
    assert "got 'fulll'" in capsys.readouterr().err


def test_a_checkpointed_workload_recomputes_in_both_of_its_runs():
    row = clipping.rows()["checkpointing"]
    assert row.measured.checkpointing and row.baseline.checkpointing
    model = make_model(Workload(**{**vars(TINY), "checkpointing": True}))
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def test_a_workload_of_images_has_a_loss_of_each():
    workload = Workload(engine="ordinary", shape="tiny_resnet", batch_size=3, threads=1)
    losses = make_losses(make_model(workload), workload)()
    assert losses.shape == (3,) and losses.requires_grad


@pytest.mark.parametrize("method", ["full", "lora", "bitfit"])
def test_a_workload_trains_what_its_method_says(method):
    workload = Workload(
        engine="ordinary", shape="small_gpt2", method=method, batch_size=2, length=5
    )
    model = make_model(workload)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    ends = {"full": "", "lora": (".down.weight", ".up.weight"), "bitfit": "bias"}[method]
    assert names and all(name.endswith(ends) for name in names)
    assert make_losses(model, workload)().shape == (2,)


@pytest.mark.slow
def test_two_processes_are_timed_in_turns():
    result = compare(Workload(**{**vars(TINY), "engine": "book_keeping"}), TINY, pairs=2)
    assert len(result.ratios) == 2 and result.memory > 0.5
    assert result.checks is not None and 0 < result.checks < 1


def test_peaks_without_the_holes_of_a_heap_are_a_table_of_their_own(tmp_path, monkeypatch):
    limits = []

    def compared(measured, baseline, *, pairs):
        limits.extend((measured.memory_limit_bytes, baseline.memory_limit_bytes))
        return Comparison(ratios=(1.0,), memory=1.05, seconds=(2.0, 1.5))

    monkeypatch.setattr(clipping, "compare", compared)
    output = tmp_path / "results.md"
    for words in ([], ["--held"]):
        clipping.main(["--rows", "lora", "--output", str(output), *words])
    assert output.read_text().count("# Clipping: ") == 2
    assert limits == [None, None, *[clipping.MORE_THAN_THERE_IS] * 2]


@pytest.mark.slow
def test_a_run_writes_its_table(tmp_path, monkeypatch):
    row = clipping.Row(name="tiny", measured=TINY, baseline=TINY, target="-")
    monkeypatch.setattr(clipping, "rows", lambda: {"tiny": row})
    output = tmp_path / "results.md"
    clipping.main(["--pairs", "1", "--rows", "tiny", "--threads", "1", "--output", str(output)])
    assert "| tiny |" in output.read_text()
