import json
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from benchmarks import gpu, gpu_worker
from benchmarks.gpu_rows import COMPILED, GROUPS, PRIVATE, Row, chosen, rows
from benchmarks.interleave import Process
from benchmarks.steady import kernels, profiled
from benchmarks.workload import Pairs

CPU = {"device": "cpu", "threads": 1, "compiler": "aot_eager"}
COST = {"launches": 30, "host_reads": 2, "peak_bytes": 3 * 2**30}
FOUND = {
    "private": [0.2, 0.3, 0.4],
    "ordinary": [0.2, 0.2, 0.2],
    "costs": [COST, COST | {"launches": 20, "host_reads": 1, "peak_bytes": 2 * 2**30}],
    "ran_compiled": False,
}


def row_of(kind: str) -> Row:
    (row,) = [each for each in rows(["tiny_gpt2"], **CPU) if each.place == ("bf16", "full", kind)]
    return row


def test_a_table_line_holds_ratios_and_what_both_take():
    assert gpu.table_line(row_of(PRIVATE), FOUND) == (
        "| tiny_gpt2 (T=16, b=4), bf16, full, private | 1.50 (1.25 to 1.75) | 1.50 | 1.15, 1.10"
        " | 300 / 200 | 3 / 2 | 30 / 20 = 1.50 | 2 / 1 | 3 |"
    )


def test_a_row_that_was_to_be_compiled_and_was_not_says_so():
    assert "dpft ran it uncompiled" in gpu.table_line(row_of(COMPILED), FOUND)
    assert "uncompiled" not in gpu.table_line(row_of(COMPILED), FOUND | {"ran_compiled": True})


def test_what_was_not_counted_is_left_out():
    uncounted = COST | {"launches": None, "peak_bytes": None}
    line = gpu.table_line(row_of(PRIVATE), FOUND | {"costs": [uncounted, COST]})
    assert "| - | 1.15, 1.10 | 300 / 200 | - / 3 | - / 30 = - | 2 / 2 |" in line


def test_the_rows_of_the_issue_are_there_the_most_important_first():
    known = rows(chosen("all"), device="cuda", threads=1, compiler="inductor")
    assert len(known) == len({row.name for row in known}) == 2 * 13 * 3 + 2 * 2
    assert [row.place for row in known[:5]] == [("bf16", "full", PRIVATE)] * 5
    sizes = {(w.shape, w.length, w.batch_size) for w in (row.baseline for row in known)}
    assert {("gpt2", 100, 64), ("gpt2", 1024, 8)} <= sizes
    sharded = [row for row in known if row.measured.parallel == "fsdp"]
    assert {(row.baseline.engine, row.baseline.parallel) for row in sharded} == {
        ("ordinary", "fsdp"),
        ("auto", "none"),
    }


def test_settings_are_chosen_by_name_or_by_group():
    assert chosen("roberta,tiny,roberta") == ["roberta", *GROUPS["tiny"]]


def test_an_unknown_shape_is_refused(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--shapes", "gpt5"])
    assert "got 'gpt5'" in capsys.readouterr().err


def test_without_an_accelerator_it_ends_with_one_sentence(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_rows_that_cannot_be_measured_say_why_and_the_others_follow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    page = tmp_path / "page.md"
    words = ["--device", "cpu", "--shapes", "tiny", "--seconds", "0", "--output", str(page)]
    assert gpu.main(words) == 0
    lines = [json.loads(line) for line in page.with_suffix(".jsonl").read_text().splitlines()]
    found = {line["row"]: line["said"] for line in lines}
    assert len(found) == len(rows(chosen("tiny"), **CPU))
    assert set(found.values()) == {"opacus is not installed", "out of the time budget"}
    assert all(f"| {name} | {said} |" in page.read_text() for name, said in found.items())


class Failing:
    """A worker that never answers."""

    def __init__(self, error: Exception) -> None:
        self.error, self.ended = error, False

    def start(self):
        return self

    def ask(self, question, *, limit):
        raise self.error

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (gpu.OutOfMemory("x"), "out of memory"),
        (TimeoutError("x"), "out of time: more than 20 s"),
        (RuntimeError("ended.\nValueError: no"), "failed: ValueError: no"),
    ],
)
def test_a_row_that_fails_says_how_and_the_next_one_has_a_process_of_its_own(error, said):
    worker = Failing(error)
    assert gpu.measure(row_of(PRIVATE), worker, pairs=2, seconds=20) == {"said": said}
    assert worker.ended


def test_host_reads_are_numbers_lists_and_shapes_that_depend_on_data():
    values = torch.tensor([0.0, 1.0, 2.0])
    assert profiled(lambda: values.sum().item())[1] == 1
    assert profiled(lambda: values.tolist())[1] == 1
    assert profiled(lambda: (values[values > 0], values.nonzero(), values.unique()))[1] == 3
    assert profiled(lambda: (values + 1).sum())[1] == 0


def test_kernels_are_what_ran_on_the_device_but_for_copies_and_names_that_programs_give():
    def event(name, device, *, is_named=False):
        return SimpleNamespace(name=name, device_type=device, is_user_annotation=is_named)

    seen = [
        event("aten::add", DeviceType.CPU),
        event("add_kernel", DeviceType.CUDA),
        event("Memcpy DtoH (Device -> Pageable)", DeviceType.CUDA),
        event("Memset (Device)", DeviceType.CUDA),
        event("Optimizer.step#AdamW.step", DeviceType.CUDA, is_named=True),
    ]
    assert kernels(seen) == 1
    assert kernels(seen[:1]) is None, "the profiler saw nothing of the device"


@pytest.mark.slow
def test_a_pair_is_measured_with_its_counts():
    row = row_of(PRIVATE)
    found = gpu_worker.measure(row.measured, row.baseline, most_pairs=2, seconds=0)
    own, ordinary = found["costs"]
    assert len(found["private"]) == len(found["ordinary"]) == 2
    assert own["launches"] > ordinary["launches"] > 100
    assert ordinary["host_reads"] <= own["host_reads"] <= ordinary["host_reads"] + 2
    numbers = 2 * 12 * 64**2 + 512 * 64
    assert own["peak_bytes"] > 3 * 4 * numbers, "weights and two moments"
    json.dumps(found)


@pytest.mark.slow
def test_a_worker_that_takes_too_long_is_killed():
    with Process(Pairs(device="cpu")) as process:
        process.wait_until_ready()
        row = row_of(PRIVATE)
        question = {"measured": vars(row.measured), "baseline": vars(row.baseline)}
        with pytest.raises(TimeoutError):
            process.ask(question | {"pairs": 10**6, "seconds": 600}, limit=0.1)


@pytest.mark.slow
def test_a_model_in_shards_of_one_rank_is_measured_beside_torchs(tmp_path):
    page = tmp_path / "page.md"
    gpu.main(
        ["--device", "cpu", "--shapes", "tiny_llama", "--pairs", "2", "--output", str(page)]
        + ["--seconds", "60"]
    )
    lines = [json.loads(line) for line in page.with_suffix(".jsonl").read_text().splitlines()]
    measured = [line["row"] for line in lines if "private" in line]
    assert any("non-private FSDP2" in name for name in measured)
