from dataclasses import replace

import pytest

from benchmarks import whole_runs
from benchmarks.run_worker import COLLATION, MICRO_BATCHES
from benchmarks.whole_runs import Row, Steps
from dpft.runs.api import TRAIN_COMMAND
from dpft.training.compiling import check_first_step_compiles


def step(seconds, records, inside, collation):
    parts = {MICRO_BATCHES: inside, COLLATION: collation}
    return {"seconds": seconds, "records": records, "parts": parts}


def test_a_table_line_scales_each_step_to_1024_records():
    private = [step(600.0, 512, 512.0, 0.0), step(1112.0, 1024, 1024.0, 0.0)]
    ordinary = [step(640.0, 512, 512.0, 0.0), step(1024.0, 1024, 1024.0, 0.0)]
    first = step(500.0, 128, 228.0, 0.0)
    steps = Steps(private, ordinary, first, first)
    # 1112 over 1152 and 1112 over 1024; a record takes 1 s inside of micro-batches
    assert steps.ratios == [1112 / 1152, 1112 / 1024]
    line = whole_runs.privacy_line(Row("embedded", (), "1.20"), steps)
    assert line.startswith("| embedded | 1.026 (0.995 to 1.056) | 1.20 | 7.9% | 100.00 | ")
    assert line.endswith(" | 0.9 / 0.9 | 2 |")


def test_the_share_outside_of_micro_batches_is_that_of_1024_records():
    # 1 s that every step takes, 0.5 s of collation and 8.5 s of micro-batches for 512 records
    assert whole_runs.share_outside(step(10.0, 512, 8.5, 0.5)) == (1 + 1) / (1 + 1 + 17)


def test_an_empty_draw_is_measured_too():
    assert whole_runs.share_outside({"seconds": 2.0, "records": 0, "parts": {}}) == 1.0


def test_a_line_of_compiled_steps_has_the_first_of_both_by_the_clock():
    steps = [step(512.0, 512, 512.0, 0.0)], [step(1024.0, 512, 1024.0, 0.0)]
    lines = Steps(*steps, {"wall": 70.4}, {"wall": 2.2})
    line = whole_runs.compile_line(Row("embedded", ()), lines)
    assert line == "| embedded | 0.500 (0.500 to 0.500) | 70 / 2 | 1.0 / 0.5 | 1 |"


@pytest.mark.parametrize(("table", "count"), [("privacy", 2), ("compile", 4)])
def test_the_runs_of_every_row_compose_and_differ_in_what_is_compared(table, count, tmp_path):
    rows = whole_runs.TABLES[table].rows(tmp_path)
    assert len(rows) == count
    for row in rows.values():
        configs = []
        for own in row.runs:
            words = ["task=e2e", whole_runs.ENDLESS, *row.words, *own]
            composed = TRAIN_COMMAND.compose(words, tmp_path)
            configs.append(TRAIN_COMMAND.load(composed.values, composed.words).settings())
        measured, baseline = configs
        assert measured.privacy.guarantee is not None
        assert (baseline.privacy.guarantee is None) == (table == "privacy")
        assert (measured.train.compile, baseline.train.compile) == (table == "compile", False)
        padded = baseline.train.pad_to_multiple_of
        assert padded in (None, baseline.task.max_length)
        if table == "compile":
            check_first_step_compiles(
                expected_batch_size=measured.train.expected_batch_size,
                micro_batch_size=measured.train.micro_batch_size,
                longest=measured.task.max_length,
                tokens=None,
            )


def test_the_written_shape_is_gpt2s(tmp_path):
    from transformers import AutoConfig, AutoTokenizer

    whole_runs.write_shape(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.n_layer, config.n_embd, config.vocab_size) == (12, 768, 50257)
    assert len(AutoTokenizer.from_pretrained(tmp_path)) < config.vocab_size


def test_an_unknown_row_is_refused(capsys):
    with pytest.raises(SystemExit):
        whole_runs.main(["--rows", "gpt5"])
    assert "got 'gpt5'" in capsys.readouterr().err


@pytest.mark.slow
def test_two_runs_of_dpft_train_take_their_steps_in_turns(tmp_path, monkeypatch):
    words = ("model=tiny", "train.expected_batch_size=4", "train.micro_batch_size=2")
    table = replace(whole_runs.TABLES["privacy"], rows=lambda shape: {"tiny": Row("tiny", words)})
    monkeypatch.setitem(whole_runs.TABLES, "privacy", table)
    output = tmp_path / "results.md"
    whole_runs.main(["--pairs", "2", "--rows", "tiny", "--threads", "1", "--output", str(output)])
    assert "| tiny |" in output.read_text()
