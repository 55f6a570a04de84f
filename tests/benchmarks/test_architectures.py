import pytest
import torch

from benchmarks import architectures, tables
from benchmarks.interleave import Timings

EXACT = architectures.Exactness("book_keeping", norms=1e-7, sums=2e-7, shortened=3e-4)


def test_a_table_line_holds_times_and_distances():
    timings = Timings(private=[0.2, 0.3, 0.4], ordinary=[0.2, 0.2, 0.2])
    line = architectures.table_line("gpt2", timings, EXACT)
    distances = "1.0e-07 | 2.0e-07 | 3.0e-04"
    assert line == f"| gpt2 | book_keeping | 1.50 (1.25 to 1.75) | 300 / 200 | {distances} | 3 |"
    line = architectures.table_line("gpt2", None, EXACT)
    assert line == f"| gpt2 | book_keeping | - | - | {distances} | 0 |"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "GRU", "t5"])
def test_a_clipped_sum_is_that_of_single_examples(name):
    exact = architectures.exactness(architectures.architectures()[name])
    assert 0 < exact.norms <= architectures.ALLOWED and 0 < exact.sums <= architectures.ALLOWED
    assert 0 < exact.shortened < 1e-3


@pytest.mark.slow
def test_the_models_of_the_table_give_a_loss_for_each_text():
    known, batch = architectures.architectures(), architectures.make_batch()
    assert len(known) > 25
    for name in ("bert", "LSTM, batch second"):
        with torch.no_grad():
            losses = known[name].losses(known[name].build(), batch)
        assert losses.shape == (architectures.EXAMPLES,) and bool(losses.isfinite().all())


def test_an_unknown_row_is_refused(capsys):
    with pytest.raises(SystemExit):
        architectures.main(["--rows", "gpt5"])
    assert "got 'gpt5'" in capsys.readouterr().err


def test_a_table_takes_the_place_of_its_older_self_alone(tmp_path):
    page = tmp_path / "results.md"
    for table in ("# A\n\n1\n", "# B\n\n2\n", "# A\n\n3\n"):
        tables.write(page, table)
    assert page.read_text() == "# A\n\n3\n\n# B\n\n2\n"


@pytest.mark.slow
def test_a_run_writes_its_table(tmp_path):
    output = tmp_path / "results.md"
    architectures.main(
        ["--pairs", "2", "--rows", "LSTM", "--threads", "1", "--output", str(output)]
    )
    assert "| LSTM | rows |" in output.read_text()
