import pytest

from benchmarks import whole_runs
from benchmarks.run_worker import COLLATION, MICRO_BATCHES
from benchmarks.whole_runs import Row, Steps
from dpft.commands.python_api import TRAIN_COMMAND


def step(seconds, records, inside, collation):
    parts = {MICRO_BATCHES: inside, COLLATION: collation}
    return {"seconds": seconds, "records": records, "parts": parts}


def test_a_table_line_scales_each_step_to_1024_records():
    private = [step(600.0, 512, 512.0, 0.0), step(1112.0, 1024, 1024.0, 0.0)]
    ordinary = [step(640.0, 512, 512.0, 0.0), step(1024.0, 1024, 1024.0, 0.0)]
    first = step(500.0, 128, 228.0, 0.0)
    steps = Steps(private, ordinary, first)
    # 1112 over 1152 and 1112 over 1024; a record takes 1 s inside of micro-batches
    assert steps.ratios == [1112 / 1152, 1112 / 1024]
    line = whole_runs.line(Row("embedded", (), "1.20"), steps)
    assert line.startswith("| embedded | 1.026 (0.995 to 1.056) | 1.20 | 7.9% | 100.00 | ")
    assert line.endswith(" | 0.9 / 0.9 | 2 |")


def test_the_share_outside_of_micro_batches_is_that_of_1024_records():
    # 1 s that every step takes, 0.5 s of collation and 8.5 s of micro-batches for 512 records
    assert whole_runs.share_outside(step(10.0, 512, 8.5, 0.5)) == (1 + 1) / (1 + 1 + 17)


def test_an_empty_draw_is_measured_too():
    assert whole_runs.share_outside({"seconds": 2.0, "records": 0, "parts": {}}) == 1.0


@pytest.mark.slow
def test_the_runs_of_every_row_compose_and_differ_in_privacy(tmp_path):
    rows = whole_runs.rows(tmp_path)
    assert len(rows) == 2
    for row in rows.values():
        configs = []
        for own in (whole_runs.PRIVATE, whole_runs.ORDINARY):
            words = ["task=e2e", whole_runs.ENDLESS, *row.words, *own]
            composed = TRAIN_COMMAND.compose(words, tmp_path)
            configs.append(TRAIN_COMMAND.load(composed.values, composed.words).settings())
        measured, baseline = configs
        assert measured.privacy.guarantee is not None
        assert baseline.privacy.guarantee is None


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
    monkeypatch.setattr(whole_runs, "rows", lambda shape: {"tiny": Row("tiny", words)})
    output = tmp_path / "results.md"
    whole_runs.main(["--pairs", "2", "--rows", "tiny", "--threads", "1", "--output", str(output)])
    assert "| tiny |" in output.read_text()
